"""Cross-entropy of the next token without the logits of the whole batch.

The head is the largest product of a small model: (rows, d) x (d, V). It is done ``CHUNK_ROWS`` rows at a
time, the gradient with respect to states and output matrix is formed in the same pass, and rows that do not
count are never multiplied. Memory is CHUNK_ROWS * V instead of rows * V numbers, and the logits stay in the
CPU's cache. Products have the autocast dtype, softmax and sums are float32 or wider.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK_ROWS = 512  # measured: 256 to 1024 differ by a few per cent for V = 8,192

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
    """Return ``-log softmax(weight . hidden)[target]`` of every row in nats, (rows,); no gradient."""
    dtype = _product_dtype(hidden)
    with torch.autocast("cpu", enabled=False):
        chunks = _chunks(_padded(hidden.to(dtype)), weight.to(dtype), targets)
        losses = [loss for _, _, loss in chunks]
        return torch.cat(losses) if losses else hidden.new_zeros(0)


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of the products: autocast's where it is on, since it does not reach ``out=``."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype


def _padded(hidden: Tensor) -> Tensor:
    """Return hidden (rows, d) with rows of zeros up to a multiple of ``_ROW_MULTIPLE``."""
    return pad(hidden, (0, 0, 0, -len(hidden) % _ROW_MULTIPLE))


def _chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows, probabilities (chunk, vocab), loss (rows,)), chunk by chunk of padded hidden (chunk, d).

    A chunk's probabilities have padded rows at the end, and are overwritten by the next chunk.

    One exponential an entry: with m the largest logit and p its probability, log sum exp = m - log p, exact
    because p is at least 1 / vocab. The usual log-softmax followed by exp takes two and was twice as slow.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    height = min(CHUNK_ROWS, len(hidden))
    # one buffer for all chunks: fresh pages from the operating system cost more than the softmax itself
    all_logits = hidden.new_empty(height, len(weight))
    all_probabilities = hidden.new_empty(height, len(weight), dtype=wide)
    for start in range(0, len(targets), CHUNK_ROWS):
        chunk = hidden[start : start + CHUNK_ROWS]
        rows = slice(start, min(start + CHUNK_ROWS, len(targets)))
        real = rows.stop - rows.start
        logits = torch.mm(chunk, weight.T, out=all_logits[: len(chunk)])
        probabilities = torch.softmax(logits, dim=-1, dtype=wide, out=all_probabilities[: len(chunk)])
        log_sum_exp = logits[:real].amax(-1).to(wide) - probabilities[:real].amax(-1).log()
        target_logits = logits[:real].gather(1, targets[rows, None]).squeeze(1)
        yield rows, probabilities, log_sum_exp - target_logits.to(wide)


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
        dtype = _product_dtype(hidden)
        positions = counted.nonzero().squeeze(1)
        with torch.autocast("cpu", enabled=False):
            narrow_hidden, narrow_weight = _padded(hidden[positions].to(dtype)), weight.to(dtype)
            counted_targets = targets[positions]
            total = torch.zeros((), dtype=torch.float64)
            hidden_gradient = torch.zeros_like(hidden)
            weight_gradient = torch.zeros_like(weight)
            buffer = narrow_hidden.new_empty(min(CHUNK_ROWS, len(narrow_hidden)), len(weight))
            for rows, probabilities, loss in _chunks(narrow_hidden, narrow_weight, counted_targets):
                total += loss.sum(dtype=torch.float64)
                # d loss / d logits = softmax - one-hot, in place: the probabilities are not needed again
                target = counted_targets[rows, None]
                minus_one = torch.full_like(target, -1, dtype=probabilities.dtype)
                probabilities[: len(target)].scatter_add_(1, target, minus_one)
                gradient = buffer[: len(probabilities)].copy_(probabilities)  # (chunk, vocab)
                state_gradient = (gradient @ narrow_weight)[: len(target)]
                hidden_gradient[positions[rows]] = state_gradient.to(hidden.dtype)
                # the states of padded rows are 0, so they add nothing
                weight_gradient += gradient.T @ narrow_hidden[rows.start : rows.start + len(gradient)]
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return total.to(torch.promote_types(hidden.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        scale = gradients[0]
        return hidden_gradient * scale, weight_gradient * scale, None, None
