"""The exception family of the models."""

from __future__ import annotations


class ModelsError(ValueError):
    """A model cannot be built or called as asked; the message says what was expected and what was found."""
