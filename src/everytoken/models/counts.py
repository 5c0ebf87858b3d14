"""Numbers of parameters by kind, and what the formulas of all families share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Precision = Literal["float32", "bfloat16"]
CPU_BLOCK = 64  # queries of a block in everytoken.models.causal_attention


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by kind; ``output`` is 0 where the output matrix is the embedding."""

    embedding: int
    output: int
    attention: int
    feed_forward: int
    norms: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def active(self) -> int:
        """Those that a token uses."""
        return self.total

    @property
    def layer_matrices(self) -> int:
        """Those of the layers that are factors of products."""
        return self.attention + self.feed_forward


@dataclass(frozen=True)
class RecurrentParameterCounts(ParameterCounts):
    """The same of a model with a recurrent state: ``mixers`` are their matrices, ``rates`` what else they have."""

    mixers: int
    rates: int

    @property
    def layer_matrices(self) -> int:
        """Those of the layers that are factors of products."""
        return super().layer_matrices + self.mixers


@dataclass(frozen=True)
class SparseParameterCounts(ParameterCounts):
    """The same of a model with experts in a looped block.

    ``active_experts`` are as many routed experts as a token reaches, ``idle_experts`` the others. ``recurrence`` is
    what makes loops differ: the depth adapter, the injection, the halting head.
    """

    active_experts: int
    idle_experts: int
    recurrence: int

    @property
    def active(self) -> int:
        """Those that a token uses."""
        return self.total - self.idle_experts

    @property
    def layer_matrices(self) -> int:
        """Those of the layers that are factors of products."""
        return super().layer_matrices + self.active_experts + self.idle_experts


def bytes_of(precision: Precision) -> int:
    """Return the bytes of a number in products."""
    return 4 if precision == "float32" else 2


def attention_bytes(precision: Precision, *, d: int, g: int, heads: int, seq_length: int) -> int:
    """Return what grouped-query attention keeps of a token at most; see `models.sizes.layer_activation_bytes`.

    d width, g width of all keys.
    """
    number = bytes_of(precision)
    kept = number * (4 * d + 3 * g) + 4 * heads
    if seq_length <= 8 * (d // heads):
        seen = (seq_length + min(CPU_BLOCK, seq_length)) // 2
        kept += number * heads * seen
    return kept


def norm_bytes(precision: Precision, width: int) -> int:
    """Return what a norm and the product behind it keep of a token: input, factor, input of the product."""
    return 4 * width + 4 + bytes_of(precision) * width
