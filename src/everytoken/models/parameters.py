"""Shapes of the models, by family; without torch, so that reading the configuration stays light."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


def _check_heads(d_model: int, n_heads: int, n_kv_heads: int) -> None:
    if d_model % n_heads:
        raise ValueError(
            f"model.d_model = {d_model} must be a multiple of model.n_heads = {n_heads}; change one of them"
        )
    if d_model // n_heads % 2:
        raise ValueError(
            f"model.d_model / model.n_heads = {d_model // n_heads} must be even: RoPE rotates pairs; change one of them"
        )
    if n_heads % n_kv_heads:
        raise ValueError(
            f"model.n_heads = {n_heads} must be a multiple of model.n_kv_heads = {n_kv_heads}; change one of them"
        )


class LlamaParameters(BaseModel):
    """Shape and initialisation of a Llama-style decoder; vocabulary and context length come from the data.

    ``d_model`` is the width, ``d_ff`` the hidden width of the SwiGLU, ``tied_embeddings`` whether the output matrix
    is the embedding (else one of its own), ``rope_theta`` the base of the rotary frequencies, ``init_std`` the
    standard deviation of every matrix (the two that write to the residual stream are divided by sqrt(2 n_layers)).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: Literal["llama"]
    d_model: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    n_kv_heads: int = Field(gt=0)
    d_ff: int = Field(gt=0)
    tied_embeddings: bool
    rope_theta: float = Field(gt=0, allow_inf_nan=False)
    norm_eps: float = Field(gt=0, allow_inf_nan=False)
    init_std: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        _check_heads(self.d_model, self.n_heads, self.n_kv_heads)
        return self


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GroupedQueryParameters(_Part):
    """Grouped-query attention: ``n_kv_heads`` heads of keys and values, each for as many query heads."""

    kind: Literal["gqa"]
    n_kv_heads: int = Field(gt=0)


class LatentAttentionParameters(_Part):
    """Multi-head latent attention: what is kept of a token is ``kv_lora`` and ``rope`` numbers.

    ``q_lora`` is the width of the latent of queries, 0 for none; ``nope`` and ``rope`` are the widths of a head's
    query and key without and with rotary positions; ``v`` is the width of a head's value.
    """

    kind: Literal["mla"]
    q_lora: int = Field(ge=0)
    kv_lora: int = Field(gt=0)
    nope: int = Field(gt=0)
    rope: int = Field(gt=0, multiple_of=2)
    v: int = Field(gt=0)

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        if self.v > self.nope + self.rope:
            raise ValueError(
                f"attention.v = {self.v} exceeds attention.nope + attention.rope = {self.nope + self.rope}; lower it"
            )
        return self


class ExpertsParameters(_Part):
    """A sparse feed-forward: ``per_token`` of ``n_experts`` SwiGLUs of hidden width ``d_ff``, and ``shared`` ones.

    ``shared_width`` is the hidden width of a shared expert in units of ``d_ff``. ``layers`` says which blocks have
    experts: only the looped one, or all. Two ways balance the load: ``bias_rate`` is how far a step moves the bias of
    an expert's selection, ``balance_weight`` the weight of the auxiliary loss; 0 switches either off.
    """

    n_experts: int = Field(gt=0)
    per_token: int = Field(gt=0)
    shared: int = Field(gt=0)
    d_ff: int = Field(gt=0)
    shared_width: int = Field(gt=0)
    layers: Literal["recurrent", "all"]
    bias_rate: float = Field(ge=0, allow_inf_nan=False)
    balance_weight: float = Field(default=1e-4, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _enough_experts(self) -> Self:
        if self.per_token > self.n_experts:
            raise ValueError(f"experts.per_token = {self.per_token} exceeds experts.n_experts = {self.n_experts}")
        return self


class NoHalting(_Part):
    """Every position takes every loop; the last state counts."""

    kind: Literal["off"]


class PonderHalting(_Part):
    """Adaptive computation time (Graves 2016): ``cost`` times the loops and the remainder of a position is lost.

    A position halts when its probabilities sum to ``threshold``. The cost grows from 0 to ``cost`` in the first half of
    the training.
    """

    kind: Literal["ponder"]
    threshold: float = Field(gt=0, lt=1)
    cost: float = Field(gt=0, le=1e-3)


class BudgetHalting(_Part):
    """Halting that is drawn to a mean depth: ``weight`` times the squared distance in units of the loops is lost.

    The wanted depth falls from all loops to ``depth`` in the first half of the training.
    """

    kind: Literal["budget"]
    threshold: float = Field(gt=0, lt=1)
    depth: float = Field(ge=1, allow_inf_nan=False)
    weight: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class FixedDepth(_Part):
    """Every step takes ``max_loops``."""

    kind: Literal["fixed"]


class UniformDepth(_Part):
    """Each step draws its loops from ``least`` to ``most``, each equally likely."""

    kind: Literal["uniform"]
    least: int = Field(gt=0)
    most: int = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"depth.least = {self.least} exceeds depth.most = {self.most}")
        return self


class PoissonDepth(_Part):
    """Each step draws 1 + Poisson(r) loops, r log-normal with the mean ``mean`` and the deviation 0.5 of its log."""

    kind: Literal["poisson"]
    mean: float = Field(gt=0, allow_inf_nan=False)


class OpenMythosParameters(_Part):
    """Shape of a recurrent-depth transformer; vocabulary and context length come from the data.

    ``prelude_layers`` and ``coda_layers`` blocks run once, one block between them runs up to ``max_loops`` times.
    ``d_ff`` is the hidden width of blocks without experts, null where all have them. ``lora_rank`` is the rank of what
    differs from loop to loop, ``loop_embedding`` the number of channels that tell a loop its number. ``halting``: how a
    position stops looping. ``depth``: how many loops a training step takes, of which the last ``gradient_loops`` have
    a gradient (null: all).
    """

    family: Literal["open_mythos"]
    d_model: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    attention: GroupedQueryParameters | LatentAttentionParameters = Field(discriminator="kind")
    prelude_layers: int = Field(gt=0)
    coda_layers: int = Field(gt=0)
    max_loops: int = Field(gt=0)
    d_ff: int | None = Field(default=None, gt=0)
    experts: ExpertsParameters
    lora_rank: int = Field(gt=0)
    loop_embedding: int = Field(gt=0, multiple_of=2)
    rope_theta: float = Field(gt=0, allow_inf_nan=False)
    norm_eps: float = Field(gt=0, allow_inf_nan=False)
    halting: Annotated[NoHalting | PonderHalting | BudgetHalting, Field(discriminator="kind")] = NoHalting(kind="off")
    depth: Annotated[FixedDepth | UniformDepth | PoissonDepth, Field(discriminator="kind")] = FixedDepth(kind="fixed")
    gradient_loops: int | None = Field(default=None, gt=0)

    @property
    def mean_loops(self) -> float:
        """The expected number of loops of a training step."""
        match self.depth:
            case FixedDepth():
                return float(self.max_loops)
            case UniformDepth(least=least, most=most):
                return (least + most) / 2
            case PoissonDepth(mean=mean):
                return 1 + mean

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.loop_embedding > self.d_model:
            raise ValueError(
                f"model.loop_embedding = {self.loop_embedding} exceeds model.d_model = {self.d_model}; lower it"
            )
        if (self.d_ff is None) != (self.experts.layers == "all"):
            raise ValueError(
                f"model.d_ff = {self.d_ff} with model.experts.layers = {self.experts.layers}: give d_ff, the width of "
                "blocks without experts, exactly where layers is recurrent"
            )
        if isinstance(self.halting, BudgetHalting) and self.halting.depth > self.max_loops:
            raise ValueError(
                f"model.halting.depth = {self.halting.depth} exceeds model.max_loops = {self.max_loops}; lower it"
            )
        if isinstance(self.attention, GroupedQueryParameters):
            _check_heads(self.d_model, self.n_heads, self.attention.n_kv_heads)
        return self


class _RecurrentParameters(_Part):
    """What the families with a recurrent state share.

    ``d_ff`` is the hidden width of the SwiGLU. ``chunk`` tokens are computed at once in training; it changes time,
    memory and the last bits.
    """

    d_model: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    state_width: int = Field(gt=1)
    d_ff: int = Field(gt=0)
    chunk: int = Field(gt=0)
    norm_eps: float = Field(gt=0, allow_inf_nan=False)
    init_std: float = Field(gt=0, allow_inf_nan=False)


class Mamba3Parameters(_RecurrentParameters):
    """Shape of a Mamba-3 decoder; its head is the embedding.

    ``d_model`` is the width, ``expand`` times as wide is the mixer, in heads of ``head_width`` with a state of
    ``head_width`` times ``state_width`` and ``rank`` inputs and outputs a token (1: SISO, more: MIMO).
    ``rotated_share`` of the state dimensions rotate.
    """

    family: Literal["mamba3"]
    expand: int = Field(gt=0)
    head_width: int = Field(gt=0)
    rank: int = Field(gt=0)
    rotated_share: float

    @property
    def n_heads(self) -> int:
        """Heads of the mixer."""
        return self.expand * self.d_model // self.head_width

    @property
    def rotated_pairs(self) -> int:
        """Pairs of state dimensions that rotate."""
        return int(self.rotated_share * self.state_width) // 2

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.rotated_share not in (0.5, 1.0):
            raise ValueError(f"model.rotated_share = {self.rotated_share} must be 0.5 or 1.0; change it")
        if self.expand * self.d_model % self.head_width:
            raise ValueError(
                f"model.expand * model.d_model = {self.expand * self.d_model} must be a multiple of model.head_width = "
                f"{self.head_width}; change one of them"
            )
        return self


class ComplexSsdParameters(_RecurrentParameters):
    """Shape of the decoder that Mamba-3-Lite ships: heads of d_model / n_heads, a complex state of ``state_width``."""

    family: Literal["complex_ssd_lite"]
    n_heads: int = Field(gt=0)

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(
                f"model.d_model = {self.d_model} must be a multiple of model.n_heads = {self.n_heads}; "
                "change one of them"
            )
        return self


# A further family is another member. Fields of this type are told apart by `family`.
ModelParameters = LlamaParameters | OpenMythosParameters | Mamba3Parameters | ComplexSsdParameters
