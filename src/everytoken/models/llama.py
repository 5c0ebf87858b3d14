"""A Llama-style decoder: grouped-query attention with RoPE, SwiGLU, pre-norm, no biases.

    x_0     = E[tokens]
    v       = x + W_o . attention(RoPE(W_q n1), RoPE(W_k n1), W_v n1),   n1 = RMSNorm(x)
    x_next  = v + W_d . (silu(W_g n2) * W_u n2),                         n2 = RMSNorm(v)
    logits  = E . RMSNorm(x_last)          (or a matrix of its own instead of E: tied_embeddings false)

Sources: Touvron et al. 2023 (LLaMA), Ainslie et al. 2023 (GQA), Su et al. 2021 (RoPE, here with the
half-split pairing (x_j, x_{j + D/2}) of the public LLaMA checkpoints in Hugging Face form), Shazeer 2020
(SwiGLU).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, scaled_dot_product_attention

from everytoken.models.causal_attention import causal_attention, document_mask
from everytoken.models.elementwise import RMSNorm, in_dtype_of, rope_tables, rotate, swiglu
from everytoken.models.errors import ModelsError
from everytoken.models.growing import visible_of_cached, written
from everytoken.models.language_model import Cache, LanguageModel, recomputed
from everytoken.models.parameters import LlamaParameters
from everytoken.seeds import torch_generator


class KeyValueCache:
    """Rotated keys and values (batch, n_kv_heads, length, head width) of every layer.

    The tensors have room for more positions than they hold: a new token is written and nothing is copied.
    """

    def __init__(self, n_layers: int) -> None:
        self.length = 0
        self._layers: list[tuple[Tensor, Tensor] | None] = [None] * n_layers

    def extend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new positions of one layer; return all keys and values of that layer."""
        first, second = self._layers[layer] or (None, None)
        held = written(keys, first, self.length, 2), written(values, second, self.length, 2)
        self._layers[layer] = held
        end = self.length + keys.shape[2]
        return held[0][:, :, :end], held[1][:, :, :end]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Append the new positions of one layer; return what its queries (batch, n_heads, seq, head width) mix."""
        past, seq = self.length, queries.shape[2]
        keys, values = self.extend(layer, keys, values)
        mask = visible_of_cached(past, seq, queries.device)
        return scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=past == 0 and seq > 1, enable_gqa=True
        )

    @property
    def bytes(self) -> int:
        """Bytes of its tensors, with the room for positions to come."""
        return sum(x.nbytes for held in self._layers if held is not None for x in held)

    can_truncate = True
    taken = None

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self.length = min(self.length, length)

    def clone(self) -> KeyValueCache:
        """Return a copy that shares no tensor with this one."""
        copied = KeyValueCache(len(self._layers))
        copied.length = self.length
        copied._layers = [None if held is None else (held[0].clone(), held[1].clone()) for held in self._layers]
        return copied


class SideBySide:
    """Caches of sequences of different lengths, each of a batch of one: a token of each is read at a time.

    Each sequence attends alone, so its state depends on no other sequence. The products of a layer are of all.
    """

    def __init__(self, caches: Sequence[KeyValueCache]) -> None:
        self.caches = list(caches)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Do what `KeyValueCache.attend` does for each sequence (batch) with its own cache."""
        each = zip(*(torch.split(new, 1) for new in (queries, keys, values)), strict=True)
        return torch.cat([cache.attend(layer, *new) for cache, new in zip(self.caches, each, strict=True)])


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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor | None) -> Tensor:
        """Return the residual stream (batch, seq, d_model) after this layer.

        cos and sin (batch or 1, seq, 1, head width / 2) of each position; ``visible`` bool (batch, 1, seq, seq), true
        where a query (third axis) sees a key, or None for all up to its own.
        """
        queries, keys, values = self._queries_keys_values(x, cos, sin)
        if visible is None and queries.requires_grad and x.device.type == "cpu" and not torch.compiler.is_compiling():
            return self._after_attention(x, causal_attention(queries, keys, values))
        queries, keys, values = (heads.transpose(1, 2) for heads in (queries, keys, values))
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, is_causal=visible is None, enable_gqa=True
        )
        return self._after_attention(x, mixed.transpose(1, 2))

    def extend(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyValueCache | SideBySide, layer: int) -> Tensor:
        """Return what ``forward`` does for positions that follow those in the cache, which is extended."""
        queries, keys, values = (heads.transpose(1, 2) for heads in self._queries_keys_values(x, cos, sin))
        return self._after_attention(x, cache.attend(layer, queries, keys, values).transpose(1, 2))

    def _queries_keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries (batch, seq, n_heads, head width), rotated keys and values (.., n_kv_heads, ..)."""
        batch, seq, _ = x.shape
        heads = in_dtype_of(self.query_key_value, self.attention_norm(x)).view(batch, seq, -1, self.head_width)
        turning, values = torch.split(heads, [self.n_heads + self.n_kv_heads, self.n_kv_heads], dim=2)
        queries, keys = torch.split(rotate(turning, cos, sin), [self.n_heads, self.n_kv_heads], dim=2)
        return queries, keys, values

    def _after_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the residual stream after attention's output (batch, seq, n_heads, head width) and SwiGLU."""
        x = x + in_dtype_of(self.attention_output, mixed.flatten(2))
        return x + in_dtype_of(self.down, swiglu(in_dtype_of(self.gate_up, self.feed_forward_norm(x))))


class Llama(LanguageModel):
    """The decoder; `initialise_llama` or a checkpoint has to fill its matrices."""

    def __init__(self, parameters: LlamaParameters, *, vocab_size: int, max_seq_len: int) -> None:
        super().__init__(vocab_size=vocab_size, max_seq_len=max_seq_len)
        self.n_layers = parameters.n_layers
        self.embedding = nn.Parameter(torch.empty(vocab_size, parameters.d_model))
        self.output = None if parameters.tied_embeddings else nn.Parameter(torch.empty(vocab_size, parameters.d_model))
        self.blocks = nn.ModuleList(Block(parameters) for _ in range(parameters.n_layers))
        self.final_norm = RMSNorm(parameters.d_model, parameters.norm_eps)
        cos, sin = rope_tables(max_seq_len, parameters.d_model // parameters.n_heads, parameters.rope_theta)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def hidden_states(self, tokens: Tensor, cache: Cache | None = None, documents: Tensor | None = None) -> Tensor:
        """Return the normalised final states (batch, seq, d_model) of int64 tokens (batch, seq)."""
        self.check_documents(tokens, cache, documents)
        start, end = self.checked_positions(tokens, cache.length if cache is not None else 0)
        visible, cos, sin = None, self.cos[start:end], self.sin[start:end]
        if documents is not None:
            visible, positions = document_mask(documents)
            cos, sin = self.cos[positions], self.sin[positions]  # (batch, seq, head width / 2)
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same for every head
        x = embedding(tokens, self.embedding)  # (batch, seq, d_model)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # the residual stream of a bfloat16 model is float32
        if cache is not None:
            x = self._extended(x, cos, sin, cache)
            cache.length = end
        else:
            again = self.activation_checkpointing and torch.is_grad_enabled()
            for block in self.blocks:
                x = recomputed(block, x, cos, sin, visible) if again else block(x, cos, sin, visible)
        return cast(Tensor, self.final_norm(x))

    def _extended(self, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache) -> Tensor:
        if not isinstance(cache, KeyValueCache):
            raise ModelsError(f"a llama needs a KeyValueCache (model.new_cache()), found {type(cache).__name__}")
        for layer, block in enumerate(self.blocks):
            x = cast(Block, block).extend(x, cos, sin, cache, layer)
        return x

    def next_states(self, tokens: Tensor, caches: Sequence[KeyValueCache]) -> Tensor:
        """Return the final states (batch, 1, d_model) of one more token of each of several sequences.

        Args:
            tokens: (batch, 1), int64.
            caches: of the sequences, each of a batch of one, extended in place.

        Raises:
            ModelsError: a sequence has no room left.
        """
        for cache in caches:
            self.checked_positions(tokens[:1], cache.length)
        positions = torch.tensor([[cache.length] for cache in caches], device=tokens.device)
        cos, sin = self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)  # (batch, 1, 1, width / 2)
        x, together = embedding(tokens, self.embedding), SideBySide(caches)
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        for layer, block in enumerate(self.blocks):
            x = cast(Block, block).extend(x, cos, sin, together, layer)
        for cache in caches:
            cache.length += 1
        return cast(Tensor, self.final_norm(x))

    def layers(self) -> Sequence[nn.Module]:
        """Return the decoder layers, first to last."""
        return cast(Sequence[nn.Module], self.blocks)

    def flop_per_token(self, seq_length: int) -> float:
        """Return ``6 N + 6 L d S``: N entries of matrices, attention over S positions of which half are seen.

        The input embedding is a look-up and no product; the output matrix is one, tied or not.
        """
        matrices = sum(parameter.numel() for parameter in self.blocks.parameters() if parameter.ndim == 2)
        matrices += self.output_weight().numel()
        return 6.0 * matrices + 6.0 * self.n_layers * self.embedding.shape[1] * seq_length

    def output_weight(self) -> Tensor:
        """Return the output matrix (vocab_size, d_model): the embedding when they are tied."""
        return self.embedding if self.output is None else self.output

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
