"""The one exception family of run tracking."""

from __future__ import annotations


class TrackingError(Exception):
    """A run cannot be recorded as promised; the message says what, where, expected, found and what to do."""
