"""A Llama-style decoder: grouped-query attention with RoPE, SwiGLU, pre-norm, tied embedding, no biases.

    x_0     = E[tokens]
    v       = x + W_o . attention(RoPE(W_q n1), RoPE(W_k n1), W_v n1),   n1 = RMSNorm(x)
    x_next  = v + W_d . (silu(W_g n2) * W_u n2),                         n2 = RMSNorm(v)
    logits  = E . RMSNorm(x_last)

Sources: Touvron et al. 2023 (LLaMA), Ainslie et al. 2023 (GQA), Su et al. 2021 (RoPE, here with the
half-split pairing (x_j, x_{j + D/2}) of the public LLaMA checkpoints in Hugging Face form), Shazeer 2020
(SwiGLU).
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from everytoken.models.errors import ModelsError
from everytoken.models.language_model import Cache, LanguageModel
from everytoken.models.parameters import LlamaParameters
from everytoken.seeds import torch_generator


class RMSNorm(nn.Module):
    """``x * w / sqrt(mean(x^2) + eps)`` over the last axis, in at least float32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``; the dtype is at least float32."""
        # promote_types and not .float(): float64 models must stay float64
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rope_tables(max_seq_len: int, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin of ``position * theta^(-2j/width)``, each (max_seq_len, width / 2) float32.

    Computed in float64 and stored as two real tables: a complex one loses its imaginary part in
    ``module.to(bfloat16)``.
    """
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x_j, x_{j + D/2}) of x (batch, heads, seq, D) by its positions' angles (seq, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class KeyValueCache:
    """Rotated keys and values (batch, n_kv_heads, length, head width) of every layer."""

    def __init__(self, n_layers: int) -> None:
        self.length = 0
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * n_layers

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new positions of one layer; return all keys and values of that layer."""
        held = self._layers[layer]
        if held is not None:
            keys, values = torch.cat((held[0], keys), dim=2), torch.cat((held[1], values), dim=2)
        self._layers[layer] = (keys, values)
        return keys, values


class Block(nn.Module):
    """One decoder layer; its four matrices are kept as plain parameters (out, in)."""

    def __init__(self, parameters: LlamaParameters) -> None:
        super().__init__()
        d, kv_heads = parameters.d_model, parameters.n_kv_heads
        self.n_heads, self.n_kv_heads, self.head_width = parameters.n_heads, kv_heads, d // parameters.n_heads
        self.attention_norm = RMSNorm(d, parameters.norm_eps)
        self.query_key_value = nn.Parameter(torch.empty((parameters.n_heads + 2 * kv_heads) * self.head_width, d))
        self.attention_output = nn.Parameter(torch.empty(d, d))
        self.feed_forward_norm = RMSNorm(d, parameters.norm_eps)
        self.gate_up = nn.Parameter(torch.empty(2 * parameters.d_ff, d))
        self.down = nn.Parameter(torch.empty(d, parameters.d_ff))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None, layer: int) -> Tensor:
        """Return the residual stream (batch, seq, d_model) after this layer."""
        x = x + self._attention(self.attention_norm(x), cos, sin, cache, layer)
        gate, up = linear(self.feed_forward_norm(x), self.gate_up).chunk(2, dim=-1)  # (batch, seq, d_ff) each
        return x + linear(silu(gate) * up, self.down)

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | None, layer: int) -> Tensor:
        batch, seq, _ = x.shape
        heads = linear(x, self.query_key_value).view(batch, seq, -1, self.head_width).transpose(1, 2)
        # (batch, n_heads | n_kv_heads | n_kv_heads, seq, head width)
        queries, keys, values = torch.split(heads, [self.n_heads, self.n_kv_heads, self.n_kv_heads], dim=1)
        queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        past = 0
        if cache is not None:
            past = cache.length
            keys, values = cache.extend(layer, keys, values)
        mask = None
        if past and seq > 1:  # key j is visible to query i when j <= past + i; is_causal would align it to the start
            mask = torch.ones(seq, past + seq, dtype=torch.bool, device=x.device).tril(past)
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=past == 0 and seq > 1, enable_gqa=True
        )
        return linear(mixed.transpose(1, 2).reshape(batch, seq, -1), self.attention_output)


class Llama(LanguageModel):
    """The decoder; `initialise_llama` or a checkpoint has to fill its matrices."""

    def __init__(self, parameters: LlamaParameters, *, vocab_size: int, max_seq_len: int) -> None:
        super().__init__(vocab_size=vocab_size, max_seq_len=max_seq_len)
        self.n_layers = parameters.n_layers
        self.embedding = nn.Parameter(torch.empty(vocab_size, parameters.d_model))
        self.blocks = nn.ModuleList(Block(parameters) for _ in range(parameters.n_layers))
        self.final_norm = RMSNorm(parameters.d_model, parameters.norm_eps)
        cos, sin = rope_tables(max_seq_len, parameters.d_model // parameters.n_heads, parameters.rope_theta)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def hidden_states(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the normalised final states (batch, seq, d_model) of int64 tokens (batch, seq)."""
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise ModelsError(f"a llama needs a KeyValueCache (model.new_cache()), found {type(cache).__name__}")
        start, end = self.checked_positions(tokens, cache.length if cache is not None else 0)
        cos, sin = self.cos[start:end], self.sin[start:end]
        x = embedding(tokens, self.embedding)  # (batch, seq, d_model)
        for layer, block in enumerate(self.blocks):
            x = block(x, cos, sin, cache, layer)
        if cache is not None:
            cache.length = end
        return cast(Tensor, self.final_norm(x))

    def output_weight(self) -> Tensor:
        """Return the tied embedding (vocab_size, d_model)."""
        return self.embedding

    def new_cache(self) -> KeyValueCache:
        """Return an empty key-value cache."""
        return KeyValueCache(self.n_layers)


def initialise_llama(model: Llama, parameters: LlamaParameters, seed: int) -> None:
    """Draw every matrix from N(0, init_std^2) with its own generator; norms are 1 already.

    The two matrices that write to the residual stream (attention output, down) have init_std /
    sqrt(2 n_layers), so that the stream's variance does not grow with depth (GPT-2). A draw depends on (seed,
    name of the matrix) alone.
    """
    residual_std = parameters.init_std / math.sqrt(2 * parameters.n_layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            std = residual_std if name.endswith(("attention_output", "down")) else parameters.init_std
            nn.init.normal_(parameter, std=std, generator=torch_generator(seed, "initialisation", name))


def llama_parameter_count(parameters: LlamaParameters, vocab_size: int) -> int:
    """Return V d + L (d (H + 2G) h + H h d + 3 d f + 2 d) + d with h = d / H, without building the model."""
    d, heads, kv_heads = parameters.d_model, parameters.n_heads, parameters.n_kv_heads
    attention = d * (heads + 2 * kv_heads) * (d // heads) + d * d
    block = attention + 3 * d * parameters.d_ff + 2 * d
    return vocab_size * d + parameters.n_layers * block + d
