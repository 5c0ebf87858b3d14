"""What the loops of a model do, on held-out documents: loss by number of loops, halting, and load of the experts.

Some documents of each source are chosen by hash, and cut to the model's context. They follow one another with
an EOS before each, as in training, and are cut into windows; what is left after the last whole window is not used.
The loss is measured with 1, 2, 4 ... loops, up to twice as many as the model was built for; the rest at that number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from everytoken.models import OpenMythos
from everytoken.shards import Part
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.training.evaluation.held_out import lowest_by_hash
from everytoken.training.evaluation.statistics import LoopFigures, TokenLoops
from everytoken.training.parameters import BitsPerByteParameters, LoopParameters
from everytoken.training.step import autocast, execution, to_device, token_losses

MOST_TOKENS = 20  # shown with their loops, the most frequent


class _Observed:
    """Sums over windows at the number of loops that the model was built for."""

    def __init__(self, loops: int, experts: int, vocab_size: int) -> None:
        self.halted = np.zeros(loops, np.int64)  # positions by the loops that they took, from 1
        self.load = np.zeros((loops, experts), np.int64)
        self.entropy = np.zeros(loops)
        self.positions = np.zeros(loops, np.int64)
        self.seen, self.taken = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)

    def add(self, model: OpenMythos, tokens: NDArray[np.int64]) -> None:
        """Add what the model's last pass did with tokens (windows, seq)."""
        taken = model.last_pass.loops_taken.cpu().numpy()
        self.halted += np.bincount(taken.ravel() - 1, minlength=len(self.halted))
        np.add.at(self.seen, tokens, 1)
        np.add.at(self.taken, tokens, taken)
        looped = [routing for experts, routing in model.last_pass.routings if experts is model.core.block.feed_forward]
        for loop, routing in enumerate(looped):
            self.load[loop] += routing.load.sum(0).cpu().numpy()
            self.entropy[loop] += float(routing.entropy.double().sum())
            self.positions[loop] += int(routing.positions.sum())


def measure_loops(
    model: OpenMythos,
    encoder: DocumentEncoder,
    parts: Iterable[Part],
    parameters: BitsPerByteParameters,
    chosen: LoopParameters,
) -> LoopFigures:
    """Return what the loops do; the model's number of loops is put back afterwards.

    Args:
        model: in eval mode.
        encoder: encodes as the documents were that the model was trained with.
        parts: held-out documents with the columns ``text, source, shard_index, row``.
        chosen: which of them. Each number of loops is a pass over all that are chosen.
    """
    texts = lowest_by_hash(parts, chosen.documents, chosen.seed)
    windows = _windows(encoder, texts, model.max_seq_len)
    built = model.loops
    observed = _Observed(built, model.shape.experts.n_experts, model.vocab_size)
    losses = {}
    try:
        with execution(parameters.execution), torch.inference_mode():
            for loops in numbers_of_loops(built):
                model.loops = loops
                losses[str(loops)] = _mean_loss(model, windows, parameters, observed if loops == built else None)
    finally:
        model.loops = built
    return _figures(observed, losses, encoder)


def numbers_of_loops(built: int) -> list[int]:
    """Return the numbers of loops at which the loss is measured.

    >>> numbers_of_loops(6)
    [1, 2, 4, 6, 8, 12]
    """
    return sorted({*(2**power for power in range((2 * built).bit_length())), built, 2 * built})


def _windows(encoder: DocumentEncoder, texts: Mapping[str, list[str]], seq_length: int) -> NDArray[np.int64]:
    """Return tokens (windows, seq + 1) int64 of the documents of each source."""
    ids = [np.array([encoder.tokenizer.eos_id])]
    for name in sorted(texts):
        encoded = encoder.encode(texts[name])
        ids += [encoded.values[start:end][-seq_length:] for start, end in pairwise(encoded.offsets.tolist())]
    stream = np.concatenate(ids).astype(np.int64)
    width = min(seq_length, len(stream) - 1)
    # neighbouring windows share a token: the last target of one is the first input of the next
    starts = range(0, len(stream) - width, width)
    return np.stack([stream[start : start + width + 1] for start in starts])


def _mean_loss(
    model: OpenMythos, windows: NDArray[np.int64], parameters: BitsPerByteParameters, observed: _Observed | None
) -> float:
    """Return nats a token."""
    weight, total = model.output_weight(), 0.0
    for start in range(0, len(windows), parameters.batch_size):
        batch = windows[start : start + parameters.batch_size]
        (tokens,) = to_device(torch.from_numpy(batch)[None], weight.device)
        with autocast(parameters.execution, weight.device.type):
            hidden = model.hidden_states(tokens[:, :-1])
            total += float(token_losses(hidden.flatten(0, 1), weight, tokens[:, 1:].flatten()).double().sum())
        if observed is not None:
            observed.add(model, batch[:, :-1])
    return total / windows[:, 1:].size


def _figures(observed: _Observed, losses: dict[str, float], encoder: DocumentEncoder) -> LoopFigures:
    loops = [loop for loop, positions in enumerate(observed.positions) if positions]
    load = observed.load[loops]
    frequent = np.argsort(-observed.seen, kind="stable")[:MOST_TOKENS]
    by_token: list[TokenLoops] = [
        {
            "token": str(encoder.tokenizer.tokenizer.id_to_token(int(token))),
            "positions": int(observed.seen[token]),
            "loops": float(observed.taken[token] / observed.seen[token]),
        }
        for token in frequent
        if observed.seen[token]
    ]
    taken = np.arange(1, len(observed.halted) + 1)
    return {
        "positions": int(observed.halted.sum()),
        "loss": losses,
        "mean_loops": float(observed.halted @ taken / observed.halted.sum()),
        "halted_after": {str(loop): int(count) for loop, count in zip(taken, observed.halted, strict=True)},
        "load": {
            str(loop + 1): {str(expert + 1): float(share) for expert, share in enumerate(row / row.sum())}
            for loop, row in zip(loops, load, strict=True)
        },
        "load_ratio": {str(loop + 1): float(row.max() / row.mean()) for loop, row in zip(loops, load, strict=True)},
        "router_entropy": {str(loop + 1): float(observed.entropy[loop] / observed.positions[loop]) for loop in loops},
        "by_token": sorted(by_token, key=lambda token: -token["loops"]),
    }
