"""Training, evaluation and generation with the models of ``everytoken.models``.

This package itself imports no torch: parameters and the artifact functions (``artifacts.py``) are light, and
everything that computes is imported when it runs.
"""

from everytoken.training.errors import TrainingError
from everytoken.training.parameters import (
    CheckpointParameters,
    DistributionParameters,
    EvaluationParameters,
    ExecutionParameters,
    GenerationParameters,
    TrainingParameters,
)

__all__ = [
    "CheckpointParameters",
    "DistributionParameters",
    "EvaluationParameters",
    "ExecutionParameters",
    "GenerationParameters",
    "TrainingError",
    "TrainingParameters",
]
