"""Two attentions behind one interface: `project` a state, then let its queries `attend` to what is remembered.

What is remembered of a position are two tensors (batch, seq, ...), so that a cache and the rule for halted positions
need not know which attention it is.

Grouped-query attention (Ainslie et al. 2023) remembers rotated keys and values. Latent attention (DeepSeek-AI 2024)
remembers a latent c and one rotated key that all heads share, ``kv_lora + rope`` numbers::

    q = W_qu norm(W_qd x) -> per head (q_n, q_r),  q_r rotated
    (c~, k_r) = W_kvd x,  c = norm(c~),  k_r rotated
    per head: (k_n, v) = W_kvu c
    score = (q_n . k_n + q_r . k_r) / sqrt(nope + rope),   out = W_o concat(softmax(score) v)

One query needs no keys and values of each head: with W_kvu split into U_k and U_v, ``q_n . k_n = (U_k^T q_n) . c``, and
``out = U_v (sum_j p_j c_j)``. This absorbed form is used where one token is read.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from everytoken.models.causal_attention import causal_attention
from everytoken.models.elementwise import RMSNorm, in_dtype_of, rotate
from everytoken.models.parameters import GroupedQueryParameters, LatentAttentionParameters, OpenMythosParameters

Memory = tuple[Tensor, Tensor]


class GroupedQueryAttention(nn.Module):
    """Memory: rotated keys and values, each (batch, seq, n_kv_heads, head width)."""

    def __init__(self, d_model: int, n_heads: int, parameters: GroupedQueryParameters) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, parameters.n_kv_heads
        self.head_width = d_model // n_heads
        self.query_key_value = nn.Parameter(torch.empty((n_heads + 2 * self.n_kv_heads) * self.head_width, d_model))
        self.output = nn.Parameter(torch.empty(d_model, d_model))

    def score_width(self) -> int:
        """Return the widths of query and value of all heads together."""
        return 2 * self.n_heads * self.head_width

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Memory]:
        """Return queries (batch, seq, n_heads, head width) and the memory of x (batch, seq, d_model)."""
        batch, seq, _ = x.shape
        heads = in_dtype_of(self.query_key_value, x).view(batch, seq, -1, self.head_width)
        turning, values = _parts(heads, [self.n_heads + self.n_kv_heads, self.n_kv_heads], dim=2)
        queries, keys = _parts(rotate(turning, cos, sin), [self.n_heads, self.n_kv_heads], dim=2)
        return queries, (keys, values)

    def attend(self, queries: Tensor, memory: Memory, visible: Tensor | None) -> Tensor:
        """Return (batch, seq, d_model). ``visible`` bool (batch or 1, 1, seq, length): which keys a query sees.

        None: all of them for one query, else each query's own and earlier ones.
        """
        mixed = _causal(queries, *memory) if visible is None else _masked(queries, *memory, visible)
        return in_dtype_of(self.output, mixed.flatten(2))


class LatentAttention(nn.Module):
    """Memory: the normalised latent (batch, seq, kv_lora) and the shared rotated key (batch, seq, rope)."""

    def __init__(self, d_model: int, n_heads: int, parameters: LatentAttentionParameters, norm_eps: float) -> None:
        super().__init__()
        p = self.widths = parameters
        self.n_heads = n_heads
        self.query_down = nn.Parameter(torch.empty(p.q_lora, d_model)) if p.q_lora else None
        self.query_norm = RMSNorm(p.q_lora, norm_eps) if p.q_lora else None
        self.query_up = nn.Parameter(torch.empty(n_heads * (p.nope + p.rope), p.q_lora or d_model))
        self.key_value_down = nn.Parameter(torch.empty(p.kv_lora + p.rope, d_model))
        self.key_value_norm = RMSNorm(p.kv_lora, norm_eps)
        self.key_value_up = nn.Parameter(torch.empty(n_heads * (p.nope + p.v), p.kv_lora))
        self.output = nn.Parameter(torch.empty(d_model, n_heads * p.v))

    def score_width(self) -> int:
        """Return the widths of query and value of all heads together."""
        return self.n_heads * (self.widths.nope + self.widths.rope + self.widths.v)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Memory]:
        """Return queries (batch, seq, n_heads, nope + rope) and the memory of x (batch, seq, d_model)."""
        batch, seq, _ = x.shape
        p = self.widths
        if self.query_down is not None and self.query_norm is not None:
            queries = in_dtype_of(self.query_up, self.query_norm(in_dtype_of(self.query_down, x)))
        else:
            queries = in_dtype_of(self.query_up, x)
        plain, turning = torch.split(queries.view(batch, seq, self.n_heads, -1), [p.nope, p.rope], dim=-1)
        latent, key = torch.split(in_dtype_of(self.key_value_down, x), [p.kv_lora, p.rope], dim=-1)
        # in the dtype of the products that read it, which is what a cache holds
        latent = self.key_value_norm(latent).to(latent.dtype)
        key = rotate(key, cos.squeeze(-2), sin.squeeze(-2))  # no view: see `_parts`
        return torch.cat((plain, rotate(turning, cos, sin)), dim=-1), (latent, key)

    def attend(self, queries: Tensor, memory: Memory, visible: Tensor | None) -> Tensor:
        """Return (batch, seq, d_model); ``visible`` as in `GroupedQueryAttention.attend`."""
        if queries.shape[1] == 1 and visible is None:
            return self.absorbed(queries, memory)
        return self.naive(queries, memory, visible)

    def naive(self, queries: Tensor, memory: Memory, visible: Tensor | None) -> Tensor:
        """Return what `attend` does, by keys and values of each head."""
        p, (latent, key) = self.widths, memory
        heads = in_dtype_of(self.key_value_up, latent).view(*latent.shape[:2], self.n_heads, -1)
        plain, values = torch.split(heads, [p.nope, p.v], dim=-1)
        keys = torch.cat((plain, key.unsqueeze(2).expand(-1, -1, self.n_heads, -1).to(plain.dtype)), dim=-1)
        values = pad(values, (0, p.nope + p.rope - p.v))  # kernels without a matrix of all scores want equal widths
        mixed = _causal(queries, keys, values) if visible is None else _masked(queries, keys, values, visible)
        return in_dtype_of(self.output, mixed[..., : p.v].flatten(2))

    def absorbed(self, queries: Tensor, memory: Memory) -> Tensor:
        """Return what `attend` does for one query (batch, 1, n_heads, nope + rope) that sees the whole memory."""
        p, (latent, key) = self.widths, memory
        ups = self.key_value_up.view(self.n_heads, p.nope + p.v, p.kv_lora)
        key_up, value_up = torch.split(ups, [p.nope, p.v], dim=1)
        plain, turned = torch.split(queries.squeeze(1), [p.nope, p.rope], dim=-1)  # (batch, n_heads, ...)
        absorbed = torch.einsum("bhn,hnc->bhc", plain.to(key_up.dtype), key_up)
        scores = absorbed @ latent.transpose(1, 2) + turned @ key.transpose(1, 2)  # (batch, n_heads, length)
        wide = torch.promote_types(scores.dtype, torch.float32)
        weights = torch.softmax(scores.to(wide) * (p.nope + p.rope) ** -0.5, dim=-1).to(latent.dtype)
        values = torch.einsum("bhc,hvc->bhv", weights @ latent, value_up)
        return in_dtype_of(self.output, values.flatten(1)).unsqueeze(1)


def make_attention(parameters: OpenMythosParameters) -> GroupedQueryAttention | LatentAttention:
    """Return the attention of a block, its matrices uninitialised."""
    match parameters.attention:
        case GroupedQueryParameters() as own:
            return GroupedQueryAttention(parameters.d_model, parameters.n_heads, own)
        case LatentAttentionParameters() as own:
            return LatentAttention(parameters.d_model, parameters.n_heads, own, parameters.norm_eps)


def rotated_width(parameters: OpenMythosParameters) -> int:
    """Return how many numbers of a query have a rotary position."""
    match parameters.attention:
        case GroupedQueryParameters():
            return parameters.d_model // parameters.n_heads
        case LatentAttentionParameters(rope=rope):
            return rope


def _parts(x: Tensor, widths: list[int], dim: int) -> list[Tensor]:
    """Return what ``torch.split`` does, as tensors that autograd does not count as views.

    FSDP2 has a hook on what a sharded block returns, which is the memory too. On a view an operation in place would
    silently remove it, so FSDP2 warns of views. Nothing here writes in place.
    """
    return list(torch.unsafe_split_with_sizes(x, widths, dim))


def _causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    if queries.requires_grad and queries.device.type == "cpu" and not torch.compiler.is_compiling():
        return causal_attention(queries, keys, values)
    return _masked(queries, keys, values, None)


def _masked(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    """Return (batch, seq, heads, value width) of queries, keys and values (batch, ..., heads or groups, width)."""
    queries, keys, values = (heads.transpose(1, 2) for heads in (queries, keys, values))
    causal = visible is None and queries.shape[2] > 1
    mixed = scaled_dot_product_attention(
        queries, keys, values, attn_mask=visible, is_causal=causal, enable_gqa=keys.shape[1] != queries.shape[1]
    )
    return mixed.transpose(1, 2)
