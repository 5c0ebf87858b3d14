"""Engines that turn text into ids, and the certificate that proves a fast one equal to the reference."""
