"""What the shard store costs: writing text rows beside bare pyarrow, and the overhead of a part.

    python benchmarks/shards.py [folder] [thousand rows of text] [parts of one row]

Prints a small table. Figures are medians of three runs in one process, so that ratios can be compared between machines.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.seeds import numpy_generator
from everytoken.shards import (
    ROW_GROUP_ROWS,
    Inline,
    Part,
    Rows,
    Shards,
    Store,
    StoredPart,
    TableDigest,
    WorkerProcesses,
    file_sha256,
    versioned,
    write_rows,
)

SCHEMA = pa.schema([("id", pa.large_string()), ("text", pa.large_string()), ("row", pa.int64())])
MEGABYTE = 1e6


def text_batches(count: int, rows: int = 1000) -> list[pa.RecordBatch]:
    """Return batches of documents of about 4 kB, of words that compress as English does (to about a third)."""
    generator = numpy_generator(42)
    letters = "etaoinshrdlucmfwypvbgk"
    words = [
        "".join(letters[i] for i in generator.geometric(0.15, size) % 22) for size in generator.poisson(4, 20_000) + 1
    ]
    batches = []
    for i in range(count):
        picks = generator.zipf(1.2, rows * 700) % 20_000
        text = [" ".join(words[w] for w in picks[j * 700 : (j + 1) * 700]) for j in range(rows)]
        numbers = range(i * rows, (i + 1) * rows)
        batches.append(pa.record_batch([[f"urn:{n}" for n in numbers], text, list(numbers)], SCHEMA))
    return batches


def seconds(work: Callable[[], object]) -> float:
    """Return the median of three runs."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def bare_write(batches: list[pa.RecordBatch], path: Path) -> None:
    """Write with the settings of `write_rows`, one row group of about 16 MB at a time, and nothing else."""
    with pq.ParquetWriter(
        path, SCHEMA, compression="zstd", use_dictionary=False, write_page_checksum=True, version="2.6"
    ) as writer:
        for i in range(0, len(batches), 4):
            writer.write_table(
                pa.Table.from_batches(batches[i : i + 4]).combine_chunks(), row_group_size=ROW_GROUP_ROWS
            )


def as_rows(batches: list[pa.RecordBatch]) -> Rows:
    def generate() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        yield from batches
        return {}

    return Rows(SCHEMA, generate())


def digest(batches: list[pa.RecordBatch]) -> None:
    found = TableDigest(SCHEMA)
    for batch in batches:
        found.update(batch)


@versioned("tiny_part", 1)
def tiny_part(part: Part) -> Rows:
    """One row."""
    return as_rows([pa.record_batch([["a"], ["b"], [part.value]], SCHEMA)])


def report(name: str, value: float, unit: str, remark: str = "") -> None:
    print(f"{name:<44}{value:>9.1f} {unit:<11}{remark}")


def measure_writing(folder: Path, thousands: int) -> None:
    batches = text_batches(thousands)
    size = sum(batch.nbytes for batch in batches) / MEGABYTE
    path = folder / "p.parquet"
    bare = seconds(lambda: bare_write(batches, folder / "bare.parquet"))
    ours = seconds(lambda: write_rows(as_rows(batches), path))
    content = seconds(lambda: digest(batches))
    written = path.stat().st_size / MEGABYTE
    hashed = seconds(lambda: file_sha256(path))
    part = StoredPart("p", 0, path, sum(batch.num_rows for batch in batches), "", "")
    read = seconds(lambda: sum(batch.num_rows for batch in part.batches()))
    print(f"text rows: {size:.0f} MB in memory, {written:.0f} MB on disk")
    report("bare ParquetWriter", size / bare, "MB/s")
    report("write_rows", size / ours, "MB/s", f"{ours / bare:.2f} times the time of bare")
    report("content digest alone", size / content, "MB/s", f"{content / ours:.0%} of write_rows")
    report("SHA-256 of the file alone", written / hashed, "MB/s", f"{hashed / ours:.0%} of write_rows")
    report("batches() of a stored part", size / read, "MB/s")


def measure_parts(folder: Path, parts: int) -> None:
    from benchmarks import shards as here  # workers and recipes know the function by its module

    planned = Shards.from_values(list(range(parts)), [str(i) for i in range(parts)]).map(here.tiny_part)
    print(f"\n{parts} parts of one row")
    for name, engine in (("inline", Inline()), ("processes, 2 workers", WorkerProcesses(2))):
        store = Store(folder / name)
        start = time.perf_counter()
        store.save(planned, engine)
        report(name, (time.perf_counter() - start) / parts * 1000, "ms a part", "fsync of file, record and folders")
        again = seconds(lambda store=store, engine=engine: store.save(planned, engine))  # type: ignore[misc]
        report(f"{name}, nothing to do", again / parts * 1000, "ms a part")


def main() -> None:
    folder = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    thousands, parts = (int(given) for given in [*sys.argv[2:], *("32", "300")[max(0, len(sys.argv) - 2) :]])
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        measure_writing(folder, thousands)
        measure_parts(folder, parts)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
