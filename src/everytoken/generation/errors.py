"""Errors of generation."""


class GenerationError(Exception):
    """A prompt, a conversation or a chat template from which no text can be generated."""


class NonFiniteLogits(GenerationError):
    """What the model computes is infinite or not a number."""
