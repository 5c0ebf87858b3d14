"""The exception family of training, evaluation and generation."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """Training, evaluation or generation cannot go on; the message says where, what was expected and what was
    found.
    """


class CheckpointError(TrainingError):
    """A checkpoint folder is incomplete or does not fit the model that its config.json names."""


class NonFiniteError(TrainingError):
    """A loss, a gradient or what a model computes is infinite or not a number."""


class TrainingStopped(TrainingError):
    """A run was asked to stop, and has left a checkpoint of its last step: the same command goes on from it."""


LOWER_RATE = (
    "lower optimisation.learning_rate or lengthen optimisation.warmup_steps; a run is deterministic, so going on from "
    "a checkpoint with the same parameters comes here again"
)
"""What to do about a run that diverged."""
