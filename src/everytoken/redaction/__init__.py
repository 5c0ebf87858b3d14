"""Secrets kept out of parameters, messages and logs."""
