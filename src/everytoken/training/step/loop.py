"""The training loop: a generator of one record an optimiser step.

Step s is a pure function of the parameters after step s - 1, of batch s and of the schedule at s, so a run
can be cut at any step and continued with ``first_step``. Positions whose mask is 0 count neither in the sum
nor in the number it is divided by, and that number is taken over the whole batch, of all processes, so the
micro-batch size and the number of processes change memory and time, and not the loss.

A step whose loss, further terms or gradient are not finite is skipped: nothing is updated, the schedule and the data
move on. So is a step of padding alone, whose loss is 0 / 0: the end of a raw shard may be longer than a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from everytoken.models import LanguageModel, TrainingPoint
from everytoken.training.errors import LOWER_RATE, NonFiniteError, TrainingError
from everytoken.training.parameters import OptimisationParameters
from everytoken.training.step.distribution import ALONE, Ranks
from everytoken.training.step.execution_context import autocast
from everytoken.training.step.history import StepRecord
from everytoken.training.step.objective import Objective, document_numbers
from everytoken.training.step.schedule import learning_rate

__all__ = ["ReadBatch", "StepRecord", "make_optimizer", "prepare", "train_steps"]


class ReadBatch(Protocol):
    """Gives a batch: tokens (batch, seq_length + 1) int64, loss mask (batch, seq_length) of 0 and 1."""

    def __call__(self, step: int, /) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return (tokens, loss mask) of a step; mask[:, t] belongs to the prediction of tokens[:, t + 1]."""
        ...


def make_optimizer(model: LanguageModel, parameters: OptimisationParameters) -> torch.optim.AdamW:
    """Return fused AdamW over all parameters in two groups: with weight decay, as the model's ``decays`` says, and
    without.
    """
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[model.decays(name, parameter)].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": parameters.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=parameters.learning_rate,
        betas=parameters.betas,
        eps=parameters.adam_eps,
        fused=True,
    )


def prepare(model: LanguageModel, parameters: OptimisationParameters, processes: Ranks = ALONE) -> nn.Module:
    """Return the model as the module that these processes train together.

    Layers are compiled one by one: they are alike, so it is done once. Make the optimiser afterwards: the model's
    parameters may have become shards.
    """
    model.activation_checkpointing = parameters.activation_checkpointing
    if parameters.compile:
        torch.use_deterministic_algorithms(True)  # of the compiler: it must not choose kernels by what it measures
        for layer in model.layers():
            layer.compile()
    return processes.share(Objective(model))


def train_steps(
    model: LanguageModel,
    optimizer: torch.optim.AdamW,
    read_rows: ReadBatch,
    parameters: OptimisationParameters,
    *,
    first_step: int,
    module: nn.Module | None = None,
    processes: Ranks = ALONE,
    eos_id: int | None = None,
    skipped_in_a_row: int = 0,
) -> Iterator[StepRecord]:
    """Do the optimiser steps ``first_step`` to ``parameters.steps - 1``; yield a record after each.

    Run it inside ``execution(parameters.execution)``.

    Args:
        model: the model whose parameters the optimiser has.
        optimizer: from `make_optimizer`.
        read_rows: gives this process's rows of a batch: all of them where it is alone.
        parameters: batch size (of all processes), schedule, clipping, arithmetic.
        first_step: the first to do; the steps before are done.
        module: what `prepare` returned; None: the model as it is, in this process alone.
        eos_id: attention and positions begin anew after this token; None: they run through a window.
        skipped_in_a_row: number of skipped steps right before ``first_step``, without those of padding alone.

    Raises:
        TrainingError: a batch does not fit.
        NonFiniteError: more than ``max_skipped_in_a_row`` steps in a row were not finite; the parameters are those
            before the first of them.
    """
    module = Objective(model) if module is None else module
    rows = processes.rows(parameters.batch_size)
    module.train()
    # of the first step of the run wherever this session begins: each begins alike
    model.begin(TrainingPoint(parameters.seed, 0, parameters.steps))
    processes.settle(module, min(parameters.micro_batch_size, rows.stop - rows.start), model.max_seq_len)
    model.after_step(processes.sum, updated=False)
    optimizer.zero_grad(set_to_none=True)
    for step in range(first_step, parameters.steps):
        started = time.perf_counter()
        tokens, counted = _checked_batch(read_rows(step), step, rows.stop - rows.start, model)
        lr = _rate(step, parameters)
        for group in optimizer.param_groups:
            group["lr"] = lr
        model.begin(TrainingPoint(parameters.seed, step, parameters.steps))
        losses, loss_tokens, grad_norm = _gradients(model, module, tokens, counted, parameters, processes, eos_id)
        model.begin(None)
        loss, terms = losses[0], dict(zip(model.further_terms, losses[1:], strict=True))
        skipped = not all(map(math.isfinite, (*losses, grad_norm)))
        if not skipped:
            optimizer.step()
        model.after_step(processes.sum, updated=not skipped)
        optimizer.zero_grad(set_to_none=True)
        if loss_tokens:  # padding alone says nothing about the run
            skipped_in_a_row = skipped_in_a_row + 1 if skipped else 0
        if skipped_in_a_row > parameters.max_skipped_in_a_row:
            raise NonFiniteError(
                f"training step {step} (numbered from 0, of {parameters.steps}): {_told(loss, terms)}, gradient norm "
                f"{grad_norm}, expected finite numbers; {skipped_in_a_row} steps in a row were skipped, "
                f"training.max_skipped_in_a_row = {parameters.max_skipped_in_a_row} are allowed. "
                f"The learning rate was {lr:g}: {LOWER_RATE}"
            )
        yield StepRecord(
            step=step,
            tokens=(step + 1) * parameters.batch_size * model.max_seq_len,
            loss_tokens=loss_tokens,
            loss=loss,
            lr=lr,
            grad_norm=grad_norm,
            skipped=skipped,
            seconds=time.perf_counter() - started,
            terms=terms,
        )


def _told(loss: float, terms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value}" for name, value in {"loss": loss, **terms}.items())


def _rate(step: int, parameters: OptimisationParameters) -> float:
    return learning_rate(
        step,
        peak=parameters.learning_rate,
        min_ratio=parameters.min_lr_ratio,
        warmup_steps=parameters.warmup_steps,
        steps=parameters.steps,
    )


def _gradients(
    model: LanguageModel,
    module: nn.Module,
    tokens: Tensor,
    counted: Tensor,
    parameters: OptimisationParameters,
    processes: Ranks,
    eos_id: int | None,
) -> tuple[list[float], int, float]:
    """Leave the clipped gradient of the mean loss over the whole batch in the parameters.

    Returns that loss and the model's further terms, the predictions that they are means of, and the norm of the
    gradient before clipping. The device is waited for once, at the end, when all are read.
    """
    device = processes.device
    total = torch.full((), int(counted.sum()), dtype=torch.float64, device=device)
    total_known = processes.add(total)  # meanwhile the first forward pass
    losses = torch.zeros(1 + len(model.further_terms), dtype=torch.float64, device=device)
    micro_batches = list(
        zip(
            torch.split(processes.to_device(tokens), parameters.micro_batch_size),
            torch.split(processes.to_device(counted), parameters.micro_batch_size),
            strict=True,
        )
    )
    for number, (micro_tokens, micro_counted) in enumerate(micro_batches):
        with processes.accumulating(module, last=number == len(micro_batches) - 1):
            documents = None if eos_id is None else document_numbers(micro_tokens, eos_id)
            with autocast(parameters.execution, device.type):
                sums = module(micro_tokens, micro_counted, documents)
            total_known()
            (sums.sum() / (total / processes.gradient_divisor)).backward()
            losses += sums.detach()
    losses_known = processes.add(losses)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), parameters.gradient_clip)
    losses_known()
    figures: list[float] = torch.stack([*(losses / total), total, processes.whole(norm).double()]).tolist()
    return figures[:-2], int(figures[-2]), figures[-1]


def _checked_batch(
    batch: tuple[NDArray[np.int64], NDArray[Any]], step: int, rows: int, model: LanguageModel
) -> tuple[Tensor, Tensor]:
    """Return tokens int64 (rows, seq + 1) and counted bool (rows, seq), or raise ``TrainingError``."""
    tokens, mask = batch
    expected = (rows, model.max_seq_len + 1)
    if tokens.dtype != np.int64 or tokens.shape != expected or mask.shape != (expected[0], expected[1] - 1):
        raise TrainingError(
            f"batch of step {step}: expected tokens int64 {expected} and mask {(expected[0], expected[1] - 1)}, found "
            f"{tokens.dtype} {tokens.shape} and {mask.shape}; check training.batch_size and the streams' seq_length"
        )
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= model.vocab_size:
        raise TrainingError(
            f"batch of step {step}: token ids {low} to {high}, expected 0 to {model.vocab_size - 1}; the streams were "
            "written with another tokenizer than the one given"
        )
    counted = mask if mask.dtype == np.bool_ else mask == 1
    if counted is not mask and not np.all(counted | (mask == 0)):
        raise TrainingError(f"batch of step {step}: the loss mask holds values other than 0 and 1")
    return torch.from_numpy(tokens), torch.from_numpy(counted)
