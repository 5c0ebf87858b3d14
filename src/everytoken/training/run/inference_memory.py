"""The memory of a model that is only read: for bits per byte, and for texts. Computed from parameters, as a plan is.

It is what tensors need, and leaves out what `everytoken.training.run.plan` leaves out. No layer keeps anything for a
backward pass, so only one layer's activations exist at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from everytoken.models import (
    ModelParameters,
    Precision,
    cache_bytes_per_token,
    layer_inference_bytes,
    parameter_counts,
    state_bytes,
)
from everytoken.training.run.plan import BFLOAT16, FLOAT32, logit_bytes

_ROOM = 2  # a cache that grows gets room for twice as many positions: everytoken.models.llama
_READ_AT_ONCE = 64  # tokens of a prompt: everytoken.generation.prefix


@dataclass(frozen=True)
class InferenceMemory:
    """Bytes that a process needs at the worst moment, by what they are for.

    Attributes:
        parameters: float32, as they are loaded.
        narrow_weights: bfloat16 copies of all matrices, which autocast makes.
        layer: what one layer holds at its worst moment, in attention or in the feed-forward part.
        head: final states, their copies, the losses, and one chunk of logits.
        cache: keys and values of all sequences, with room for twice as many positions, or their recurrent states.
    """

    parameters: int
    narrow_weights: int
    layer: int
    head: int
    cache: int

    @property
    def total(self) -> int:
        """All that exists at once: the head computes when the layers are done."""
        return self.parameters + self.narrow_weights + self.cache + max(self.layer, self.head)


def evaluation_memory(
    model: ModelParameters, *, vocab_size: int, seq_length: int, batch_size: int, precision: Precision
) -> InferenceMemory:
    """Return the memory of bits per byte with ``batch_size`` chunks of ``seq_length`` predictions at a time."""
    tokens = batch_size * seq_length
    return InferenceMemory(
        **_weights(model, vocab_size, precision),
        layer=batch_size * layer_inference_bytes(model, precision, queries=seq_length, keys=seq_length),
        head=3 * tokens * FLOAT32 * model.d_model + logit_bytes(vocab_size, precision),
        cache=0,
    )


def generation_memory(
    model: ModelParameters, *, vocab_size: int, tokens: int, sequences: int, precision: Precision
) -> InferenceMemory:
    """Return the memory of texts of ``tokens`` tokens with their prompts, whose caches are kept at once."""
    return InferenceMemory(
        **_weights(model, vocab_size, precision),
        layer=layer_inference_bytes(model, precision, queries=_READ_AT_ONCE, keys=tokens),
        head=vocab_size * FLOAT32,
        cache=sequences * (_ROOM * tokens * cache_bytes_per_token(model, precision) + state_bytes(model)),
    )


def _weights(model: ModelParameters, vocab_size: int, precision: Precision) -> dict[str, int]:
    counts = parameter_counts(model, vocab_size)
    matrices = counts.layer_matrices + vocab_size * model.d_model  # the output matrix, tied or not
    return {
        "parameters": FLOAT32 * counts.total,
        "narrow_weights": BFLOAT16 * matrices if precision == "bfloat16" else 0,
    }
