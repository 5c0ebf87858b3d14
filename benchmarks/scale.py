"""The corpus of 1T tokens: work, bytes and time of each stage, computed from rates measured in this repository.

``python benchmarks/scale.py [--cores 64] [--nodes 1 4 20] [--parts 100000] [--folder DISK]`` prints the table of
`docs/scale.md`, then writes a simulated ledger and reads it. The rates are those of the tables in `docs/benchmarks.md`,
read from the page itself. Time is work over cores: no measurement on several nodes, and no disk or network slower than
the processors. What one process does alone is not divided.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from everytoken.shards import LEDGER_FILE
from everytoken.shards.ledger import Ledger, PartRecord

PAGE = Path(__file__).resolve().parents[1] / "docs/benchmarks.md"

# of the published corpus
FILES, ROWS, TOKENS = 20_000, 1_180_506_475, 1.147e12
CHARACTERS_PER_TOKEN = 4.068
TEXT = TOKENS * CHARACTERS_PER_TOKEN
DRAWN = 1e12 * CHARACTERS_PER_TOKEN
STREAMS = 2.17e12
PARQUET_SHARE = 0.5  # assumed, not measured: bytes of a part over those of its text
SIDECAR_SHARE = 0.11  # of the drawn text: that of the annotated split


@dataclass(frozen=True)
class Stage:
    """Work of a stage: ``shared`` core seconds are divided by cores, ``alone`` seconds are those of one process."""

    name: str
    work: str
    shared: float
    alone: float
    written: float
    files: int
    theirs: str


def measured(row: str, figure: str) -> float:
    """Return the number that a row of the page gives, by its beginning and the pattern of the figure."""
    (line,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(row)]
    found = re.search(figure, line)
    assert found is not None, f"{PAGE}: {figure!r} is not in the row {row!r}"
    return float(found[1].replace(",", ""))


def stages() -> list[Stage]:
    """Return the stages of the corpus on the processor, in their order."""
    reading = measured("| `.jsonl.zst` to parquet parts, 2 workers", r"\| (\d+) MB/s") * 1e6 / 2
    writing = measured("| `write_rows`, text rows", r"\| (\d+) MB/s") * 1e6
    joined = measured("| `join_published`, 20 M entries, 60 M documents", r"\| (\d+) s") / 60e6
    part = measured("| 20,000 parts of 50 rows", r"stage [\d.]+ to ([\d.]+) ms") / 1e3
    drawing = measured("| `select_split`", r"\| (\d+) MB/s") * 1e6
    encoding = measured("By slope ours", r"\((\d+) and") * 1e6
    streaming = measured("| `write_compact_stream`, 32 MiB bound", r"\| (\d+) MB/s") * 1e6
    parquet, sidecar = TEXT * PARQUET_SHARE, DRAWN * SIDECAR_SHARE / writing
    return [
        Stage("ingestion", f"{TEXT / 1e12:.2f} TB of text", TEXT / reading, 0, parquet, FILES, ""),
        Stage(
            "annotation, published scores",
            f"{ROWS / 1e9:.2f} G rows joined",
            FILES * part,
            ROWS * joined,
            3e10,
            FILES,
            "579 GPU-h for the scores",
        ),
        Stage(
            "draw of the splits", f"{TEXT / 1e12:.2f} TB of text read", TEXT / drawing, 0, ROWS * 8, 2 * FILES, "30 min"
        ),
        Stage("encoding", f"{DRAWN / 1e12:.2f} TB of text", DRAWN / encoding, 0, STREAMS, 2 * FILES, ""),
        Stage(
            "streams",
            f"{STREAMS / 1e12:.2f} TB of ids",
            STREAMS / streaming,
            sidecar,
            STREAMS,
            8,
            "",
        ),
    ]


def table(cores: int, nodes: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the table; hours by number of nodes."""
    columns = [f"{number} node{'s' if number > 1 else ''}" for number in nodes]
    yield (
        "| stage | work | core hours | one process, hours | writes, TB | files | "
        + " | ".join(columns)
        + " | account |"
    )
    yield "|" + "---|" * (7 + len(nodes))
    for one in [*stages(), _sum(stages())]:
        hours = [one.shared / cores / number / 3600 + one.alone / 3600 for number in nodes]
        clock = " | ".join(f"{hour:.2f} h" for hour in hours)
        yield (
            f"| {one.name} | {one.work} | {one.shared / 3600:,.0f} | {one.alone / 3600:,.2f} "
            f"| {one.written / 1e12:.2f} | {one.files:,} | {clock} | {one.theirs} |"
        )


def _sum(all_of_them: Sequence[Stage]) -> Stage:
    shared, alone = sum(one.shared for one in all_of_them), sum(one.alone for one in all_of_them)
    written, files = sum(one.written for one in all_of_them), sum(one.files for one in all_of_them)
    return Stage("all", "", shared, alone, written, files, "")


def ledger_seconds(parts: int, folder: Path) -> tuple[float, int]:
    """Write a ledger of so many parts; return the seconds that reading it takes, and its bytes."""
    records = tuple(
        PartRecord(
            f"part_{number:06d}",
            59_000,
            1 << 27,
            f"{number:064x}",
            f"{number:064x}",
            "f" * 64,
            ("e" * 64,),
            {"rows": 59_000},
        )
        for number in range(parts)
    )
    path = folder / LEDGER_FILE
    Ledger("rows", {"function": "simulated", "parameters": {}, "version": 1}, records).write(path)
    began = time.perf_counter()
    ledger = Ledger.read(path)
    taken = time.perf_counter() - began
    assert len(ledger.parts) == parts
    return taken, path.stat().st_size


def main() -> None:
    """Print the table, and what a ledger takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cores", type=int, default=64, help="of a node")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 4, 20])
    parser.add_argument("--parts", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    print("\n".join(table(given.cores, given.nodes)))
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        taken, size = ledger_seconds(given.parts, Path(folder))
    print(f"\na ledger of {given.parts:,} parts, {size / 1e6:.0f} MB: read in {taken:.2f} s")


if __name__ == "__main__":
    main()
