"""The formulas of `everytoken.models.sizes` for the recurrent families.

Symbols: V tokens, d width, L layers, H heads of width P, N state width, R rank, J pairs that rotate, Q tokens of a
chunk, f hidden width of the feed-forward part, b bytes of a number in products.
"""

from __future__ import annotations

from dataclasses import dataclass

from everytoken.models.counts import Precision, RecurrentParameterCounts, bytes_of, norm_bytes
from everytoken.models.parameters import ComplexSsdParameters, Mamba3Parameters

_FLOAT64 = 8

RecurrentShape = Mamba3Parameters | ComplexSsdParameters


@dataclass(frozen=True)
class RecurrentSizes:
    """What `everytoken.models.sizes` says of a model of these parameters."""

    parameters: RecurrentShape

    def parameter_counts(self, vocab_size: int) -> RecurrentParameterCounts:
        """Return V d, the mixers' matrices and other parameters, 3 L d f, and the norms.

        A mixer of Mamba-3 has d (2 H P + 2 R N + 3 H + J) + H P d in matrices, and 2 H + 2 H R N beside them, with
        R > 1 also 3 H R P. That of the variant has d (d + 4 H N + H) + 2 d^2, and a complex number, which counts once.
        """
        d, layers = self.parameters.d_model, self.parameters.n_layers
        matrices, others, norms = _mixer(self.parameters)
        return RecurrentParameterCounts(
            embedding=vocab_size * d,
            output=0,
            attention=0,
            feed_forward=layers * 3 * d * self.parameters.d_ff,
            norms=layers * (2 * d + norms) + d,
            mixers=layers * matrices,
            rates=layers * others,
        )

    def layer_parameter_counts(self) -> tuple[int, ...]:
        """Return those of each layer."""
        counts = self.parameter_counts(vocab_size=0)
        return ((counts.total - self.parameters.d_model) // self.parameters.n_layers,) * self.parameters.n_layers

    def largest_tensor(self, vocab_size: int) -> int:
        """Return the numbers in the embedding, in gate and up, or in the projection of a mixer."""
        return self.parameters.d_model * max(vocab_size, 2 * self.parameters.d_ff, _projected(self.parameters))

    def layer_activation_bytes(self, precision: Precision) -> tuple[int, ...]:
        """Return what each layer keeps of one token, at most; it does not depend on the length of a window.

        - Norms and feed-forward part: as in a Llama.
        - The mixer of Mamba-3: its projection, (b + 4) a number; queries and keys before and after they turn, 16 R H N;
          weights and scores of a chunk, H Q (8 + 2 b R^2); values, gates and outputs, 20 H P or 32 R H P; the states
          between chunks, 3 b H P N / Q; phases, 8 b H J.
        - The mixer of the variant: (8 b + 20) H N, H Q (8 + 2 b), (2 b + 8) H P N / Q, and (5 b + 4) d.
        - 48 H + 64 for rates.
        """
        number, d = bytes_of(precision), self.parameters.d_model
        kept = 2 * norm_bytes(precision, d) + 4 * number * self.parameters.d_ff + 48 * self.parameters.n_heads + 64
        heads, chunk = self.parameters.n_heads, self.parameters.chunk
        match self.parameters:
            case Mamba3Parameters(rank=rank, head_width=width, state_width=state):
                kept += (number + 4) * _projected(self.parameters) + 16 * rank * heads * state
                kept += heads * chunk * (8 + 2 * number * rank**2)
                kept += (20 if rank == 1 else 32 * rank) * heads * width
                kept += 3 * number * heads * width * state // chunk
                kept += 8 * number * heads * self.parameters.rotated_pairs
            case ComplexSsdParameters(state_width=state):
                kept += (8 * number + 20) * heads * state + heads * chunk * (8 + 2 * number)
                kept += (2 * number + 8) * d * state // chunk + (5 * number + 4) * d
        return (kept,) * self.parameters.n_layers

    def layer_input_bytes(self) -> tuple[int, ...]:
        """Return the bytes of one token's residual stream, for each layer."""
        return (4 * self.parameters.d_model,) * self.parameters.n_layers

    def layer_inference_bytes(self, precision: Precision, *, queries: int) -> int:
        """Return the most bytes that one layer holds of one sequence: no more than a backward pass would keep."""
        return queries * self.layer_activation_bytes(precision)[0]

    def state_bytes_of_sequence(self) -> int:
        """Return the bytes of the state of one sequence in all layers, whatever its length.

        Phases are float64, everything else float32: 8 H J + 4 (H P N + H R N + H P), or 8 H + 8 H P N for the variant.
        """
        heads = self.parameters.n_heads
        match self.parameters:
            case Mamba3Parameters(rank=rank, head_width=width, state_width=state):
                numbers = heads * (width * state + rank * state + width)
                return self.parameters.n_layers * (_FLOAT64 * heads * self.parameters.rotated_pairs + 4 * numbers)
            case ComplexSsdParameters(state_width=state):
                return self.parameters.n_layers * (_FLOAT64 * heads + 4 * 2 * self.parameters.d_model * state)


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
