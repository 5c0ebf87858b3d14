"""The training loop: a generator of one record an optimiser step.

Step s is a pure function of the parameters after step s - 1, of batch s and of the schedule at s, so a run
can be cut at any step and continued with ``first_step``. Positions whose mask is 0 count neither in the sum
nor in the number it is divided by, and that number is taken over the whole batch, so the micro-batch size
changes memory and not the loss.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from everytoken.models.language_model import LanguageModel
from everytoken.training.errors import NonFiniteError, TrainingError
from everytoken.training.execution import autocast
from everytoken.training.loss import cross_entropy_sum
from everytoken.training.parameters import TrainingParameters
from everytoken.training.schedule import learning_rate


class ReadBatch(Protocol):
    """Gives a batch: tokens (batch, seq_length + 1) int64, loss mask (batch, seq_length) of 0 and 1."""

    def __call__(self, step: int, /) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        """Return (tokens, loss mask) of a step; mask[:, t] belongs to the prediction of tokens[:, t + 1]."""
        ...


@dataclass(frozen=True)
class StepRecord:
    """What one optimiser step did; all but ``seconds`` is deterministic."""

    step: int  # 0-based
    tokens: int  # predictions read up to and with this step: (step + 1) * batch_size * seq_length
    loss_tokens: int  # predictions of this step that count in the loss
    loss: float  # nats per counted prediction, before the update
    lr: float
    grad_norm: float  # before clipping
    seconds: float


def make_optimizer(model: LanguageModel, parameters: TrainingParameters) -> torch.optim.AdamW:
    """Return AdamW over all parameters; weight decay on matrices only, never on norms."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": parameters.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=parameters.learning_rate,
        betas=parameters.betas,
        eps=parameters.adam_eps,
        fused=True,
    )


def train_steps(
    model: LanguageModel,
    optimizer: torch.optim.AdamW,
    read_batch: ReadBatch,
    parameters: TrainingParameters,
    *,
    first_step: int,
) -> Iterator[StepRecord]:
    """Do the optimiser steps ``first_step`` to ``parameters.steps - 1``; yield a record after each.

    Run it inside ``execution(parameters.execution)``. Raises ``TrainingError`` for a batch that does not fit,
    and ``NonFiniteError``, before the update, when a loss or gradient is not finite; the parameters are then
    those of the step before.
    """
    model.train()
    for step in range(first_step, parameters.steps):
        started = time.perf_counter()
        tokens, counted = _checked_batch(read_batch(step), step, parameters.batch_size, model)
        lr = learning_rate(
            step,
            peak=parameters.learning_rate,
            min_ratio=parameters.min_lr_ratio,
            warmup_steps=parameters.warmup_steps,
            steps=parameters.steps,
        )
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad(set_to_none=True)
        loss = _accumulate_gradients(model, tokens, counted, parameters)
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), parameters.gradient_clip).item()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NonFiniteError(
                f"training step {step} of {parameters.steps}: loss {loss}, gradient norm {grad_norm}, expected finite "
                f"numbers; the learning rate was {lr:g}: lower training.learning_rate or lengthen training.warmup_steps"
            )
        optimizer.step()
        yield StepRecord(
            step=step,
            tokens=(step + 1) * counted.numel(),
            loss_tokens=int(counted.sum()),
            loss=loss,
            lr=lr,
            grad_norm=grad_norm,
            seconds=time.perf_counter() - started,
        )


def _accumulate_gradients(
    model: LanguageModel, tokens: Tensor, counted: Tensor, parameters: TrainingParameters
) -> float:
    """Add the gradient of the mean loss over the whole batch to the parameters; return that loss."""
    total_counted = int(counted.sum())
    loss = 0.0
    for micro_tokens, micro_counted in zip(
        torch.split(tokens, parameters.micro_batch_size),
        torch.split(counted, parameters.micro_batch_size),
        strict=True,
    ):
        with autocast(parameters.execution):
            hidden = model.hidden_states(micro_tokens[:, :-1])  # (micro, seq, d_model)
            loss_sum = cross_entropy_sum(
                hidden.flatten(0, 1),
                model.output_weight(),
                micro_tokens[:, 1:].flatten(),
                micro_counted.flatten(),
            )
        mean = loss_sum / total_counted
        mean.backward()  # type: ignore[no-untyped-call]
        loss += mean.item()
    return loss


def _checked_batch(
    batch: tuple[NDArray[np.int64], NDArray[np.generic]], step: int, batch_size: int, model: LanguageModel
) -> tuple[Tensor, Tensor]:
    """Return tokens int64 (batch, seq + 1) and counted bool (batch, seq), or raise ``TrainingError``."""
    tokens, mask = batch
    expected = (batch_size, model.max_seq_len + 1)
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
    counted = mask == 1
    if not np.all(counted | (mask == 0)):
        raise TrainingError(f"batch of step {step}: the loss mask holds values other than 0 and 1")
    if not counted.any():
        raise TrainingError(f"batch of step {step}: no position counts in the loss, expected at least one")
    return torch.from_numpy(tokens), torch.from_numpy(counted)
