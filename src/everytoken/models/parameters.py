"""Shapes of the models, by family; without torch, so that reading the configuration stays light."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


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
        if self.d_model % self.n_heads:
            raise ValueError(
                f"model.d_model = {self.d_model} must be a multiple of model.n_heads = {self.n_heads}; "
                "change one of them"
            )
        if self.d_model // self.n_heads % 2:
            raise ValueError(
                f"model.d_model / model.n_heads = {self.d_model // self.n_heads} must be even: RoPE rotates pairs; "
                "change one of them"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"model.n_heads = {self.n_heads} must be a multiple of model.n_kv_heads = {self.n_kv_heads}; "
                "change one of them"
            )
        return self


class Mamba3Parameters(BaseModel):
    """Shape of a Mamba-3 decoder; its head is the embedding.

    ``d_model`` is the width, ``expand`` times as wide is the mixer, in heads of ``head_width`` with a state of
    ``head_width`` times ``state_width`` and ``rank`` inputs and outputs a token (1: SISO, more: MIMO).
    ``rotated_share`` of the state dimensions rotate. ``d_ff`` is the hidden width of the SwiGLU. ``chunk`` tokens are
    computed at once in training; it changes time, memory and the last bits.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: Literal["mamba3"]
    d_model: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    expand: int = Field(gt=0)
    head_width: int = Field(gt=0)
    state_width: int = Field(gt=1)
    rank: int = Field(gt=0)
    rotated_share: Literal[0.5, 1.0]
    d_ff: int = Field(gt=0)
    chunk: int = Field(gt=0)
    norm_eps: float = Field(gt=0, allow_inf_nan=False)
    init_std: float = Field(gt=0, allow_inf_nan=False)

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
        if self.expand * self.d_model % self.head_width:
            raise ValueError(
                f"model.expand * model.d_model = {self.expand * self.d_model} must be a multiple of model.head_width = "
                f"{self.head_width}; change one of them"
            )
        return self


class ComplexSsdParameters(BaseModel):
    """Shape of the decoder that Mamba-3-Lite ships: heads of d_model / n_heads, a complex state of ``state_width``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: Literal["complex_ssd_lite"]
    d_model: int = Field(gt=0)
    n_layers: int = Field(gt=0)
    n_heads: int = Field(gt=0)
    state_width: int = Field(gt=0)
    d_ff: int = Field(gt=0)
    chunk: int = Field(gt=0)
    norm_eps: float = Field(gt=0, allow_inf_nan=False)
    init_std: float = Field(gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.d_model % self.n_heads:
            raise ValueError(
                f"model.d_model = {self.d_model} must be a multiple of model.n_heads = {self.n_heads}; "
                "change one of them"
            )
        return self


# A further family is another member. Fields of this type are told apart by `family`.
ModelParameters = LlamaParameters | Mamba3Parameters | ComplexSsdParameters
