"""The exception family of training, evaluation and generation."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """Training, evaluation or generation cannot go on; the message says where, what was expected and what was
    found.
    """


class CheckpointError(TrainingError):
    """A checkpoint folder is incomplete or does not fit the model that its config.json names."""


class NonFiniteError(TrainingError):
    """The loss or the gradient of a step is infinite or not a number."""
