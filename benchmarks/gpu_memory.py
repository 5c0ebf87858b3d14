"""What fits on a GPU, calculated and not run: the tables of docs/gpu.md.

    python benchmarks/gpu_memory.py

Prints, for the published sizes of ``conf/base/parameters_sizes.yml``, the memory of training, evaluation and generation
with SmolLM2's vocabulary and windows of 2,048 predictions, and how much fits on a card at once. It is what
`everytoken plan` calculates. A card is taken as full when the calculated bytes times 1.3 are all it has: the plan
leaves out what torch itself takes, and a process was measured to take up to 1.27 times its plan
(benchmarks/memory_plan.py, on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from everytoken.models import LlamaParameters, cache_bytes_per_token
from everytoken.tokens.order import DataParameters
from everytoken.training import (
    CheckpointParameters,
    DistributionParameters,
    ExecutionParameters,
    OptimisationParameters,
)
from everytoken.training.run import Plan, evaluation_memory, generation_memory, make_training_plan

SIZES = Path(__file__).resolve().parents[1] / "conf" / "base" / "parameters_sizes.yml"
NAMES = ("135m", "1.7b", "3b")
CARDS = (80, 24, 16)  # GB, of 10^9 bytes
MARGIN = 1.3
VOCABULARY, WINDOW = 49_152, 2_048

# as conf/spp trains: of these, memory depends on the three that are not numbers of steps or rates
TRAINING = {
    "seed": 42,
    "steps": 2,
    "learning_rate": 3.0e-4,
    "min_lr_ratio": 0.1,
    "warmup_steps": 1,
    "betas": (0.9, 0.95),
    "adam_eps": 1.0e-8,
    "weight_decay": 0.1,
    "gradient_clip": 1.0,
    "max_skipped_in_a_row": 4,
    "activation_checkpointing": True,
    "execution": ExecutionParameters(threads=8, precision="bfloat16"),
}


def main() -> None:
    print(tables())


def tables() -> str:
    """Return the three tables as Markdown."""
    sizes = yaml.safe_load(SIZES.read_text(encoding="utf-8"))["_sizes"]
    models = {name: LlamaParameters(**sizes[name]) for name in NAMES}
    cards = [f"{card} GB" for card in CARDS]
    return "\n\n".join(
        f"{caption}\n\n{_table(header, rows)}"
        for caption, header, rows in (
            (
                "Training, calculated, not run: windows at once in each process.",
                ["size", "processes", "GB, 1 window", *cards, "GB of the first host"],
                [row for name, model in models.items() for row in _training(name, model)],
            ),
            (
                "Evaluation, calculated, not run: chunks at once.",
                ["size", "precision", "GB, 1 chunk", *cards],
                [row for name, model in models.items() for row in _evaluation(name, model)],
            ),
            (
                "Generation in float32, calculated, not run: texts of 2,048 tokens whose caches are kept at once.",
                ["size", "GB, 1 text", "cache, bytes a token", *cards],
                [_generation(name, model) for name, model in models.items()],
            ),
        )
    )


def _training(name: str, model: LlamaParameters) -> Iterable[list[str]]:
    for strategy, processes in (("ddp", 1), ("fsdp", 2), ("fsdp", 8), ("fsdp", 64)):
        how = DistributionParameters(processes=processes, strategy=strategy, device="cuda")

        def planned(windows: int, how: DistributionParameters = how) -> Plan:
            return _plan(model, how, windows)

        one = planned(1)
        host = f"{one.host_memory / 1e9:.1f}" if one.host_memory else ""
        spelled = "1, or any number with ddp" if processes == 1 else f"{processes} with fsdp"
        yield [name, spelled, _gigabytes(one.memory.total), *_fitting(lambda n: planned(n).memory.total), host]


def _plan(model: LlamaParameters, distribution: DistributionParameters, windows: int) -> Plan:
    batch_size = windows * distribution.processes
    return make_training_plan(
        model,
        OptimisationParameters(batch_size=batch_size, micro_batch_size=windows, **TRAINING),
        DataParameters(seed=42, later_epochs="as_written"),
        CheckpointParameters(folder="unused", every_steps=1),
        distribution,
        vocab_size=VOCABULARY,
        seq_length=WINDOW,
        stream_sizes=None,
    )


def _evaluation(name: str, model: LlamaParameters) -> Iterable[list[str]]:
    for precision in ("float32", "bfloat16"):

        def needed(chunks: int, precision: str = precision) -> int:
            return evaluation_memory(
                model,
                vocab_size=VOCABULARY,
                seq_length=WINDOW,
                batch_size=chunks,
                precision=precision,
            ).total

        yield [name, precision, _gigabytes(needed(1)), *_fitting(needed)]


def _generation(name: str, model: LlamaParameters) -> list[str]:
    def needed(texts: int) -> int:
        return generation_memory(
            model, vocab_size=VOCABULARY, tokens=WINDOW, sequences=texts, precision="float32"
        ).total

    return [name, _gigabytes(needed(1)), f"{cache_bytes_per_token(model, 'float32'):,}", *_fitting(needed)]


def _fitting(needed: Callable[[int], int]) -> list[str]:
    """Return for each card the largest number whose bytes, with the margin, it has.

    Bytes grow evenly with the number: each window, chunk or text needs as much as the one before.
    """
    first, each = needed(1), needed(2) - needed(1)
    return [_shown(max(0, 1 + int((card * 1e9 / MARGIN - first) // each))) for card in CARDS]


def _shown(number: int) -> str:
    return f"{number:,}" if number else "does not fit"


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.1f}"


def _table(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
