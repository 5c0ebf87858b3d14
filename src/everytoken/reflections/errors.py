"""What can go wrong with reflections: messages say what, where, what was expected and found, and what to do."""

from __future__ import annotations


class ReflectionError(Exception):
    """Base of the errors of this package."""


class PromptMissing(ReflectionError):
    """A prompt file that a run needs does not exist; nothing is created in its place."""


class RefusedReply(ReflectionError):
    """A reply of a generator is not acceptable: this attempt failed, and another one may succeed."""


class BlankReply(RefusedReply):
    """A reply can be parsed, and a field that is stored is blank or no text."""
