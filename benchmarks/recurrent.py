"""Mamba-3: training in chunks next to a loop over tokens and a Llama of equal size, and what a rotating state learns.

    python benchmarks/recurrent.py [--length 2048] [--rounds 3] [--seconds 300]

Times are CPU seconds of a forward and a backward pass of one window, one thread, float32. Then two models with the same
seed, one with its rotation held at zero, learn the parity of bits and sums modulo 5 for ``--seconds`` each. Accuracy is
that of the last position, at the length of training and at twice that. There is no threshold: it is a report.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from everytoken.models import LlamaParameters, Mamba3Parameters, build_model
from everytoken.models.mamba3 import RecurrentModel
from everytoken.seeds import torch_generator
from everytoken.training.step import Objective

DEVELOPMENT = Mamba3Parameters(
    family="mamba3",
    d_model=256,
    n_layers=8,
    expand=2,
    head_width=64,
    state_width=64,
    rank=1,
    rotated_share=0.5,
    d_ff=640,
    chunk=64,
    norm_eps=1e-5,
    init_std=0.02,
)
LLAMA = LlamaParameters(
    family="llama",
    d_model=256,
    n_layers=8,
    n_heads=4,
    n_kv_heads=4,
    d_ff=872,
    tied_embeddings=True,
    rope_theta=10000.0,
    norm_eps=1e-5,
    init_std=0.02,
)
SMALL = DEVELOPMENT.model_copy(
    update={"d_model": 64, "n_layers": 2, "head_width": 16, "state_width": 16, "d_ff": 96, "chunk": 32}
)
VOCABULARY = 8192


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print both tables; return the CPU seconds of a pass by name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2048, help="tokens of a window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=300, help="CPU seconds of each training")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    seconds = passes(given.length, given.rounds)
    for name, taken in seconds.items():
        print(f"{name:<20}{taken:9.3f} CPU s a window of {given.length:,}, {taken / seconds['in chunks']:6.2f} times")
    for modulus, rotates in itertools.product((2, 5), (True, False)):
        steps, same, twice = learned(modulus, rotates, given.seconds)
        how = "rotating" if rotates else "still"
        print(f"sum modulo {modulus}, {how:<9}{steps:6d} steps, accuracy {same:.2f}, at twice the length {twice:.2f}")
    return seconds


def passes(length: int, rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of a forward and a backward pass, by what computes it."""
    mamba = build_model(DEVELOPMENT, vocab_size=VOCABULARY, max_seq_len=length, seed=0)
    llama = build_model(LLAMA, vocab_size=VOCABULARY, max_seq_len=length, seed=0)
    assert isinstance(mamba, RecurrentModel)
    tokens = torch.randint(0, VOCABULARY, (1, length + 1), generator=torch_generator(0, "tokens"))
    counted = torch.ones(1, length, dtype=torch.bool)
    losses: dict[str, Callable[[], Tensor]] = {
        "in chunks": lambda: Objective(mamba)(tokens, counted).sum(),
        "token by token": lambda: _by_token(mamba, tokens).sum(),
        "Llama of that size": lambda: Objective(llama)(tokens, counted).sum(),
    }
    taken: dict[str, list[float]] = {name: [] for name in losses}
    for _ in range(rounds):
        for name, loss in losses.items():
            started = time.process_time()
            loss().backward()
            taken[name].append(time.process_time() - started)
            for model in (mamba, llama):
                model.zero_grad()
    return {name: statistics.median(values) for name, values in taken.items()}


def _by_token(model: RecurrentModel, tokens: Tensor) -> Tensor:
    cache = model.new_cache()
    states = [model.hidden_states(token, cache) for token in tokens[:, :-1].split(1, dim=1)]
    return cross_entropy(torch.cat(states, dim=1)[0] @ model.output_weight().T, tokens[0, 1:], reduction="sum")


def learned(modulus: int, rotates: bool, seconds: float, length: int = 32) -> tuple[int, float, float]:
    """Train for so many CPU seconds; return steps, and the accuracy at the length and at twice that."""
    model = build_model(SMALL, vocab_size=modulus, max_seq_len=2 * length, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    draws, started, step = torch_generator(0, "sums"), time.process_time(), 0
    while step == 0 or time.process_time() - started < seconds:
        if not rotates:
            _hold_still(model)
        numbers = torch.randint(0, modulus, (64, length), generator=draws)
        cross_entropy(model(numbers).flatten(0, 1), (numbers.cumsum(1) % modulus).flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    if not rotates:
        _hold_still(model)
    return step, _accuracy(model, modulus, length), _accuracy(model, modulus, 2 * length)


@torch.no_grad()
def _hold_still(model: torch.nn.Module) -> None:
    for block in model.blocks:
        block.mixer.project_in[-SMALL.rotated_pairs :] = 0.0


@torch.no_grad()
def _accuracy(model: torch.nn.Module, modulus: int, length: int) -> float:
    numbers = torch.randint(0, modulus, (256, length), generator=torch_generator(1, "sums"))
    return float((model(numbers)[:, -1].argmax(-1) == numbers.sum(1) % modulus).double().mean())


if __name__ == "__main__":
    main()
