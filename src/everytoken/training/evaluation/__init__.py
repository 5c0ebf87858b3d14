"""Evaluation: bits per byte, held-out loss, generated text."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.training.evaluation.generation import continue_prompts, generate
    from everytoken.training.evaluation.held_out import (
        HeldOutChunks,
        evaluate_held_out,
        prepare_held_out,
        read_held_out,
        write_held_out,
    )
    from everytoken.training.evaluation.language_modelling import (
        bits_per_byte,
        count_targets,
        token_nats,
        unigram_bits,
    )
    from everytoken.training.evaluation.loops import measure_loops
    from everytoken.training.evaluation.prompts import held_out_prompts
    from everytoken.training.evaluation.statistics import BitsPerByte, LoopFigures, metrics_of_evaluation

__getattr__, __dir__ = exports(__name__, __file__)
