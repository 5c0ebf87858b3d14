"""How published scores are joined, and how long a corpus of tiny parts takes through annotation and subsampling.

``python benchmarks/annotation.py --folder FOLDER`` prints a table. It makes its own documents: ``--entries`` published
scores (20,000,000) for ``--rows`` documents (60,000,000; 5 GB of disk, some minutes), and ``--parts`` tiny parts
(20,000) of ``--part-rows`` rows (50), which go through the stages that `kedro run` has, each in a process of its own.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus import DOCUMENTS, N_CLASSES
from everytoken.corpus.sampling import (
    SubsamplingParameters,
    estimate_part_tokens,
    select_held_out,
    select_split,
    totals_of,
)
from everytoken.corpus.scoring import collect_classifications, join_part, join_published
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.seeds import numpy_generator
from everytoken.shards import (
    ArtifactStore,
    Part,
    Rows,
    Shards,
    Store,
    StoredPart,
    WorkerProcesses,
    file_sha256,
    plan_artifact,
    versioned,
    write_rows,
)

KEYS = pa.schema([DOCUMENTS.field("id"), DOCUMENTS.field("id_type")])
TABLE = pa.schema({"id": pa.string(), "safety_score": pa.int8(), "safety_probs": pa.list_(pa.float32())})
SUBSAMPLING = SubsamplingParameters(
    seed=42,
    annotation_threshold=3,
    chars_per_token=4.068,
    target_tokens=None,
    max_tokens_per_document=2048,
    held_out_seed=7,
    held_out_share=0.01,
    strata=None,
    exclude=None,
)
NEAR = (0.001, 0.01, 0.05)
SPREAD = 0x9E3779B97F4A7C15  # an odd number: numbers below 2**64 stay different, and come in no order


def write_table(path: Path, numbers: np.ndarray[Any, Any], generator: np.random.Generator) -> UpstreamFile:
    """Write published scores of the documents with these numbers."""
    with pq.ParquetWriter(path, TABLE, compression="zstd") as writer:
        for start in range(0, len(numbers), 500_000):
            some = numbers[start : start + 500_000]
            logits = generator.normal(0, 2, (len(some), N_CLASSES)) - np.arange(N_CLASSES)
            probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            lists = pa.ListArray.from_arrays(
                np.arange(len(some) + 1, dtype=np.int32) * N_CLASSES,
                pa.array(probabilities.astype(np.float32).ravel()),
            )
            scores = pa.array(probabilities.argmax(axis=1).astype(np.int8))
            writer.write_table(pa.table([pa.array(ids_of(some)), scores, lists], schema=TABLE))
    return UpstreamFile("scores", path.name, path, None)


def ids_of(numbers: np.ndarray[Any, Any]) -> list[str]:
    """Return an id of 36 characters for each number."""
    spread = (numbers.astype(np.uint64) * np.uint64(SPREAD)).tolist()
    return [f"{high:08x}-{low:08x}-4000-8000-0000000000" for high, low in (divmod(n, 1 << 32) for n in spread)]


def write_keys(folder: Path, rows: int, ids: int, part_rows: int) -> Shards:
    """Write documents that are nothing but ids, each one of ``ids``; return them."""

    def part(index: int) -> StoredPart:
        def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
            generator = numpy_generator(1, index)
            for start in range(0, part_rows, 8_192):
                n = min(8_192, part_rows - start)
                columns = [ids_of(generator.integers(0, ids, n)), ["string"] * n]
                yield pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, KEYS, strict=True)], KEYS)
            return {}

        path = folder / f"part_{index:05d}.parquet"
        written = write_rows(Rows(KEYS, batches()), path).part
        return StoredPart(path.stem, index, path, written.rows, written.content_digest, written.sha256)

    folder.mkdir(parents=True)
    return Shards(tuple(part(index) for index in range(rows // part_rows)))


@versioned("tiny_part", 1)
def tiny_part(part: Part, *, rows: int) -> Rows:
    """Make a part of short documents: six sources, every third id repeats the one before it."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        numbers = range(part.index * rows, (part.index + 1) * rows)
        texts = [f"Document {number}. " * (2 + number % 40) for number in numbers]
        columns = {
            "id": ids_of(np.array([number - (number % 3 == 2) for number in numbers])),
            "id_type": ["string"] * rows,
            "text": texts,
            "source": [f"s{part.index % 6}"] * rows,
            "stratum": [f"topic {number % 7}" for number in numbers],
            "shard_index": [part.index] * rows,
            "row": range(rows),
            "characters": [len(text) for text in texts],
            "utf8_bytes": [len(text) for text in texts],
            "text_sha256": [sha256(text.encode()).digest() for text in texts],
            "assistant_spans": [None] * rows,
        }
        yield pa.record_batch([pa.array(columns[field.name], field.type) for field in DOCUMENTS], DOCUMENTS)
        return {}

    return Rows(DOCUMENTS, batches())


def join(folder: Path, documents: Shards, files: list[UpstreamFile], memory: int) -> None:
    """Join, as `kedro run` does."""
    digests = [f"sha256:{file_sha256(file.location)}" for file in files]
    inputs = {"documents": documents, "files": files, "digests": digests, "memory": memory}
    ArtifactStore(folder).save(plan_artifact(join_published, **inputs))


def bare_join(folder: Path, documents: Shards, files: list[UpstreamFile], memory: int) -> None:
    """Join by DuckDB alone, from parquet to parquet."""
    import duckdb

    config = {"memory_limit": f"{memory}B", "temp_directory": str(folder), "preserve_insertion_order": "false"}
    names = [str(part.path) for part in documents]  # type: ignore[attr-defined]
    tables = [str(file.location) for file in files]
    with duckdb.connect(config=config) as connection:  # type: ignore[arg-type]
        connection.execute(
            f"COPY (SELECT d.filename, d.file_row_number, safety_score, safety_probs FROM read_parquet({names}, "
            f"filename = true, file_row_number = true) d JOIN read_parquet({tables}) USING (id) "
            f"ORDER BY d.filename, d.file_row_number) TO '{folder}/bare.parquet' (COMPRESSION zstd)"
        )


def stages(folder: Path, memory: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the stages of annotation and subsampling of the documents in ``folder``."""
    engine = WorkerProcesses(2)
    store = {name: Store(folder / name) for name in ("documents", "scored", "estimates", "annotated", "rest", "out")}
    files = [UpstreamFile("scores", "scores.parquet", folder / "scores.parquet", None)]
    yield "join_published", lambda: join(folder / "scorer", store["documents"].load(), files, memory)

    def save(name: str, planned: Callable[[], Shards]) -> Callable[[], Any]:
        return lambda: store[name].save(planned(), engine)

    def split(name: str) -> Shards:
        estimates = store["estimates"].load()
        totals = totals_of(estimates.values, SUBSAMPLING)
        inputs = store["scored"].load().zip(estimates)
        return inputs.map(select_split, split=name, parameters=SUBSAMPLING, totals=totals)

    def scored() -> Shards:
        return store["documents"].load().map(join_part, published=ArtifactStore(folder / "scorer").load())

    def classify() -> Any:
        inputs = {"documents": store["scored"].load(), "near": NEAR, "memory": memory}
        return ArtifactStore(folder / "classifications").save(plan_artifact(collect_classifications, **inputs))

    yield "join_part", save("scored", scored)
    yield "collect_classifications", classify
    estimate = SUBSAMPLING.estimate
    yield (
        "estimate_part_tokens",
        save("estimates", lambda: store["scored"].load().reduce(estimate_part_tokens, parameters=estimate)),
    )
    yield "select_split, annotated", save("annotated", lambda: split("annotated"))
    yield "select_split, unannotated", save("rest", lambda: split("unannotated"))
    yield (
        "select_held_out",
        save("out", lambda: store["scored"].load().map(select_held_out, parameters=SUBSAMPLING.held_out)),
    )


def stage(number: int, folder: Path, memory: int) -> None:
    """Run one stage."""
    dict(enumerate(work for _, work in stages(folder, memory)))[number]()


def make_tiny(folder: Path, parts: int, rows: int) -> None:
    """Make the tiny parts and a table of scores of nine tenths of their documents."""
    numbers = list(range(parts))
    given = Shards.from_values(numbers, [f"{number:064x}" for number in numbers])
    Store(folder / "documents").save(given.map(tiny_part, rows=rows), WorkerProcesses(2))
    known = np.array([number for number in range(parts * rows) if number % 3 != 2 and number % 10])
    write_table(folder / "scores.parquet", known, numpy_generator(5))


def alone(function: Callable[..., Any], *arguments: Any) -> tuple[float, int]:
    """Run in a process of its own; return the seconds and the peak memory in MB of it and its children together."""
    context = get_context("spawn")
    module = importlib.import_module(Path(__file__).stem)  # not __main__: workers of the process must know it too
    process = context.Process(target=getattr(module, function.__name__), args=arguments)
    start, peak, ended = time.perf_counter(), 0, threading.Event()
    process.start()
    while not ended.wait(0.05) and process.is_alive():
        peak = max(peak, sum(map(resident, family(process.pid or 0))))
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed")
    return time.perf_counter() - start, peak >> 20


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return [pid]
    return [pid, *(member for child in children for member in family(int(child)))]


def resident(pid: int) -> int:
    """Return the memory of a process in bytes."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def line(name: str, value: str, beside: str) -> None:
    """Print one line of the table."""
    print(f"{name:<34}{value:>22}   {beside}", flush=True)


def join_rates(folder: Path, entries: int, rows: int, memory: int) -> None:
    """Print how long the join takes beside DuckDB alone."""
    (folder / "tables").mkdir()
    each = entries // 4
    files = [
        write_table(folder / f"tables/{k}.parquet", np.arange(k * each, (k + 1) * each), numpy_generator(3, k))
        for k in range(4)
    ]
    documents = write_keys(folder / "keys", rows, entries * 11 // 10, min(rows, 100_000))
    (folder / "bare").mkdir()
    bare, bare_peak = alone(bare_join, folder / "bare", documents, files, memory)
    shutil.rmtree(folder / "bare")
    taken, peak = alone(join, folder / "joined", documents, files, memory)
    statistics = ArtifactStore(folder / "joined").load().statistics
    what = f"{entries:,} entries, {documents.rows:,} documents, {statistics['scored']:,} scored"
    line("join_published", f"{taken:.0f} s", f"{what}, memory {memory >> 20} MiB, peak {peak} MB")
    line("DuckDB alone", f"{bare:.0f} s", f"peak {bare_peak} MB; ours takes {taken / bare:.2f} times as long")


def tiny_rates(folder: Path, parts: int, rows: int, memory: int) -> None:
    """Print how long each stage takes for a number of tiny parts, and for a quarter of them."""
    taken: dict[int, list[float]] = {}
    peaks: list[int] = []
    names = [name for name, _ in stages(folder, memory)]
    for count in (parts // 4, parts):
        place = folder / f"tiny_{count}"
        place.mkdir()
        alone(make_tiny, place, count, rows)
        results = [alone(stage, number, place, memory) for number in range(len(names))]
        taken[count] = [seconds for seconds, _ in results]
        peaks = [peak for _, peak in results]
    for name, few, all_parts, peak in zip(names, taken[parts // 4], taken[parts], peaks, strict=True):
        beside = f"{all_parts / parts * 1e3:.2f} ms a part, {all_parts / few:.1f} times a quarter of it, peak {peak} MB"
        line(name, f"{all_parts:.0f} s", beside)
    total, quarter = sum(taken[parts]), sum(taken[parts // 4])
    line(
        f"all, {parts:,} parts of {rows} rows",
        f"{total:.0f} s",
        f"{total / quarter:.1f} times a quarter of it, peak {max(peaks)} MB",
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000_000)
    parser.add_argument("--rows", type=int, default=60_000_000)
    parser.add_argument("--parts", type=int, default=20_000)
    parser.add_argument("--part-rows", type=int, default=50)
    parser.add_argument("--memory", type=int, default=1_000_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        tiny_rates(Path(folder), given.parts, given.part_rows, given.memory)
        join_rates(Path(folder), given.entries, given.rows, given.memory)


if __name__ == "__main__":
    main()
