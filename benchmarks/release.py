"""What a release costs: the manifest of a part beside reading and writing its columns alone, the CRC-32 of every
window beside plain reading, ids that texts share, and bytes a document.

``python benchmarks/release.py --folder FOLDER`` makes ``--rows`` documents (1,000,000, ids like Dolma's) and a stream
of ``--windows`` windows (200,000 of 2,049 tokens, 1.6 GB), each measured in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Generator
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.corpus import SPLIT_DOCUMENTS
from everytoken.provenance.releases import (
    find_shared_ids,
    find_withheld_ids,
    manifest_part,
    withheld_of,
    write_window_checksums,
)
from everytoken.seeds import numpy_generator
from everytoken.shards import Inline, Part, Rows, Shards, Store, versioned, write_rows

BATCH = 8_192
READ = ["id", "id_type", "source", "shard_index", "row", "safety_score", "is_bad", "has_annotation", "text_sha256"]
TOKENS = pa.schema([*(SPLIT_DOCUMENTS.field(name) for name in READ[2:5]), pa.field("token_length", pa.int32())])
WINDOW_BYTES = 2_049 * 4


@versioned("documents", 1)
def documents(part: Part, *, rows: int) -> Rows:
    """Documents with ids of 36 characters; texts of 60, as a manifest does not read them."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        generator = numpy_generator(42, part.index)
        for start in range(0, rows, BATCH):
            count = min(BATCH, rows - start)
            texts = [f"{start + i} {'x' * 50}" for i in range(count)]
            drawn = [generator.bytes(16) for _ in range(count)]
            columns = {
                "id": [str(uuid.UUID(bytes=value)) for value in drawn],
                "id_type": ["string"] * count,
                "text": texts,
                "source": ["dolma3"] * count,
                "stratum": ["common_crawl"] * count,
                "shard_index": np.full(count, 1502, np.int32),
                "row": np.arange(start, start + count) * 3,
                "characters": np.full(count, 60, np.int64),
                "utf8_bytes": np.full(count, 60, np.int64),
                "text_sha256": [sha256(text.encode()).digest() for text in texts],
                "assistant_spans": [None] * count,
                "safety_score": np.minimum(generator.geometric(0.75, count) - 1, 5).astype(np.int8),
                "safety_probs": [None] * count,
                "has_annotation": np.ones(count, np.bool_),
                "is_bad": np.zeros(count, np.bool_),
            }
            arrays = [pa.array(columns[field.name], field.type) for field in SPLIT_DOCUMENTS]
            yield pa.RecordBatch.from_arrays(arrays, schema=SPLIT_DOCUMENTS)
        return {}

    return Rows(SPLIT_DOCUMENTS, batches())


@versioned("lengths", 1)
def lengths(part: Part) -> Rows:
    """Token lengths of the documents."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        generator = numpy_generator(43, part.index)
        for batch in part.batches(TOKENS.names[:3]):
            drawn = pa.array(np.minimum(generator.lognormal(6.5, 1, batch.num_rows), 1919).astype(np.int32))
            yield pa.RecordBatch.from_arrays([*batch.columns, drawn], schema=TOKENS)
        return {}

    return Rows(TOKENS, batches())


def write_stream(path: Path, windows: int) -> None:
    """Write windows of random tokens."""
    generator = numpy_generator(44)
    with path.open("wb") as file:
        for start in range(0, windows, 1_000):
            file.write(generator.bytes(min(1_000, windows - start) * WINDOW_BYTES))


def read_and_write(folder: Path) -> int:
    """Read the columns that a manifest reads, and write them: the limit."""
    part = Store(folder / "documents").load().parts[0]
    schema = pa.schema([SPLIT_DOCUMENTS.field(name) for name in READ])

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        for batch in part.batches(READ):
            yield batch.select(READ)
        return {}

    return write_rows(Rows(schema, batches()), folder / "columns.parquet").part.bytes


def list_part(folder: Path) -> int:
    """Make the manifest of the part."""
    shards, tokens = Store(folder / "documents").load(), Store(folder / "tokens").load()
    none = Shards.from_values([{"addresses": []}], ["none"])
    store = Store(folder / "manifest")
    return store.save(shards.zip(tokens, none).map(manifest_part, withheld=withheld_of([])), Inline()).bytes


def look_for_titles(folder: Path) -> int:
    """Find ids that show text."""
    shards, none = Store(folder / "documents").load(), Shards.from_values([{"addresses": []}], ["none"])
    return Store(folder / "withheld").save(shards.zip(none).reduce(find_withheld_ids), Inline()).bytes


def share_ids(folder: Path) -> int:
    """Find ids of several texts."""
    return len(find_shared_ids(Store(folder / "documents").load(), 1 << 27, folder))


def read_stream(folder: Path) -> int:
    """Read the stream."""
    buffer = memoryview(bytearray(4 << 20))
    with (folder / "x.bin").open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return 0


def zlib_stream(folder: Path) -> int:
    """CRC-32 of each window by the standard library."""
    with (folder / "x.bin").open("rb") as file:
        while window := file.read(WINDOW_BYTES):
            zlib.crc32(window)
    return 0


def checksum_stream(folder: Path) -> int:
    """CRC-32 of each window as a release has it."""
    write_window_checksums(folder / "x.bin", WINDOW_BYTES, folder / "x.npy")
    return (folder / "x.npy").stat().st_size


def _peak() -> float:
    """Return the largest memory of this process so far, in MB."""
    status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
    return int(status.split()[0]) / 1024


def _measured(task: Callable[[Path], int], folder: Path) -> tuple[float, float, int]:
    for made in ("manifest", "withheld"):
        shutil.rmtree(folder / made, ignore_errors=True)
    before, started = _peak(), time.perf_counter()
    result = task(folder)
    return time.perf_counter() - started, _peak() - before, result


def measure(task: Callable[[Path], int], folder: Path) -> tuple[float, float, int]:
    """Return seconds, MB of memory that the task took, and its result; the best of two, each in a new process."""
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return min(pool.apply(_measured, (task, folder)) for _ in range(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--windows", type=int, default=200_000)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=chosen.folder, prefix="release-"))
    try:
        store = Store(folder / "documents")
        store.save(Shards.from_values([0], ["0"]).map(documents, rows=chosen.rows), Inline())
        Store(folder / "tokens").save(store.load().map(lengths), Inline())
        write_stream(folder / "x.bin", chosen.windows)
        print(f"{'':<44}{'seconds':>9}{'amount':>18}{'ratio':>8}{'memory':>9}")
        limit = 0.0
        for name, task in [
            ("columns read and written (limit)", read_and_write),
            ("manifest of the part", list_part),
            ("ids that show text", look_for_titles),
            ("ids of several texts", share_ids),
        ]:
            seconds, memory, result = measure(task, folder)
            limit = limit or seconds
            rate = f"{chosen.rows / seconds:,.0f} rows/s"
            print(f"{name:<44}{seconds:>9.2f}{rate:>18}{limit / seconds:>8.2f}{memory:>6.0f} MB")
            if task is list_part:
                print(f"{'':<44}{result / chosen.rows:>27.1f} bytes a document")
        limit = 0.0
        for name, task in [
            ("stream read (limit)", read_stream),
            ("CRC-32 a window, zlib in a plain loop", zlib_stream),
            ("CRC-32 a window, release", checksum_stream),
        ]:
            seconds, memory, _ = measure(task, folder)
            limit = limit or seconds
            rate = f"{chosen.windows * WINDOW_BYTES / seconds / 1e6:,.0f} MB/s"
            print(f"{name:<44}{seconds:>9.2f}{rate:>18}{limit / seconds:>8.2f}{memory:>6.0f} MB")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    importlib.import_module(
        Path(__file__).stem
    ).main()  # not __main__: part functions have a module that can be imported
