"""One optimiser step and what it needs: loss, schedule, precision, distribution, history."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.training.step.distribution import ALONE, Ranks, join, open_device, these_processes, to_device
    from everytoken.training.step.execution_context import autocast, describe_machine, execution, matrix_peak
    from everytoken.training.step.history import (
        HELD_OUT,
        HELD_OUT_FILE,
        HISTORY_FILE,
        SAMPLES,
        SAMPLES_FILE,
        HeldOutRecord,
        SampleRecord,
        StepHistory,
        StepRecord,
        TaskRecord,
        TrainingRecord,
        read_records,
        record_values,
        term_names,
        total_bits_per_byte,
        write_records,
    )
    from everytoken.training.step.loop import ReadBatch, make_optimizer, prepare, train_steps
    from everytoken.training.step.loss import token_losses
    from everytoken.training.step.objective import Objective, document_numbers
    from everytoken.training.step.optimizer_state import (
        OPTIMIZER_FILE,
        begun_optimizer_tensors,
        optimizer_tensors,
    )
    from everytoken.training.step.schedule import learning_rate

__getattr__, __dir__ = exports(__name__, __file__)
