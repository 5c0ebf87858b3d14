"""Near duplicates among many documents: seconds, peak memory of a process, and recall against a brute force.

``python benchmarks/near_duplicates.py [--rows 1000000] [--memory 200] [--subset 2000] [--folder DISK]`` makes documents
of drawn words, of which one in twenty is a copy of an earlier one with some words changed. It sketches them by two
workers, groups the buckets within ``--memory`` MiB, and compares every pair of a subset by the Jaccard similarity of
its shingles. Recall: of the documents of the subset with an earlier one above a similarity, how many are found.
10,000,000 rows take ten times the disk (6 GB) and the time; the memory stays.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
import time
from collections.abc import Generator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.corpus import DOCUMENTS
from everytoken.corpus.dedup import DedupRules, NearRules, find_buckets, find_duplicates
from everytoken.seeds import numpy_generator
from everytoken.shards import (
    ArtifactStore,
    Inline,
    Rows,
    Shards,
    Store,
    StoredPart,
    WorkerProcesses,
    plan_artifact,
    write_rows,
)

NEAR = NearRules(num_permutations=128, bands=16, shingle_words=5, seed=42)
PART_ROWS, WORDS = 50_000, 60
WINDOW = 1_000  # a copy is of one of so many documents before it
LEVELS = (0.6, 0.7, 0.8, 0.9)


def texts_of(part: int, rows: int) -> pa.Array:
    """Return texts of `WORDS` drawn words; one in twenty is an earlier one with up to six other words."""
    draw = numpy_generator(7, part)
    words = draw.integers(0, 50_000, (rows, WORDS))
    for row in np.flatnonzero(draw.random(rows) < 0.05)[1:].tolist():
        words[row] = words[draw.integers(max(0, row - WINDOW), row)]
        places = draw.integers(0, WORDS, draw.integers(0, 7))
        words[row, places] = draw.integers(0, 50_000, len(places))
    named = pa.array([f"w{number}" for number in range(50_000)]).take(pa.array(words.ravel()))
    return pc.binary_join(pa.ListArray.from_arrays(np.arange(0, rows * WORDS + 1, WORDS, np.int32), named), " ")


def write_part(folder: Path, index: int, count: int) -> StoredPart:
    """Write the documents of a part."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        texts = texts_of(index, count)
        for start in range(0, len(texts), 8_192):
            some = texts[start : start + 8_192]
            numbers = np.arange(start, start + len(some))
            columns = {
                "id": pa.nulls(len(some)),
                "id_type": pa.nulls(len(some)),
                "text": some,
                "source": ["s"] * len(some),
                "stratum": ["all"] * len(some),
                "shard_index": np.full(len(some), index),
                "row": numbers,
                "characters": pc.utf8_length(some),
                "utf8_bytes": pc.utf8_length(some),
                "text_sha256": [f"{index} {number}".encode() for number in numbers],
                "assistant_spans": pa.nulls(len(some)),
            }
            arrays = [pa.array(columns[field.name]).cast(field.type) for field in DOCUMENTS]
            yield pa.record_batch(arrays, DOCUMENTS)
        return {}

    path = folder / f"part_{index:05d}.parquet"
    written = write_rows(Rows(DOCUMENTS, batches()), path).part
    return StoredPart(path.stem, index, path, written.rows, written.content_digest, written.sha256)


def grouped(documents: Shards, buckets: Shards, folder: Path, memory: int) -> tuple[float, float]:
    """Find the near duplicates; return the seconds and the peak memory of this process in MB."""
    started = time.perf_counter()
    rules = DedupRules(exact=False, near=NEAR)
    plan = plan_artifact(find_duplicates, documents=documents, buckets=buckets, rules=rules, memory=memory)
    ArtifactStore(folder).save(plan)
    return time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def recall(texts: list[str], found: set[int]) -> dict[float, tuple[int, int]]:
    """Return by similarity how many of the first documents have an earlier one above it, and how many are found."""
    shingles = []
    for text in texts:
        words = text.split()
        shingles.append({tuple(words[at : at + 5]) for at in range(len(words) - 4)})
    nearest = np.zeros(len(texts))
    for later, own in enumerate(shingles):
        for other in shingles[:later]:
            shared = len(own & other)
            nearest[later] = max(nearest[later], shared / (len(own) + len(other) - shared))
    return {
        level: (len(above), len(found & set(above)))
        for level in LEVELS
        for above in [np.flatnonzero(nearest >= level).tolist()]
    }


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=1_000_000)
    arguments.add_argument("--memory", type=int, default=200, help="MiB for the grouping")
    arguments.add_argument("--subset", type=int, default=2_000)
    arguments.add_argument("--folder", type=Path)
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder, prefix="near-duplicates-"))
    try:
        whole, rest = divmod(given.rows, PART_ROWS)
        rows = [PART_ROWS] * whole + [rest] * (rest > 0)
        subset = min(given.subset, rows[0])
        (folder / "documents").mkdir()
        documents = Shards(tuple(write_part(folder / "documents", index, n) for index, n in enumerate(rows)))
        sketched = Store(folder / "sketches")
        started = time.perf_counter()
        sketched.save(documents.map(find_buckets, near=NEAR), WorkerProcesses(2))
        sketching = time.perf_counter() - started
        with get_context("spawn").Pool(1) as pool:
            given_to = (documents, sketched.load(), folder / "found", given.memory << 20)
            seconds, peak = pool.apply(grouped, given_to)
        some = documents.parts[0]
        before = time.process_time()
        Store(folder / "alone").save(Shards((some,)).map(find_buckets, near=NEAR), Inline())
        alone = some.rows / (time.process_time() - before)
        found = np.load(folder / "found/near_duplicates.npy")
        told = recall(texts_of(0, rows[0])[:subset].to_pylist(), set(found[:, 0].tolist()))
    finally:
        shutil.rmtree(folder)
    print(f"{given.rows:,} documents of {WORDS} words, {len(found):,} near duplicates")
    print(f"sketching, 2 workers    {sketching:>8.1f} s{given.rows / sketching:>12,.0f} documents/s")
    print(f"sketching, one part                {alone:>12,.0f} documents a CPU second")
    print(f"grouping                {seconds:>8.1f} s{given.rows / seconds:>12,.0f} documents/s")
    print(f"peak memory of grouping {peak:>8.0f} MB with ingestion.dedup_memory of {given.memory << 20:,} bytes")
    for level, (there, hit) in told.items():
        share = f"{hit / there:.1%}" if there else "none"
        print(f"similarity {level} or more: {there} of the first {subset:,} documents, found {hit} ({share})")


if __name__ == "__main__":
    main()
