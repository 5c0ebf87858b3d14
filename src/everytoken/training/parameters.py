"""Parameters of training, evaluation and generation."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from everytoken.generation import GenerationParameters
from everytoken.shards import UNRECORDED, UNRECORDED_DEFAULT

_FROZEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

Device = Literal["cpu", "cuda"]


class ExecutionParameters(BaseModel):
    """How the arithmetic is done; the same values on the same machine give the same bits.

    ``precision``: "bfloat16" runs matrix products and attention in bfloat16 (fast where the CPU has
    avx512_bf16 or amx, slow elsewhere) and keeps parameters, norms, residual stream and loss in float32.
    ``matmul_precision`` is torch's setting for float32 products: "medium" and "high" let oneDNN choose, which
    on a CPU with amx really is bfloat16.
    """

    model_config = _FROZEN

    threads: int = Field(gt=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    matmul_precision: Literal["highest", "high", "medium"] = "medium"


class PeriodicHeldOut(BaseModel):
    """Loss on held-out documents while training: after every ``every_steps`` steps and the last one.

    ``documents``: of each source at most that many, those with the lowest hash of their address.
    ``curve_every_steps``: further points of the curve, after so many steps; null for none. They are measurements: in
    no digest, so that changing this number trains nothing again.
    """

    model_config = _FROZEN

    every_steps: int = Field(gt=0)
    documents: int = Field(gt=0)
    batch_size: int = Field(gt=0)
    curve_every_steps: Annotated[int | None, Field(gt=0), UNRECORDED] = None

    def is_recorded(self, done: int, steps: int) -> bool:
        """Return whether the loss after ``done`` of ``steps`` steps is part of the result."""
        return done % self.every_steps == 0 or done == steps

    def is_of_curve(self, done: int) -> bool:
        """Return whether the loss after ``done`` steps is a further point of the curve."""
        return self.curve_every_steps is not None and done % self.curve_every_steps == 0


class PeriodicSamples(BaseModel):
    """Texts that the model writes while training, after every ``every_steps`` steps."""

    model_config = _FROZEN

    every_steps: int = Field(gt=0)
    seed: int = Field(ge=0)
    prompts: tuple[str, ...]
    max_new_tokens: int = Field(gt=0)
    temperature: float = Field(ge=0)
    top_k: int | None = Field(default=None, gt=0)


class PeriodicTasks(BaseModel):
    """Tasks of lm-evaluation-harness while training (the extra ``eval``), after every ``every_steps`` steps.

    They are measurements: in no digest, so that changing them trains nothing again. ``names``: tasks of the harness, or
    of ``task_folder``, which has task files of your own. ``limit``: examples of each task; null for all.
    ``batch_size``: sequences that are computed together. ``max_new_tokens``: of a text, where its task does not say.
    """

    model_config = _FROZEN

    every_steps: int = Field(gt=0)
    names: tuple[str, ...] = Field(min_length=1)
    task_folder: str | None = None
    limit: int | None = Field(default=None, gt=0)
    batch_size: int = Field(default=8, gt=0)
    max_new_tokens: int = Field(gt=0)


class OptimisationParameters(BaseModel):
    """AdamW with warm-up and cosine decay; counts are optimiser steps and windows, never micro-batches."""

    model_config = _FROZEN

    seed: int = Field(ge=0)
    steps: int = Field(gt=0)
    batch_size: int = Field(gt=0)  # windows in an optimiser step, over all processes
    micro_batch_size: int = Field(gt=0)  # most windows in one forward and backward pass: bounds memory
    learning_rate: float = Field(gt=0)
    min_lr_ratio: float = Field(ge=0, le=1)
    warmup_steps: int = Field(ge=0)
    betas: tuple[float, float]
    adam_eps: float = Field(gt=0)
    weight_decay: float = Field(ge=0)  # on matrices only
    gradient_clip: float = Field(gt=0)  # largest norm of the whole gradient
    # steps with a loss or gradient that is not finite; one more is an error
    max_skipped_in_a_row: Annotated[int, Field(ge=0), UNRECORDED]
    activation_checkpointing: Annotated[bool, UNRECORDED] = False  # less memory, a quarter more time, the same bits
    compile: bool = False  # torch.compile of each layer: worth it for long runs
    held_out: PeriodicHeldOut | None = None
    samples: PeriodicSamples | None = None
    tasks: Annotated[PeriodicTasks | None, UNRECORDED] = None
    execution: ExecutionParameters

    @model_validator(mode="after")
    def _counts_fit(self) -> Self:
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} must be less than steps = {self.steps}: "
                "the last step has the smallest rate"
            )
        if self.micro_batch_size > self.batch_size:
            raise ValueError(
                f"micro_batch_size = {self.micro_batch_size} must be at most batch_size = {self.batch_size}"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas = {self.betas} must both be in [0, 1)")
        return self


class CheckpointParameters(BaseModel):
    """Where the state of a run is kept while it trains; changes no byte of the result.

    ``folder``: of all runs, each in a folder of its own below it. ``every_steps``: a checkpoint after so many steps
    (and after the last). The two newest stay, and each whose step is a multiple of ``milestone_steps`` (null: none).
    ``mirror``: a second folder that gets a copy of each; null for none. ``form``: "whole" (the first process gathers
    model and optimiser, 12 bytes a parameter in float32) or "sharded" (with FSDP2 each process writes its own part).
    """

    model_config = _FROZEN

    folder: str
    every_steps: int = Field(gt=0)
    milestone_steps: int | None = Field(default=None, gt=0)
    mirror: str | None = None
    form: Literal["whole", "sharded"] = "whole"


class DistributionParameters(BaseModel):
    """How many processes train, and how they share the model; the same samples each step for any number.

    ``processes``: on this machine, or on each of ``nodes``. ``strategy``: "ddp" (a copy of the model in each) or "fsdp"
    (FSDP2: parameters, gradients and optimiser state in shards). ``device``: "cpu" (gloo) or "cuda" (nccl).
    """

    model_config = _FROZEN

    processes: int = Field(default=1, gt=0)
    nodes: int = Field(default=1, gt=0)
    strategy: Literal["ddp", "fsdp"] = "ddp"
    device: Device = "cpu"


class LoopParameters(BaseModel):
    """Held-out documents on which the loops of a model are observed: ``documents`` of each source, chosen by hash."""

    model_config = _FROZEN

    documents: int = Field(gt=0)
    seed: int


class BitsPerByteParameters(BaseModel):
    """Bits per byte on held-out documents, ``batch_size`` chunks of seq_length predictions at a time.

    ``loops`` is for models that loop a block.
    ``device``: where the model computes. Another one may give other last bits, so it is recorded unless it is the CPU.
    """

    model_config = _FROZEN

    batch_size: int = Field(gt=0)
    loops: Annotated[LoopParameters | None, UNRECORDED_DEFAULT] = None
    device: Annotated[Device, UNRECORDED_DEFAULT] = "cpu"
    execution: ExecutionParameters


class PromptParameters(GenerationParameters):
    """Prompts that a model continues. ``device``: where it computes; every draw is made on the CPU."""

    prompts: tuple[str, ...]
    device: Annotated[Device, UNRECORDED_DEFAULT] = "cpu"
    execution: ExecutionParameters


class SampleParameters(GenerationParameters):
    """As `PromptParameters`; without ``prompts`` they are the beginnings of held-out documents that ``seed`` names."""

    prompts: tuple[str, ...] | None = None
    device: Annotated[Device, UNRECORDED_DEFAULT] = "cpu"
    execution: ExecutionParameters


class FactProbeParameters(BaseModel):
    """What a model is asked about the identity facts.

    ``facts``: the file of the facts. ``probes``: the file of prompts and of other values for each fact.
    ``max_new_tokens``: length of the greedy continuation in which the value is looked for.
    """

    model_config = _FROZEN

    facts: str = "conf/base/reflections/canaries.yml"
    probes: str = "conf/base/reflections/probes.yml"
    max_new_tokens: int = Field(gt=0)


class MemorisationParameters(BaseModel):
    """How much a model memorised of the canary stream (Carlini et al. 2019).

    ``seed``: of the random triggers and of the choice of documents. ``controls``: how many random triggers, drawn by
    the rule of the real ones, and how many texts at most that were not trained on. ``documents``: of each condition at
    most so many. ``continuation_tokens``: how many tokens of a text at most. ``facts``: how identity facts are asked
    for; null: they are not. ``batch_size``: sequences of a forward pass.
    ``device``: where the model computes. Another one may give other last bits, so it is recorded unless it is the CPU.
    """

    model_config = _FROZEN

    seed: int = Field(ge=0)
    controls: int = Field(ge=20)
    documents: int = Field(gt=0)
    continuation_tokens: int = Field(gt=0)
    facts: FactProbeParameters | None = None
    batch_size: int = Field(default=32, gt=0)
    device: Annotated[Device, UNRECORDED_DEFAULT] = "cpu"
    execution: ExecutionParameters
