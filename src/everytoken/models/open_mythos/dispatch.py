"""Rows to their experts and back: no row is dropped, and no sum depends on the order in which experts work.

The K choices of each row are sorted by expert, stably, so that the rows of an expert lie together. Products are then
made expert by expert, and a permutation brings the results back. Nothing is added by index, so results and gradients
have the same bits in each run. Up to `FEW_EXPERTS` experts a loop over them is fastest. Beyond, torch's grouped product
makes all at once where it can, else one batched product over rows padded to the longest group does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.amp import is_autocast_available
from torch.nn.functional import grouped_mm, linear, pad

from everytoken.models.elementwise import swiglu
from everytoken.models.open_mythos.sizes import ROW_BLOCK

FEW_EXPERTS = 8


def routed(x: Tensor, chosen: Tensor, gates: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return ``sum_k gates_k SwiGLU_{chosen_k}(x)`` of each row, (n, d).

    Args:
        x: (n, d).
        chosen: expert of each choice, (n, K) int64.
        gates: weight of each choice, (n, K).
        gate_up: (E, 2 f, d).
        down: (E, d, f).
    """
    dtype = product_dtype(x, gate_up)
    order = torch.argsort(chosen.flatten(), stable=True)  # sorted place -> choice
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    sizes = torch.bincount(chosen.flatten(), minlength=len(gate_up))
    rows: Tensor = _Spread.apply(x.to(dtype), order, back, chosen.shape[1])  # type: ignore[no-untyped-call]
    out = _experts(rows, sizes, gate_up.to(dtype), down.to(dtype))
    total: Tensor = _Collect.apply(out, gates.to(out.dtype), order, back)  # type: ignore[no-untyped-call]
    return total


def product_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype of products: autocast's where it is on, else that of the weight."""
    device = x.device.type
    is_on = is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_on else weight.dtype


class _Spread(torch.autograd.Function):
    """Rows (n, d) to sorted choices (n K, d); its gradient is the sum of each row's K."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor, per_row: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.per_row = per_row
        return _spread(x, order, per_row)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (back,) = ctx.saved_tensors
        return gradients[0].index_select(0, back).view(-1, ctx.per_row, gradients[0].shape[1]).sum(1), None, None, None


class _Collect(torch.autograd.Function):
    """Sorted choices (n K, d) and gates (n, K) to the sum of each row's K choices times their gates, (n, d).

    One function, because autograd would keep the products, and bring gates into the order of experts by an index,
    whose gradient is a slow sum although every gate is there once.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, gates: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(out, gates, order, back)
        each = out.index_select(0, back).view(*gates.shape, out.shape[1])
        return each.mul_(gates.unsqueeze(2)).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        out, gates, order, back = ctx.saved_tensors
        spread = _spread(gradients[0], order, gates.shape[1])
        by_gate = (spread * out).sum(1).index_select(0, back).view_as(gates)
        return spread.mul_(gates.flatten().index_select(0, order).unsqueeze(1)), by_gate, None, None


def _spread(x: Tensor, order: Tensor, per_row: int) -> Tensor:
    return x.index_select(0, torch.div(order, per_row, rounding_mode="floor"))


def _experts(rows: Tensor, sizes: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return SwiGLU (m, d) of rows (m, d) sorted by expert, of which expert e has ``sizes[e]``."""
    if len(gate_up) <= FEW_EXPERTS:
        return one_by_one(rows, sizes, gate_up, down)
    return (grouped if _can_group(rows, down) else in_padded_groups)(rows, sizes, gate_up, down)


def _can_group(rows: Tensor, down: Tensor) -> bool:
    """Return whether torch's kernel takes these: rows of d and f numbers have to be multiples of 16 bytes."""
    if torch.compiler.is_compiling() or rows.dtype not in (torch.float32, torch.bfloat16):
        return False
    if any(width * rows.element_size() % 16 for width in down.shape[1:]):
        return False
    if rows.device.type == "cuda":
        return rows.dtype == torch.bfloat16 and torch.cuda.get_device_capability(rows.device) >= (8, 0)
    return rows.device.type == "cpu"


def in_blocks(rows: Tensor, products: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``products(rows)`` (n, ...) of rows (n, d), computed with rows of zeros up to a multiple of a block.

    How many rows reach an expert differs in every call. On a CPU, torch prepares a product for each number of rows it
    has not had yet, which takes ten times as long as a small product; so it is given few numbers.
    """
    count = len(rows)
    more = _padded(count, rows.device) - count
    return products(pad(rows, (0, 0, 0, more)))[:count] if more else products(rows)


def _padded(count: int, device: torch.device) -> int:
    """Return the number of rows to compute: below one block, as in decoding, no row of zeros is worth its time."""
    return count if count < ROW_BLOCK or device.type != "cpu" else -(-count // ROW_BLOCK) * ROW_BLOCK


def one_by_one(rows: Tensor, sizes: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return what `routed` asks of all experts, expert by expert."""
    # unbind has one gradient for all experts; indexing would fill a whole tensor with zeros for each
    each = zip(torch.split(rows, sizes.tolist()), gate_up.unbind(), down.unbind(), strict=True)
    return torch.cat([in_blocks(own, partial(_expert, up, back)) for own, up, back in each])


def _expert(up: Tensor, back: Tensor, rows: Tensor) -> Tensor:
    return linear(swiglu(linear(rows, up)), back)


def grouped(rows: Tensor, sizes: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return the same by two grouped products."""
    ends = sizes.cumsum(0).to(torch.int32)
    hidden = swiglu(grouped_mm(rows, gate_up.transpose(1, 2), offs=ends))
    out: Tensor = grouped_mm(hidden, down.transpose(1, 2), offs=ends)
    return out


def in_padded_groups(rows: Tensor, sizes: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return the same by two batched products; each group has rows of zeros up to the size of the largest."""
    most, starts = _padded(int(sizes.max()), rows.device), sizes.cumsum(0) - sizes
    expert = torch.repeat_interleave(torch.arange(len(sizes), device=rows.device), sizes, output_size=len(rows))
    place = expert * most + torch.arange(len(rows), device=rows.device) - starts[expert]
    groups = rows.new_zeros(len(sizes) * most, rows.shape[1]).index_copy(0, place, rows)
    hidden = swiglu(torch.bmm(groups.view(len(sizes), most, -1), gate_up.transpose(1, 2)))
    return torch.bmm(hidden, down.transpose(1, 2)).flatten(0, 1).index_select(0, place)
