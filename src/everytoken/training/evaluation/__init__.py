"""Evaluation: bits per byte, held-out loss, generated text."""
