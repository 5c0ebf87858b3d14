"""The error of submissions."""

from __future__ import annotations


class SubmissionError(RuntimeError):
    """A run cannot be submitted, asked for or cancelled; the message says what to do."""
