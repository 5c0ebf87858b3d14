"""The plain training loop that ours is measured against, as people write it: one file, nothing clever, nothing slow.

``nn.Linear`` layers with query, key and value in one matrix, ``nn.RMSNorm``, ``scaled_dot_product_attention``, all
logits of the batch and ``F.cross_entropy`` on them, fused AdamW, ``clip_grad_norm_``, and batches gathered at random
offsets of a memory-mapped token file. The shape is that of our Llama (grouped queries, RoPE, SwiGLU, tied embedding),
so both do the same products; no deterministic algorithms are asked for, no mask, no checks. ``benchmarks/training.py``
runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from everytoken.seeds import numpy_generator, torch_generator


@dataclass(frozen=True)
class Config:
    """The shape of the model and of a batch."""

    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    d_ff: int
    batch_size: int
    learning_rate: float
    rope_theta: float = 10000.0


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x (batch, heads, seq, D) by the angles of its positions, cos and sin (seq, D / 2)."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with grouped queries."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.n_head, self.n_kv_head = config.n_head, config.n_kv_head
        self.head_dim = config.n_embd // config.n_head
        self.c_attn = nn.Linear(config.n_embd, (config.n_head + 2 * config.n_kv_head) * self.head_dim, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the mixed values (batch, seq, n_embd)."""
        B, T, C = x.shape  # noqa: N806
        kv_width = self.n_kv_head * self.head_dim
        q, k, v = self.c_attn(x).split([C, kv_width, kv_width], dim=2)
        q = apply_rotary(q.view(B, T, self.n_head, self.head_dim).transpose(1, 2), cos, sin)
        k = apply_rotary(k.view(B, T, self.n_kv_head, self.head_dim).transpose(1, 2), cos, sin)
        v = v.view(B, T, self.n_kv_head, self.head_dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.n_embd, config.d_ff, bias=False)
        self.w3 = nn.Linear(config.n_embd, config.d_ff, bias=False)
        self.w2 = nn.Linear(config.d_ff, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of x."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.RMSNorm(config.n_embd, eps=1e-5), nn.RMSNorm(config.n_embd, eps=1e-5)
        self.attn, self.mlp = Attention(config), MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        x = x + self.attn(self.ln_1(x), cos, sin)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The model, with its loss."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        generator = torch_generator(0, "plain loop")
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02, generator=generator)
        width = config.n_embd // config.n_head
        frequencies = config.rope_theta ** (-torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(config.block_size).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of idx and targets, (batch, seq) each."""
        x = self.wte(idx)
        for block in self.h:
            x = block(x, self.cos, self.sin)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_batch(data: np.memmap, config: Config, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (batch, seq) at random offsets."""
    offsets = generator.integers(0, len(data) - config.block_size, config.batch_size)
    x = torch.stack([torch.from_numpy(data[i : i + config.block_size].astype(np.int64)) for i in offsets])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + config.block_size].astype(np.int64)) for i in offsets])
    return x, y


def train(
    config: Config, tokens: Path, dtype: np.dtype[np.generic], *, bfloat16: bool, compiled: bool
) -> Iterator[float]:
    """Do one optimiser step each time the next loss is asked for; threads and product precision are the caller's."""
    data = np.memmap(tokens, dtype=dtype, mode="r")
    generator = numpy_generator(0)
    model = GPT(config)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)
    model.train()
    run = torch.compile(model) if compiled else model
    while True:
        x, y = get_batch(data, config, generator)
        with torch.autocast("cpu", dtype=torch.bfloat16) if bfloat16 else nullcontext():
            loss = run(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()
