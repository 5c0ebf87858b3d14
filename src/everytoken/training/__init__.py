"""Training, evaluation and generation with the models of ``everytoken.models``.

This package itself imports no torch: parameters and the artifact functions (``run/artifacts.py``) are light, and
everything that computes is imported when it runs.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.training.errors import LOWER_RATE, CheckpointError, NonFiniteError, TrainingError
    from everytoken.training.parameters import (
        BitsPerByteParameters,
        CheckpointParameters,
        DistributionParameters,
        ExecutionParameters,
        FactProbeParameters,
        LoopParameters,
        MemorisationParameters,
        OptimisationParameters,
        PromptParameters,
        SampleParameters,
    )

__getattr__, __dir__ = exports(__name__, __file__)
