"""How large a model is, from its parameters alone: numbers by kind, and bytes of what a backward pass keeps.

Nothing is built and torch is not imported. Symbols: V tokens, d width, L layers, H heads and G key-value heads of width
d / H, g = G d / H, f hidden width of the feed-forward. The formulas of the other families are in
`everytoken.models.open_mythos.sizes` and `everytoken.models.mamba3.sizes`.
"""

from __future__ import annotations

from everytoken.models.counts import ParameterCounts, Precision, attention_bytes, bytes_of, norm_bytes
from everytoken.models.mamba3 import RecurrentSizes
from everytoken.models.open_mythos import OpenMythosSizes
from everytoken.models.parameters import LlamaParameters, ModelParameters


def parameter_counts(parameters: ModelParameters, vocab_size: int) -> ParameterCounts:
    """Return V d, the same for an output matrix of its own, L (d (d + 2 g) + d^2), 3 L d f, and (2 L + 1) d."""
    match parameters.family:
        case "llama":
            d, layers = parameters.d_model, parameters.n_layers
            return ParameterCounts(
                embedding=vocab_size * d,
                output=0 if parameters.tied_embeddings else vocab_size * d,
                attention=layers * (d * (d + 2 * _key_value_width(parameters)) + d * d),
                feed_forward=layers * 3 * d * parameters.d_ff,
                norms=(2 * layers + 1) * d,
            )
        case "open_mythos":
            return OpenMythosSizes(parameters).parameter_counts(vocab_size)
        case "mamba3" | "complex_ssd_lite":
            return RecurrentSizes(parameters).parameter_counts(vocab_size)


def layer_parameter_counts(parameters: ModelParameters) -> tuple[int, ...]:
    """Return the number of parameters of each layer."""
    match parameters.family:
        case "llama":
            counts = parameter_counts(parameters, vocab_size=0)
            return ((counts.total - parameters.d_model) // parameters.n_layers,) * parameters.n_layers
        case "open_mythos":
            return OpenMythosSizes(parameters).layer_parameter_counts()
        case "mamba3" | "complex_ssd_lite":
            return RecurrentSizes(parameters).layer_parameter_counts()


def largest_tensor(parameters: ModelParameters, vocab_size: int) -> int:
    """Return the numbers in the largest of the embeddings and matrices."""
    match parameters.family:
        case "llama":
            return parameters.d_model * max(vocab_size, parameters.d_ff)
        case "open_mythos":
            return OpenMythosSizes(parameters).largest_tensor(vocab_size)
        case "mamba3" | "complex_ssd_lite":
            return RecurrentSizes(parameters).largest_tensor(vocab_size)


def layer_activation_bytes(parameters: ModelParameters, precision: Precision, seq_length: int) -> tuple[int, ...]:
    """Return the bytes that each layer keeps of one token between its forward and its backward pass, at most.

    A layer that runs several times is there as often. With b bytes a number in products (4 for float32, 2 under
    bfloat16 autocast, where the residual stream and the norms stay float32):

    - each of the two norms: its input and its factor, 4 d + 4; the input of the product behind it, b d;
    - attention: the product of which the values are a part, b (d + 2 g); rotated queries and keys, b (d + g); output,
      and output in the order of its product, 2 b d; a sum for each head, 4 H; on a CPU, in windows of S up to 8 head
      widths, also the probabilities, about b H S / 2 (`everytoken.models.causal_attention`; with several groups it
      keeps up to 2 b d less of the rest);
    - feed-forward: gate, up, silu(gate) and the product of the two, 4 b f.
    """
    match parameters.family:
        case "llama":
            d, g, heads = parameters.d_model, _key_value_width(parameters), parameters.n_heads
            attention = attention_bytes(precision, d=d, g=g, heads=heads, seq_length=seq_length)
            feed_forward = 4 * bytes_of(precision) * parameters.d_ff
            return (2 * norm_bytes(precision, d) + attention + feed_forward,) * parameters.n_layers
        case "open_mythos":
            return OpenMythosSizes(parameters).layer_activation_bytes(precision, seq_length)
        case "mamba3" | "complex_ssd_lite":
            return RecurrentSizes(parameters).layer_activation_bytes(precision)


def layer_input_bytes(parameters: ModelParameters) -> tuple[int, ...]:
    """Return the bytes that each layer keeps of one token with activation checkpointing: its residual stream."""
    match parameters.family:
        case "llama":
            return (4 * parameters.d_model,) * parameters.n_layers
        case "open_mythos":
            return OpenMythosSizes(parameters).layer_input_bytes()
        case "mamba3" | "complex_ssd_lite":
            return RecurrentSizes(parameters).layer_input_bytes()


def layer_inference_bytes(parameters: ModelParameters, precision: Precision, *, queries: int, keys: int) -> int:
    """Return the most bytes that one layer holds of one sequence where nothing is kept for a backward pass.

    For each query, with b bytes a number in products:

    - always the residual stream, its norm and one more of that size, 3 * 4 d;
    - in attention: the product behind queries, keys and values, these rotated, and one copy, 3 b (d + 2 g);
    - there, where torch has no fused kernel (float32 with grouped queries on a GPU): scores, probabilities, mask, and
      keys and values repeated for each head, (2 b H + b + 1) for each key and 2 b d a key;
    - in the feed-forward part: gate, up, silu(gate) and the product of the two, 4 b f.
    """
    match parameters.family:
        case "llama":
            number = bytes_of(precision)
            d, g = parameters.d_model, _key_value_width(parameters)
            scores = queries * keys * (2 * parameters.n_heads * number + number + 1) + keys * 2 * number * d
            attention = queries * 3 * number * (d + 2 * g) + scores
            return queries * 3 * 4 * d + max(attention, queries * 4 * number * parameters.d_ff)
        case "open_mythos":
            return OpenMythosSizes(parameters).layer_inference_bytes(precision, queries=queries, keys=keys)
        case "mamba3" | "complex_ssd_lite":
            return RecurrentSizes(parameters).layer_inference_bytes(precision, queries=queries)


def cache_bytes_per_token(parameters: ModelParameters, precision: Precision) -> int:
    """Return the bytes of one token in the cache of all layers: its keys and values, ``2 L b g``."""
    match parameters.family:
        case "llama":
            return 2 * parameters.n_layers * bytes_of(precision) * _key_value_width(parameters)
        case "open_mythos":
            return OpenMythosSizes(parameters).cache_bytes_per_token(precision)
        case "mamba3" | "complex_ssd_lite":
            return 0


def state_bytes(parameters: ModelParameters) -> int:
    """Return the bytes that all layers keep of a sequence whatever its length, beside those of its tokens."""
    match parameters.family:
        case "llama" | "open_mythos":
            return 0
        case "mamba3" | "complex_ssd_lite":
            return RecurrentSizes(parameters).state_bytes_of_sequence()


def _key_value_width(parameters: LlamaParameters) -> int:
    return parameters.n_kv_heads * (parameters.d_model // parameters.n_heads)
