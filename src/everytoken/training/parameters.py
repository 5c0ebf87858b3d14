"""Parameters of training, evaluation and generation: every one is stated, none has a default."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_FROZEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ExecutionParameters(BaseModel):
    """How the arithmetic is done; the same values on the same machine give the same bits.

    ``precision``: "bfloat16" runs matrix products and attention in bfloat16 (fast where the CPU has
    avx512_bf16 or amx, slow elsewhere) and keeps parameters, norms, residual stream and loss in float32.
    ``matmul_precision`` is torch's setting for float32 products: "medium" and "high" let oneDNN choose, which
    on a CPU with amx really is bfloat16.
    """

    model_config = _FROZEN

    threads: int = Field(gt=0)
    precision: Literal["float32", "bfloat16"]
    matmul_precision: Literal["highest", "high", "medium"]


class TrainingParameters(BaseModel):
    """AdamW with warm-up and cosine decay; counts are optimiser steps and windows, never micro-batches."""

    model_config = _FROZEN

    seed: int = Field(ge=0)
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)  # windows in an optimiser step
    micro_batch_size: int = Field(gt=0)  # windows in one forward and backward pass: bounds memory
    learning_rate: float = Field(gt=0)
    min_lr_ratio: float = Field(ge=0, le=1)
    warmup_steps: int = Field(ge=0)
    betas: tuple[float, float]
    adam_eps: float = Field(gt=0)
    weight_decay: float = Field(ge=0)  # on matrices only
    gradient_clip: float = Field(gt=0)  # largest norm of the whole gradient
    execution: ExecutionParameters

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} must be less than steps = {self.steps}: "
                "the last step has the smallest rate"
            )
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size = {self.batch_size} must be a multiple of micro_batch_size = {self.micro_batch_size}"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {self.betas} must both be in [0, 1)")
        return self


class EvaluationParameters(BaseModel):
    """Bits per byte on held-out documents, ``batch_size`` chunks of seq_length predictions at a time."""

    model_config = _FROZEN

    batch_size: int = Field(gt=0)
    execution: ExecutionParameters


class GenerationParameters(BaseModel):
    """Sampling: ``temperature`` 0 takes the most likely token, ``top_k`` null keeps all."""

    model_config = _FROZEN

    seed: int = Field(ge=0)
    prompts: tuple[str, ...]
    max_new_tokens: int = Field(gt=0)
    temperature: float = Field(ge=0)
    top_k: int | None = Field(gt=0)
    execution: ExecutionParameters
