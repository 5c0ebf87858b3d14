"""The formulas of `everytoken.models.sizes` for the recurrent families.

Symbols: V tokens, d width, L layers, H heads of width P, N state width, R rank, J pairs that rotate, Q tokens of a
chunk, f hidden width of the feed-forward part, b bytes of a number in products.
"""

from __future__ import annotations

from everytoken.models.counts import Precision, RecurrentParameterCounts, bytes_of, norm_bytes
from everytoken.models.parameters import ComplexSsdParameters, Mamba3Parameters

_FLOAT64 = 8

RecurrentShape = Mamba3Parameters | ComplexSsdParameters


def parameter_counts(parameters: RecurrentShape, vocab_size: int) -> RecurrentParameterCounts:
    """Return V d, the mixers' matrices and other parameters, 3 L d f, and the norms.

    A mixer of Mamba-3 has d (2 H P + 2 R N + 3 H + J) + H P d in matrices, and 2 H + 2 H R N beside them, with R > 1
    also 3 H R P. That of the variant has d (d + 4 H N + H) + 2 d^2, and a complex number, counted once, for each head.
    """
    d, layers = parameters.d_model, parameters.n_layers
    matrices, others, norms = _mixer(parameters)
    return RecurrentParameterCounts(
        embedding=vocab_size * d,
        output=0,
        attention=0,
        feed_forward=layers * 3 * d * parameters.d_ff,
        norms=layers * (2 * d + norms) + d,
        mixers=layers * matrices,
        rates=layers * others,
    )


def layer_parameter_counts(parameters: RecurrentShape) -> tuple[int, ...]:
    """Return those of each layer."""
    counts = parameter_counts(parameters, vocab_size=0)
    return ((counts.total - parameters.d_model) // parameters.n_layers,) * parameters.n_layers


def largest_tensor(parameters: RecurrentShape, vocab_size: int) -> int:
    """Return the numbers in the embedding, in gate and up, or in the projection of a mixer."""
    return parameters.d_model * max(vocab_size, 2 * parameters.d_ff, _projected(parameters))


def layer_activation_bytes(parameters: RecurrentShape, precision: Precision) -> tuple[int, ...]:
    """Return what each layer keeps of one token, at most; it does not depend on the length of a window.

    - Norms and feed-forward part: as in a Llama.
    - The mixer of Mamba-3: its projection, (b + 4) a number; queries and keys before and after they turn, 16 R H N;
      weights and scores of a chunk, H Q (8 + 2 b R^2); values, gates and outputs, 20 H P or 32 R H P; the states
      between chunks, 3 b H P N / Q; phases, 8 b H J.
    - The mixer of the variant: (8 b + 20) H N, H Q (8 + 2 b), (2 b + 8) H P N / Q, and (4 b + 4) d.
    - 48 H + 64 for rates.
    """
    number, d = bytes_of(precision), parameters.d_model
    kept = 2 * norm_bytes(precision, d) + 4 * number * parameters.d_ff + 48 * parameters.n_heads + 64
    heads, chunk = parameters.n_heads, parameters.chunk
    match parameters:
        case Mamba3Parameters(rank=rank, head_width=width, state_width=state):
            kept += (number + 4) * _projected(parameters) + 16 * rank * heads * state
            kept += heads * chunk * (8 + 2 * number * rank**2)
            kept += (20 if rank == 1 else 32 * rank) * heads * width
            kept += 3 * number * heads * width * state // chunk
            kept += 8 * number * heads * parameters.rotated_pairs
        case ComplexSsdParameters(state_width=state):
            kept += (8 * number + 20) * heads * state + heads * chunk * (8 + 2 * number)
            kept += (2 * number + 8) * d * state // chunk + (5 * number + 4) * d
    return (kept,) * parameters.n_layers


def layer_input_bytes(parameters: RecurrentShape) -> tuple[int, ...]:
    """Return the bytes of one token's residual stream, for each layer."""
    return (4 * parameters.d_model,) * parameters.n_layers


def layer_inference_bytes(parameters: RecurrentShape, precision: Precision, *, queries: int) -> int:
    """Return the most bytes that one layer holds of one sequence: no more than a backward pass would keep."""
    return queries * layer_activation_bytes(parameters, precision)[0]


def state_bytes(parameters: RecurrentShape) -> int:
    """Return the bytes of the state of one sequence in all layers, whatever its length.

    Phases are float64, everything else float32: 8 H J + 4 (H P N + H R N + H P), or 8 H + 8 H P N for the variant.
    """
    heads = parameters.n_heads
    match parameters:
        case Mamba3Parameters(rank=rank, head_width=width, state_width=state):
            numbers = heads * (width * state + rank * state + width)
            return parameters.n_layers * (_FLOAT64 * heads * parameters.rotated_pairs + 4 * numbers)
        case ComplexSsdParameters(state_width=state):
            return parameters.n_layers * (_FLOAT64 * heads + 4 * 2 * parameters.d_model * state)


def _projected(parameters: RecurrentShape) -> int:
    """Return the rows of the first matrix of a mixer."""
    heads = parameters.n_heads
    match parameters:
        case Mamba3Parameters(rank=rank, head_width=width, state_width=state):
            return 2 * heads * width + 2 * rank * state + 3 * heads + parameters.rotated_pairs
        case ComplexSsdParameters(state_width=state):
            return parameters.d_model + 4 * heads * state + heads


def _mixer(parameters: RecurrentShape) -> tuple[int, int, int]:
    """Return the numbers in the matrices of a mixer, in its norms, and in what else it has."""
    d, heads = parameters.d_model, parameters.n_heads
    match parameters:
        case Mamba3Parameters(rank=rank, head_width=width, state_width=state):
            scales = 3 * heads * rank * width if rank > 1 else 0
            matrices = d * (_projected(parameters) + heads * width)
            return matrices, 2 * heads + 2 * heads * rank * state + scales, 2 * state
        case ComplexSsdParameters():
            return d * (_projected(parameters) + 2 * d), heads, 0
