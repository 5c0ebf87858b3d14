"""How fast encoded documents become streams, beside reading them and beside a plain copy of the files written.

``python benchmarks/streams.py [million tokens] [rounds]``: documents of log-normal length in 4 parts, ids drawn with
falling frequency, empty texts (what a sidecar costs is what its texts cost). Streams are written in this process and by
2 workers. Every measurement is a process of its own; measurements are interleaved and the table has medians of all
rounds. MB/s count the bytes of the stream, EOS that pads included; reading counts the ids. CPU seconds are those of all
processes, and main % is the share of the main one; the peak is that of the main one.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.seeds import numpy_generator
from everytoken.shards import (
    Artifact,
    Part,
    RangeMap,
    Rows,
    Shards,
    StoredPart,
    WorkerProcesses,
    start_server,
    write_rows,
)
from everytoken.tokens.streams import write_annotated_stream, write_compact_stream

PARTS, VOCAB_SIZE, EOS_ID, SEQ_LENGTH = 4, 49_152, 0, 2048
MEMORIES = (1 << 30, 32 << 20)
WORKERS = (1, 2)
BATCH_ROWS = 8192


def stored(folder: Path, tokens: int, cap: int) -> Shards:
    """Store about ``tokens`` tokens as encoded documents of at most ``cap``."""
    folder.mkdir()
    parts: list[Part] = []
    for index in range(PARTS):
        path = folder / f"part_{index:05d}.parquet"
        table = encoded(index, tokens // PARTS // 540, cap)

        def batches(table: pa.Table = table) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
            yield from table.to_batches(max_chunksize=BATCH_ROWS)
            return {}

        part = write_rows(Rows(table.schema, batches()), path).part
        parts.append(StoredPart(path.stem, index, path, part.rows, part.content_digest, part.sha256))
    return Shards(tuple(parts))


def encoded(part: int, rows: int, cap: int) -> pa.Table:
    generator = numpy_generator(42, part)
    lengths = np.minimum(generator.lognormal(5.9, 1.0, rows).astype(np.int64), cap - 1)
    ends = np.cumsum(lengths + 1)
    ids = 1 + ((VOCAB_SIZE - 1) * generator.random(int(ends[-1])) ** 4).astype(np.uint16)
    ids[ends - 1] = EOS_ID
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    return pa.table(
        {
            "id": pa.array([f"{part}-{row}" for row in range(rows)], pa.large_string()),
            "text": pa.array([""] * rows, pa.large_string()),
            "source": ["web"] * rows,
            "shard_index": pa.array([part] * rows, pa.int32()),
            "row": pa.array(range(rows), pa.int64()),
            "safety_score": pa.array([0] * rows, pa.int8()),
            "is_bad": [False] * rows,
            "token_length": pa.array(lengths, pa.int32()),
            "tokens": pa.ListArray.from_arrays(offsets, pa.array(ids)),
        }
    )


def read(tokens: Shards) -> int:
    return sum(
        batch.column("tokens").flatten().nbytes for part in tokens for batch in part.batches(["tokens", "token_length"])
    )


def copy(source: Path, target: Path) -> None:
    """Copy files, fsynced as the streams are."""
    target.mkdir()
    for path in source.iterdir():
        with path.open("rb") as read_from, (target / path.name).open("wb") as written:
            shutil.copyfileobj(read_from, written, 1 << 20)
            written.flush()
            os.fsync(written.fileno())


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the workers that ended, which are children of the fork server."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure(folder: Path, kind: str, what: str) -> dict[str, float]:
    """Run one measurement in this process."""
    tokens: Shards = pickle.loads((folder / f"{kind}.pickle").read_bytes())
    facts = {"sha256": "0" * 64, "vocab_size": VOCAB_SIZE, "eos_token": "<|endoftext|>", "eos_id": EOS_ID}
    tokenizer = Artifact(folder=folder, ledger={"statistics": facts})
    out = folder / f"{kind}_{what}"
    shutil.rmtree(out, ignore_errors=True)
    size = 0
    start_server()  # as a run has done before it comes to its streams
    time.sleep(1)
    wall, cpu, main_cpu = time.perf_counter(), cpu_seconds(), time.process_time()
    if what == "read":
        size = read(tokens)
    elif what == "copy":
        copy(folder / f"{kind}_{MEMORIES[0]}_{WORKERS[0]}", out)
    else:
        out.mkdir()
        memory, workers = map(int, what.split("_"))
        ranges = RangeMap(WorkerProcesses(workers))
        common = {"tokens": tokens, "tokenizer": tokenizer, "seq_length": SEQ_LENGTH, "seed": 42, "ranges": ranges}
        if kind == "compact":
            write_compact_stream(out, shuffle_block=None, shuffle_memory=memory, **common)
        else:
            write_annotated_stream(out, shuffle_memory=memory, **common)
    wall = time.perf_counter() - wall
    time.sleep(0.2)  # until the server has counted the workers that ended
    cpu, main_cpu = cpu_seconds() - cpu, time.process_time() - main_cpu
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    size = size or sum(path.stat().st_size for path in out.iterdir())
    return {
        "size": size,
        "wall": wall,
        "cpu": cpu,
        "main": 100 * main_cpu / max(cpu, 1e-9),
        "peak": int(peak.split()[1]) / 1024,
    }


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), *sys.argv[3:])))
        return
    million, rounds = (float(sys.argv[1]) if len(sys.argv) > 1 else 150.0), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, cap in (("compact", SEQ_LENGTH), ("annotated", 1920)):
            tokens = stored(folder / kind, int(million * 1e6), cap)
            (folder / f"{kind}.pickle").write_bytes(pickle.dumps(tokens))
        for _ in range(rounds):
            for kind in ("compact", "annotated"):
                for what in ("read", *(f"{memory}_{workers}" for memory in MEMORIES for workers in WORKERS), "copy"):
                    command = [sys.executable, __file__, "measure", str(folder), kind, what]
                    result = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    found.setdefault((kind, what), []).append(json.loads(result))
    print(f"{'':<42}{'MB':>8}{'wall s':>9}{'MB/s':>8}{'CPU s':>8}{'main %':>8}{'peak MiB':>10}{'copies':>8}")
    for (kind, what), runs in found.items():
        keys = ("size", "wall", "cpu", "main", "peak")
        size, wall, cpu, share, peak = (statistics.median(run[key] for run in runs) for key in keys)
        copied = statistics.median(run["wall"] for run in found[kind, "copy"])
        label = {"read": "reading lengths and ids", "copy": "a plain copy of the files"}.get(what)
        if label is None:
            memory, workers = map(int, what.split("_"))
            label = f"{memory >> 20} MiB, {workers} worker{'s' if workers > 1 else ''}"
        print(
            f"{kind + ': ' + label:<42}{size / 1e6:>8.0f}{wall:>9.2f}{size / 1e6 / wall:>8.0f}{cpu:>8.2f}{share:>8.0f}"
            f"{peak:>10.0f}{wall / copied:>8.1f}"
        )


if __name__ == "__main__":
    main()
