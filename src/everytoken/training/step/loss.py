"""Cross-entropy of the next token without the logits of the whole batch.

The head is the largest product of a small model: (rows, d) x (d, V). It is done some rows at a time, the gradient
with respect to states and output matrix is formed in the same pass, and rows that do not count are never multiplied.
One buffer of ``CHUNK_BYTES`` holds the logits of a chunk, then their softmax, then the gradient, each in the place
of the one before, so memory does not grow with the batch and what is read again is in the CPU's cache. Products have
the autocast dtype, or that of the output matrix; sums are float32 or wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.amp import is_autocast_available
from torch.nn.functional import pad

CHUNK_BYTES = 8 << 20  # measured for V = 8,192: a quarter costs 4 to 12 %, four times 15 %

_WIDE_ROWS = 128  # of a float32 softmax beside narrower logits: small enough to stay in the cache

# Each new number of rows is a new product to prepare for oneDNN, which keeps it: time, and gigabytes after 1,000.
_ROW_MULTIPLE = 64


def cross_entropy_sum(hidden: Tensor, weight: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
    """Return the sum over counted rows of ``-log softmax(weight . hidden)[target]`` in nats, a scalar.

    hidden (rows, d), weight (vocab, d), targets (rows,) int64, counted (rows,) bool. Divide by the number of
    counted rows of the *whole* batch, not of one micro-batch. Differentiable once, in ``hidden`` and
    ``weight``.
    """
    total: Tensor = _CrossEntropySum.apply(hidden, weight, targets, counted)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return ``-log softmax(weight . hidden)[target]`` of every row in nats, (rows,) float32 or wider; no gradient."""
    dtype = _product_dtype(hidden, weight)
    with _no_autocast(hidden.device.type):
        narrow_weight = weight.to(dtype)
        losses = [_losses_alone(logits, targets[rows]) for rows, _, logits in _chunks(hidden.to(dtype), narrow_weight)]
        return torch.cat(losses) if losses else hidden.new_zeros(0, dtype=_wide(dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype of the products: autocast's where it is on, since it does not reach ``out=``."""
    device = hidden.device.type
    is_on = is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_on else weight.dtype


def _no_autocast(device: str) -> AbstractContextManager[Any]:
    return torch.autocast(device, enabled=False) if is_autocast_available(device) else nullcontext()


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows, states (chunk, d), logits (chunk, vocab)); the next chunk overwrites the logits.

    States and logits have rows of zeros at the end, up to a multiple of ``_ROW_MULTIPLE``.
    """
    row_bytes = len(weight) * weight.element_size()
    most = max(CHUNK_BYTES // row_bytes // _ROW_MULTIPLE, 1) * _ROW_MULTIPLE
    padded = pad(hidden, (0, 0, 0, -len(hidden) % _ROW_MULTIPLE))
    # one buffer for all chunks: fresh pages from the operating system cost more than the softmax itself
    buffer = hidden.new_empty(min(most, len(padded)), len(weight))
    for start in range(0, len(hidden), most):
        states = padded[start : start + most]
        rows = slice(start, min(start + most, len(hidden)))
        yield rows, states, torch.mm(states, weight.T, out=buffer[: len(states)])


def _read(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest and the target's logit of the first ``len(targets)`` rows, (rows,) float32 or wider."""
    real, wide = logits[: len(targets)], _wide(logits.dtype)
    return real.amax(-1).to(wide), real.gather(1, targets[:, None]).squeeze(1).to(wide)


def _losses(largest: Tensor, target: Tensor, probabilities: Tensor) -> Tensor:
    """Return the losses (rows,) of the largest and the target's logits (rows,) and their softmax (chunk, vocab).

    One exponential an entry: with m the largest logit and p its probability, log sum exp = m - log p, exact
    because p is at least 1 / vocab. The usual log-softmax followed by exp takes two and was twice as slow.
    """
    return largest - probabilities[: len(target)].amax(-1).to(target.dtype).log() - target


def _losses_and_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return losses (rows,) and ``d loss / d logits`` (chunk, vocab), which takes the place of the logits.

    The gradient is softmax - one-hot. Narrow logits go some rows at a time through a float32 softmax: rounded before
    the one is subtracted, the probability of a nearly certain target would have no digit left.
    """
    losses = []
    for block, block_targets, place in _wide_blocks(logits, targets):
        # the largest and the target's logit are read before the softmax may take their place
        largest, target = _read(block, block_targets)
        probabilities = torch.softmax(block, dim=-1, dtype=place.dtype, out=place)
        losses.append(_losses(largest, target, probabilities))
        # by index: scatter_add_ copies the whole of a tensor
        probabilities[torch.arange(len(target), device=target.device), block_targets] -= 1
        if place.dtype != block.dtype:
            block.copy_(probabilities)
    return torch.cat(losses), logits


def _losses_alone(logits: Tensor, targets: Tensor) -> Tensor:
    """Return losses (rows,) where no gradient is needed: one pass over the logits fewer, and no search in softmaxes."""
    losses = []
    for block, block_targets, place in _wide_blocks(logits, targets):
        logarithms = torch.log_softmax(block, dim=-1, dtype=place.dtype, out=place)
        losses.append(-logarithms[: len(block_targets)].gather(1, block_targets[:, None]).squeeze(1))
    return torch.cat(losses)


def _wide_blocks(logits: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (logits (block, vocab), targets, a place of the same shape for float32 or wider results).

    The place of wide logits is their own; narrow ones share one of ``_WIDE_ROWS`` rows. Rows without target come last.
    """
    wide = _wide(logits.dtype)
    in_place = wide == logits.dtype
    height = len(logits) if in_place else _WIDE_ROWS
    buffer = logits if in_place else logits.new_empty(min(height, len(logits)), logits.shape[1], dtype=wide)
    for start in range(0, len(logits), height):
        block = logits[start : start + height]
        yield block, targets[start : start + height], buffer[: len(block)]


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
        dtype = _product_dtype(hidden, weight)
        positions = counted.nonzero().squeeze(1)
        total = torch.zeros((), dtype=torch.float64, device=hidden.device)
        hidden_gradient = torch.zeros_like(hidden)
        weight_gradient: Tensor | None = None
        with _no_autocast(hidden.device.type):
            narrow_weight, counted_targets = weight.to(dtype), targets[positions]
            for rows, states, logits in _chunks(hidden[positions].to(dtype), narrow_weight):
                loss, gradient = _losses_and_gradient(logits, counted_targets[rows])
                total += loss.sum(dtype=torch.float64)
                hidden_gradient[positions[rows]] = (gradient @ narrow_weight)[: len(loss)].to(hidden.dtype)
                # the states of padded rows are 0, so they add nothing
                if weight_gradient is None:
                    weight_gradient = (gradient.T @ states).to(_wide(weight.dtype))
                elif dtype == weight_gradient.dtype:
                    weight_gradient.addmm_(gradient.T, states)
                else:
                    weight_gradient += gradient.T @ states
        if weight_gradient is None:  # no row counts
            weight_gradient = torch.zeros_like(weight, dtype=_wide(weight.dtype))
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.weight_dtype = weight.dtype
        return total.to(_wide(hidden.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scale = gradients[0]
        return hidden_gradient * scale, (weight_gradient * scale).to(ctx.weight_dtype), None, None
