"""Drawn splits as row numbers, and as copies of their documents: processor time and bytes on disk.

Text: the scored documents that ``make run`` left. ``python benchmarks/draws.py [data]`` prints a table. *rows* are what
a run makes: a part of a split has the numbers of its rows, and whoever reads it reads the documents and keeps these.
*copies* are the same parts with all their columns. The digests of both are equal.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everytoken.address import ADDRESS_COLUMNS
from everytoken.corpus.sampling import (
    SubsamplingParameters,
    estimate_part_tokens,
    select_split,
    totals_of,
)
from everytoken.shards import Inline, Part, Rows, Shards, Store, stored_in, versioned

DATA = Path(__file__).resolve().parents[1] / "data"
ROUNDS = 3
_READ = ("id", "text", *ADDRESS_COLUMNS)  # what encoding reads


def subsampling(target_tokens: float | None) -> SubsamplingParameters:
    """Return the parameters of the default run with another target."""
    return SubsamplingParameters(
        seed=42,
        annotation_threshold=3,
        chars_per_token=4.068,
        target_tokens=target_tokens,
        max_tokens_per_document=2048,
        held_out_seed=7,
        held_out_share=0.05,
        strata=None,
        exclude=None,
    )


@versioned("draws_copied_split", 1)
def copied_split(part: Part, estimates: Part, *, split: Any, parameters: SubsamplingParameters, totals: Any) -> Rows:
    """Return the rows of `select_split`, to be written with all columns."""
    return select_split(part, estimates, split=split, parameters=parameters, totals=totals).copied()


def seconds(work: Callable[..., Any], *arguments: Any) -> float:
    """Return the processor time of a call."""
    start = time.process_time()
    work(*arguments)
    return time.process_time() - start


def verify(drawn: Shards) -> None:
    """Check the SHA-256 of all files of a split, as each step does that uses it."""
    for part in stored_in([drawn]):
        part.verify()


def read(drawn: Shards) -> None:
    """Read what encoding reads."""
    for part in drawn:
        for _ in part.batches(_READ):
            pass


def measure(
    function: Callable[..., Rows], scored: Shards, estimates: Shards, parameters: SubsamplingParameters
) -> dict[str, Any]:
    """Return seconds of drawing, verifying and reading both splits, bytes of their own files, and their digests."""
    found: dict[str, Any] = {"draw": 0.0, "verify": 0.0, "read": 0.0, "bytes": 0, "digests": []}
    totals = totals_of(estimates.values, parameters)
    with tempfile.TemporaryDirectory() as folder:
        for split in ("annotated", "unannotated"):
            store = Store(Path(folder) / split)
            planned = scored.zip(estimates).map(function, split=split, parameters=parameters, totals=totals)
            found["draw"] += seconds(store.save, planned, Inline())
            drawn = store.load()
            found["verify"] += seconds(verify, drawn)
            found["read"] += seconds(read, drawn)
            found["bytes"] += store.ledger().bytes
            found["digests"].append(drawn.root_digest)
    return found


def main() -> None:
    """Print the table."""
    scored = Store((Path(sys.argv[1]) if len(sys.argv) > 1 else DATA) / "03_primary/scored_documents").load()
    everything = subsampling(None)
    functions = {"rows": select_split, "copies": copied_split}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "estimates")
        store.save(scored.reduce(estimate_part_tokens, parameters=everything.estimate), Inline())
        estimates = store.load()
        total = totals_of(estimates.values, everything)["budget_tokens"]
        print(f"{scored.rows:,} documents; processor seconds, medians of {ROUNDS} rounds, and MB of their own files")
        print(f"{'drawn':<12}{'as':<8}{'draw':>8}{'verify':>8}{'read':>8}{'sum':>8}{'MB':>10}")
        for name, parameters in (("everything", everything), ("a tenth", subsampling(total / 10))):
            rounds = [
                {kind: measure(function, scored, estimates, parameters) for kind, function in functions.items()}
                for _ in range(ROUNDS)
            ]
            for kind in functions:
                assert rounds[0][kind]["digests"] == rounds[0]["rows"]["digests"]
                times = [statistics.median(one[kind][step] for one in rounds) for step in ("draw", "verify", "read")]
                shown = "".join(f"{value:>8.2f}" for value in (*times, sum(times)))
                print(f"{name:<12}{kind:<8}{shown}{rounds[0][kind]['bytes'] / 1e6:>10.2f}")


if __name__ == "__main__":
    importlib.import_module(Path(__file__).stem).main()  # a recipe knows functions by their module, not as __main__
