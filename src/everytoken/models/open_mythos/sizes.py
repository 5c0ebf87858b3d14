"""The formulas of `everytoken.models.sizes` for the looped family; the same symbols.

E experts of width f, of which a token reaches K, one shared expert of width s; T loops, of which a training step takes
the most that its depth policy draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from everytoken.models.counts import Precision, SparseParameterCounts, attention_bytes, bytes_of, norm_bytes
from everytoken.models.parameters import (
    FixedDepth,
    GroupedQueryParameters,
    LatentAttentionParameters,
    NoHalting,
    OpenMythosParameters,
    PoissonDepth,
    UniformDepth,
)

ROW_BLOCK = 64  # rows that experts compute at a time on a CPU (`everytoken.models.open_mythos.dispatch`)


@dataclass(frozen=True)
class OpenMythosSizes:
    """What `everytoken.models.sizes` says of a model of these parameters."""

    parameters: OpenMythosParameters

    def parameter_counts(self, vocab_size: int) -> SparseParameterCounts:
        """Return V d, what all blocks have, and what the loops share.

        A mixture is 3 d f E + 3 d s + E d; routers count as feed-forward. The recurrence is 2 d r + T r + 3 d, and
        d + 1 where positions halt.
        """
        d, experts = self.parameters.d_model, self.parameters.experts
        blocks, sparse = _blocks(self.parameters), _sparse_blocks(self.parameters)
        dense = (blocks - sparse) * 3 * d * (self.parameters.d_ff or 0)
        recurrence = self.parameters.lora_rank * (2 * d + self.parameters.max_loops) + 3 * d
        if not isinstance(self.parameters.halting, NoHalting):
            recurrence += d + 1
        return SparseParameterCounts(
            embedding=vocab_size * d,
            output=0,
            attention=blocks * _attention_matrices(self.parameters),
            feed_forward=dense + sparse * (3 * d * _shared_width(self.parameters) + experts.n_experts * d),
            norms=blocks * _norms(self.parameters) + 2 * d,
            active_experts=sparse * experts.per_token * 3 * d * experts.d_ff,
            idle_experts=sparse * (experts.n_experts - experts.per_token) * 3 * d * experts.d_ff,
            recurrence=recurrence,
        )

    def layer_parameter_counts(self) -> tuple[int, ...]:
        """Return those of the prelude, of the looped block, and of the coda."""
        d, experts = self.parameters.d_model, self.parameters.experts
        rest = _attention_matrices(self.parameters) + _norms(self.parameters)
        sparse = (
            rest + 3 * d * (experts.n_experts * experts.d_ff + _shared_width(self.parameters)) + experts.n_experts * d
        )
        dense = sparse if self.parameters.d_ff is None else rest + 3 * d * self.parameters.d_ff
        return (dense,) * self.parameters.prelude_layers + (sparse,) + (dense,) * self.parameters.coda_layers

    def largest_tensor(self, vocab_size: int) -> int:
        """Return V d, or the gates of all experts, 2 E f d."""
        return self.parameters.d_model * max(
            vocab_size, 2 * self.parameters.experts.n_experts * self.parameters.experts.d_ff
        )

    def layer_activation_bytes(self, precision: Precision, seq_length: int) -> tuple[int, ...]:
        """Return what each run of a block keeps, and with each loop what is around it.

        - A mixture: the router's input and scores, 4 d + 16 E; the K rows and their results, 3 b K d; gate, up,
          silu(gate) and the product of the two of K experts, and of the shared one, 4 b (K f + s); places of the
          choices, 60 K. Rows of zeros fill blocks of B rows (`dispatch.in_blocks`): of one window of S tokens at most
          B / S b (E (d + 4 f) + d + 4 s).
        - Around a loop: input and output of its norm, the injected state, the adapter, 8 d + b (d + 2 r) + 4 d.
        """
        number, d = bytes_of(precision), self.parameters.d_model
        rest = 2 * norm_bytes(precision, d) + _kept_by_attention(self.parameters, precision, seq_length)
        sparse = rest + _kept_by_experts(self.parameters, precision, seq_length)
        dense = sparse if self.parameters.d_ff is None else rest + 4 * number * self.parameters.d_ff
        loop = sparse + _kept_around(self.parameters, precision)
        return _of_runs(self.parameters, dense, loop)

    def layer_input_bytes(self) -> tuple[int, ...]:
        """Return the same with activation checkpointing: the input of a block, and what is around a loop."""
        stream = 4 * self.parameters.d_model
        return _of_runs(self.parameters, stream, stream + _kept_around(self.parameters, "float32"))

    def layer_inference_bytes(self, precision: Precision, *, queries: int, keys: int) -> int:
        """Return the most bytes that one block holds of one sequence where nothing is kept for a backward pass.

        As for a Llama; the state, its injection and the output of a loop are 3 * 4 d more for each query.
        """
        number, d, heads = bytes_of(precision), self.parameters.d_model, self.parameters.n_heads
        projected, value = _projected_widths(self.parameters), heads * _value_width(self.parameters)
        scores = queries * keys * (2 * heads * number + number + 1) + keys * number * (projected + value)
        experts = self.parameters.experts
        sparse = 4 * number * (experts.per_token * experts.d_ff + _shared_width(self.parameters))
        sparse += 3 * number * experts.per_token * d + 4 * d
        dense = 4 * number * (self.parameters.d_ff or 0)
        return queries * 6 * 4 * d + max(queries * 3 * number * projected + scores, queries * max(sparse, dense))

    def cache_bytes_per_token(self, precision: Precision) -> int:
        """Return b times what attention remembers of a token, for each run of a block: prelude, T loops, coda."""
        match self.parameters.attention:
            case GroupedQueryParameters(n_kv_heads=groups):
                width = 2 * groups * (self.parameters.d_model // self.parameters.n_heads)
            case LatentAttentionParameters(kv_lora=kv_lora, rope=rope):
                width = kv_lora + rope
        slots = self.parameters.prelude_layers + self.parameters.max_loops + self.parameters.coda_layers
        return slots * bytes_of(precision) * width


def _blocks(parameters: OpenMythosParameters) -> int:
    return parameters.prelude_layers + 1 + parameters.coda_layers


def _sparse_blocks(parameters: OpenMythosParameters) -> int:
    return 1 if parameters.experts.layers == "recurrent" else _blocks(parameters)


def _shared_width(parameters: OpenMythosParameters) -> int:
    experts = parameters.experts
    return experts.shared * experts.shared_width * experts.d_ff


def _norms(parameters: OpenMythosParameters) -> int:
    """Return the parameters of the norms of a block."""
    match parameters.attention:
        case GroupedQueryParameters():
            return 2 * parameters.d_model
        case LatentAttentionParameters(q_lora=q_lora, kv_lora=kv_lora):
            return 2 * parameters.d_model + q_lora + kv_lora


def _attention_matrices(parameters: OpenMythosParameters) -> int:
    d, heads = parameters.d_model, parameters.n_heads
    match parameters.attention:
        case GroupedQueryParameters(n_kv_heads=groups):
            return d * (d + 2 * groups * (d // heads)) + d * d
        case LatentAttentionParameters() as own:
            queries = heads * (own.nope + own.rope)
            to_queries = own.q_lora * (d + queries) if own.q_lora else d * queries
            return (
                to_queries + d * (own.kv_lora + own.rope) + own.kv_lora * heads * (own.nope + own.v) + heads * own.v * d
            )


def _projected_widths(parameters: OpenMythosParameters) -> int:
    """Return the width of the queries, keys and values of all heads."""
    d, heads = parameters.d_model, parameters.n_heads
    match parameters.attention:
        case GroupedQueryParameters(n_kv_heads=groups):
            return d + 2 * groups * (d // heads)
        case LatentAttentionParameters() as own:
            return heads * (2 * (own.nope + own.rope) + own.v)


def _value_width(parameters: OpenMythosParameters) -> int:
    match parameters.attention:
        case GroupedQueryParameters():
            return parameters.d_model // parameters.n_heads
        case LatentAttentionParameters(v=v):
            return v


def _kept_by_attention(parameters: OpenMythosParameters, precision: Precision, seq_length: int) -> int:
    d, heads, number = parameters.d_model, parameters.n_heads, bytes_of(precision)
    match parameters.attention:
        case GroupedQueryParameters(n_kv_heads=groups):
            return attention_bytes(precision, d=d, g=groups * (d // heads), heads=heads, seq_length=seq_length)
        case LatentAttentionParameters() as own:
            latents = sum(norm_bytes(precision, width) for width in (own.q_lora, own.kv_lora)) + number * own.kv_lora
            # queries and keys in their order, keys and values in one product, the output in two orders
            each = 2 * (own.nope + own.rope) + (own.nope + own.v) + 2 * own.v
            return latents + number * (own.kv_lora + own.rope + heads * each) + 4 * heads


def _kept_by_experts(parameters: OpenMythosParameters, precision: Precision, seq_length: int) -> int:
    d, experts, number = parameters.d_model, parameters.experts, bytes_of(precision)
    hidden = 4 * number * (experts.per_token * experts.d_ff + _shared_width(parameters))
    filled = experts.n_experts * (d + 4 * experts.d_ff) + d + 4 * _shared_width(parameters)
    zeros = -(-ROW_BLOCK * number * filled // seq_length)
    rows = 3 * number * experts.per_token * d
    return hidden + rows + zeros + 4 * d + 16 * experts.n_experts + 60 * experts.per_token


def _kept_around(parameters: OpenMythosParameters, precision: Precision) -> int:
    d, rank = parameters.d_model, parameters.lora_rank
    kept = 2 * 4 * d + bytes_of(precision) * (d + 2 * rank) + 4 * d
    return kept if isinstance(parameters.halting, NoHalting) else kept + 3 * 4 * d


def _of_runs(parameters: OpenMythosParameters, once: int, looped: int) -> tuple[int, ...]:
    """Return the bytes of each run: loops that have no gradient keep nothing."""
    loops = min(_most_loops(parameters), parameters.gradient_loops or _most_loops(parameters))
    return (once,) * parameters.prelude_layers + (looped,) * loops + (once,) * parameters.coda_layers


def _most_loops(parameters: OpenMythosParameters) -> int:
    """Return the most loops of a step; of a Poisson draw, which has no bound, the mean and four deviations."""
    match parameters.depth:
        case FixedDepth():
            return parameters.max_loops
        case UniformDepth(most=most):
            return most
        case PoissonDepth(mean=mean):
            return math.ceil(1 + mean + 4 * math.sqrt(mean + mean**2 * (math.exp(0.25) - 1)))
