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


# A further family is another member: LlamaParameters | NextParameters. Fields of this type are told apart by `family`.
ModelParameters = LlamaParameters
