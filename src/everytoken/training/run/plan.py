"""What a run will take, before it starts: tokens, arithmetic, memory of a process, disk, and shares of the streams.

Everything is computed from parameters; no tensor is made (the model is built on torch's "meta" device, to ask it for
its arithmetic). Memory is what tensors need, as this package makes them: float32 parameters, gradients and two moments
of AdamW, the layers' activations of one micro-batch, and the head. It leaves out what torch and Python take themselves,
what the allocator wastes, prepared products of oneDNN, and buffers of the communication library:
``benchmarks/memory_plan.py`` puts a plan beside what a process really takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from everytoken.models import (
    ModelParameters,
    ParameterCounts,
    Precision,
    largest_tensor,
    layer_activation_bytes,
    layer_input_bytes,
    layer_parameter_counts,
    parameter_counts,
)
from everytoken.tokens.order import DataParameters
from everytoken.training.errors import TrainingError
from everytoken.training.parameters import CheckpointParameters, DistributionParameters, OptimisationParameters

FLOAT32, BFLOAT16 = 4, 2  # bytes of a number
_MOMENTS = 2  # of AdamW
_LOGIT_BYTES, _LOGIT_ROWS = 8 << 20, 64  # a chunk of `training.step.loss` has so many bytes, or so many rows at least
_NEWEST = 2  # checkpoints that stay, beside milestones


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes that one process needs at the worst moment of a step, by what they are for.

    Attributes:
        parameters: float32; with FSDP this process's shards.
        moments: twice as many.
        narrow_weights: bfloat16 copies of the layers' matrices, which autocast makes of whole matrices.
        unsharded: FSDP only: what is whole for a while. The embeddings and their gradient in all of a step; of layers
            one that computes and the next, and the gradients of two.
        activations: of one micro-batch: what all layers keep for the backward pass (with activation checkpointing their
            inputs, and all of one layer), and the gradients of the activations of one layer, as many bytes again.
        head: the final states, their gradient and copies; the gradient of the output matrix twice (where it is formed,
            and scaled), its bfloat16 copy; one chunk of logits.
    """

    parameters: int
    gradients: int
    moments: int
    narrow_weights: int
    unsharded: int
    activations: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class StreamShare:
    """What a run reads of a stream: about ``windows`` of its ``size``; ``epochs`` is their ratio."""

    size: int
    windows: float

    @property
    def epochs(self) -> float:
        """How often the run reads the stream; 0.46 is 46 % of it."""
        return self.windows / self.size


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Attributes:
        strategy: how they share the model; "alone" for one.
        micro_batches: forward and backward passes of a process in a step.
        micro_batch: windows in the largest of them.
        tokens_per_step: predictions of a step, masked ones included.
        flop_per_token: forward and backward pass, without what activation checkpointing computes again.
        memory: of a process, in bytes.
        largest_tensor: bytes of the embeddings or of a matrix, float32.
        host_memory: bytes beside it on the first process's machine while a checkpoint is gathered (FSDP).
        checkpoint: bytes of one.
        checkpoints: how many lie on disk at once at most, those in the mirror included.
        streams: what is read of each, by name; None where their sizes are not known.
    """

    parameters: ParameterCounts
    processes: int
    strategy: str
    device: str
    micro_batches: int
    micro_batch: int
    tokens_per_step: int
    steps: int
    flop_per_token: float
    memory: ProcessMemory
    largest_tensor: int
    host_memory: int
    checkpoint: int
    checkpoints: int
    streams: Mapping[str, StreamShare] | None

    @property
    def tokens(self) -> int:
        """Predictions of the whole run."""
        return self.steps * self.tokens_per_step

    @property
    def flop(self) -> float:
        """Of the whole run."""
        return self.tokens * self.flop_per_token

    @property
    def peak_memory(self) -> int:
        """Bytes of the first process at its worst moment, on its device.

        That is a step, or with FSDP on CPUs, where host and device are one, the gathering of a checkpoint: its shards,
        all tensors, and the largest once more while it is put together.
        """
        if not self.host_memory or self.device != "cpu":
            return self.memory.total
        shards = self.memory.parameters + self.memory.moments
        return max(self.memory.total, shards + self.host_memory + self.largest_tensor)

    def lines(self) -> list[str]:
        """Return the plan as lines to print."""
        return [*self._arithmetic(), *self._memory(), *self._disk(), *self._reads()]

    def _arithmetic(self) -> list[str]:
        kinds = {
            field.name.replace("_", "-"): getattr(self.parameters, field.name) for field in fields(self.parameters)
        }
        total, active = self.parameters.total, self.parameters.active
        return [
            f"parameters: {total:,}" + (f", {active:,} of them active in a token" if active < total else ""),
            *(f"  {kind}: {number:,}" for kind, number in kinds.items() if number),
            f"tokens: {self.tokens_per_step:,} a step x {self.steps:,} steps = {self.tokens:,} "
            f"({self.tokens / self.parameters.total:.1f} a parameter)",
            f"arithmetic: {self.flop_per_token:.3e} FLOP a token, {self.flop:.3e} in all "
            f"({self.flop / 1e15 / 86400:,.1f} days at 1 PFLOP/s)",
        ]

    def _memory(self) -> list[str]:
        of = f"each of {self.processes} processes ({self.strategy})" if self.processes > 1 else "the process"
        parts = {field.name.replace("_", " "): getattr(self.memory, field.name) for field in fields(self.memory)}
        gathered = (
            [f"  and in the first process's host memory while a checkpoint is gathered: {_gigabytes(self.host_memory)}"]
            if self.host_memory
            else []
        )
        where = ""
        if self.device != "cpu":
            where = f" of its device, {_gigabytes(self.host_memory)} of the host"
        return [
            f"a step of {of}: {self.micro_batches} micro-batch{'es' if self.micro_batches > 1 else ''} of at most "
            f"{self.micro_batch} windows",
            f"memory of {of}: {_gigabytes(self.memory.total)}",
            *(f"  {name}: {_gigabytes(number)}" for name, number in parts.items() if number),
            *gathered,
            f"peak memory of the first process: {_gigabytes(self.peak_memory)}{where}",
        ]

    def _disk(self) -> list[str]:
        return [
            f"checkpoint: {_gigabytes(self.checkpoint)}; at most {self.checkpoints} at once: "
            f"{_gigabytes(self.checkpoint * self.checkpoints)}"
        ]

    def _reads(self) -> list[str]:
        return [
            f"{name}: {share.windows:,.0f} of {share.size:,} windows, {100 * share.epochs:.2f} % of an epoch"
            for name, share in (self.streams or {}).items()
        ]


def make_training_plan(
    model: ModelParameters,
    training: OptimisationParameters,
    data: DataParameters,
    checkpoints: CheckpointParameters,
    distribution: DistributionParameters,
    *,
    vocab_size: int,
    seq_length: int,
    stream_sizes: Mapping[str, int] | None,
) -> Plan:
    """Return what a run with these parameters takes; ``stream_sizes`` are windows by name, None where not known.

    Raises:
        TrainingError: the processes cannot share the batch, a stream is empty, weights name other streams, or a replay
            has fewer samples than the steps ask for.
    """
    processes = distribution.processes * distribution.nodes
    if training.batch_size % processes:
        raise TrainingError(
            f"training.batch_size = {training.batch_size} is not a multiple of the {processes} processes, which read "
            "equally many windows: change distribution.processes, or the batch (which makes another run)"
        )
    rows = training.batch_size // processes
    micro_batch = min(training.micro_batch_size, rows)
    counts = parameter_counts(model, vocab_size)
    sharded = processes > 1 and distribution.strategy == "fsdp"
    state = (1 + _MOMENTS) * FLOAT32 * counts.total
    return Plan(
        parameters=counts,
        processes=processes,
        strategy=distribution.strategy if processes > 1 else "alone",
        device=distribution.device,
        micro_batches=math.ceil(rows / micro_batch),
        micro_batch=micro_batch,
        tokens_per_step=training.batch_size * seq_length,
        steps=training.steps,
        flop_per_token=_flop_per_token(model, vocab_size, seq_length),
        memory=_memory(
            model,
            training,
            counts,
            vocab_size,
            tokens=micro_batch * seq_length,
            seq_length=seq_length,
            shards=processes if sharded else 1,
        ),
        largest_tensor=FLOAT32 * largest_tensor(model, vocab_size),
        host_memory=state if sharded and checkpoints.form == "whole" else 0,
        checkpoint=state,
        checkpoints=_most_checkpoints(training.steps, checkpoints),
        streams=None if stream_sizes is None else _shares(training, data, stream_sizes),
    )


def _flop_per_token(model: ModelParameters, vocab_size: int, seq_length: int) -> float:
    import torch

    from everytoken.models import empty_model

    with torch.device("meta"):
        return empty_model(model, vocab_size=vocab_size, max_seq_len=seq_length).flop_per_token(seq_length)


def _memory(
    model: ModelParameters,
    training: OptimisationParameters,
    counts: ParameterCounts,
    vocab_size: int,
    *,
    tokens: int,
    seq_length: int,
    shards: int,
) -> ProcessMemory:
    precision = training.execution.precision
    narrow = precision == "bfloat16"
    layers, own = layer_parameter_counts(model), math.ceil(counts.total / shards)
    outside = counts.total - sum(layers)  # embeddings, the final norm, what loops share
    kept = layer_activation_bytes(model, precision, seq_length)
    in_layers = sum(layer_input_bytes(model)) + max(kept) if training.activation_checkpointing else sum(kept)
    output = vocab_size * model.d_model
    return ProcessMemory(
        parameters=FLOAT32 * own,
        gradients=FLOAT32 * own,
        moments=_MOMENTS * FLOAT32 * own,
        narrow_weights=BFLOAT16 * counts.layer_matrices if narrow else 0,
        unsharded=FLOAT32 * (2 * outside + 4 * max(layers)) if shards > 1 else 0,
        activations=tokens * (in_layers + max(kept)),
        head=tokens * 4 * FLOAT32 * model.d_model
        + output * (2 * FLOAT32 + narrow * BFLOAT16)
        + logit_bytes(vocab_size, precision),
    )


def logit_bytes(vocab_size: int, precision: Precision) -> int:
    """Return the bytes of the one chunk of logits that the loss holds at a time."""
    return max(_LOGIT_BYTES, _LOGIT_ROWS * vocab_size * (BFLOAT16 if precision == "bfloat16" else FLOAT32))


def _most_checkpoints(steps: int, checkpoints: CheckpointParameters) -> int:
    """Return the newest, milestones, and the one that is being written; twice with a mirror."""
    milestones = 0
    if checkpoints.milestone_steps is not None:
        milestones = steps // math.lcm(checkpoints.milestone_steps, checkpoints.every_steps)
    return (_NEWEST + milestones + 1) * (1 if checkpoints.mirror is None else 2)


def _shares(training: OptimisationParameters, data: DataParameters, sizes: Mapping[str, int]) -> dict[str, StreamShare]:
    """Return samples times weight for each stream; the schedules keep to that within about a window."""
    if empty := sorted(name for name, size in sizes.items() if size < 1):
        raise TrainingError(f"stream {empty[0]} has no windows")
    samples = training.steps * training.batch_size
    if data.replay is not None and data.replay[1] - data.replay[0] < samples:
        raise TrainingError(
            f"data.replay = {list(data.replay)} has {data.replay[1] - data.replay[0]:,} samples; {training.steps:,} "
            f"steps of {training.batch_size} need {samples:,}: set fewer steps, or a longer range"
        )
    # a replay begins at sample a of such a run, whose steps have as many samples
    first = data.replay[0] if data.replay is not None else 0
    windows = dict.fromkeys(sizes, 0.0)
    entries = data.weights or ()
    starts = [entry.from_step * training.batch_size for entry in entries] or [0]
    for number, start in enumerate(starts):
        weights = entries[number].weights if entries else sizes
        if unknown := sorted(set(weights) - set(sizes)):
            raise TrainingError(f"data.weights name the stream {unknown[0]}; the streams are {', '.join(sizes)}")
        if not sum(weights.values()) > 0:
            raise TrainingError(f"data.weights have no weight above 0: {dict(weights)}")
        end = starts[number + 1] if number + 1 < len(starts) else first + samples
        items = max(min(end, first + samples) - max(start, first), 0)
        for name, weight in weights.items():
            windows[name] += items * weight / sum(weights.values())
    return {name: StreamShare(size, windows[name]) for name, size in sizes.items()}


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:,.3f} GB"
