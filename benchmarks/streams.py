"""How fast encoded documents become streams, beside reading them and beside a plain copy of the files written.

``python benchmarks/streams.py [million tokens] [rounds]``: documents of log-normal length in parts of at most
`PART_TOKENS` tokens, ids drawn with falling frequency, empty texts (what a sidecar costs is what its texts cost).
Streams are written in this process and by 2 workers. Every measurement is a process of its own; measurements are
interleaved and the table has medians of all rounds. MB/s count the bytes of the stream, EOS that pads included; reading
counts the ids. CPU seconds are those of all processes, and main % is the share of the main one; the peak is that of the
main one.

``python benchmarks/streams.py grow 1 2 5 10 [kind ...]``: streams of so many GB, by 2 workers within 1 GiB; how CPU
seconds grow. A size has the first parts of the largest one, so parts are alike. Here memory is anonymous memory of all
processes. Kinds: ``compact``; ``annotated``, without texts; ``texts``, the same with texts in the sidecar; ``raw``
shards of `SHARD_TOKENS`, of `SOURCES`; ``index`` of an annotated stream. The size is that of the stream, of ``index``
the stream's. On disk are the parts and twice the stream, with texts also these, once as they are.
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
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.provenance.indexes import MadeStream, index_padded_stream
from everytoken.seeds import numpy_generator, python_random
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Part,
    Rows,
    Shards,
    StoredPart,
    WorkerProcesses,
    plan_artifact,
    start_server,
    write_rows,
)
from everytoken.tokens.streams import write_annotated_stream, write_compact_stream, write_raw_shards

PART_TOKENS, VOCAB_SIZE, EOS_ID, SEQ_LENGTH = 25_000_000, 49_152, 0, 2048
MEMORIES = (1 << 30, 32 << 20)
WORKERS = (1, 2)
BATCH_ROWS = 8192
SHARD_TOKENS, SOURCES = 50_000_000, 5
GROWN = {"compact": (SEQ_LENGTH, 2.04), "annotated": (1920, 7.65), "texts": (1920, 7.65), "raw": (SEQ_LENGTH, 2.04)}
GROWN["index"] = GROWN["annotated"]
"""By kind: tokens of a document at most, and bytes of the stream for a token."""


def stored(folder: Path, tokens: int, cap: int, kind: str = "") -> Shards:
    """Store about ``tokens`` tokens as encoded documents of at most ``cap``, with what a kind needs."""
    text = words() if kind == "texts" else ""
    folder.mkdir()
    parts: list[Part] = []
    for index in range(count := -(-tokens // PART_TOKENS)):
        path = folder / f"part_{index:05d}.parquet"
        rows = tokens // count // 540
        table = (
            pa.table({"token_length": drawn(index, rows, cap)}) if kind == "index" else encoded(index, rows, cap, text)
        )

        def batches(table: pa.Table = table) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
            yield from table.to_batches(max_chunksize=BATCH_ROWS)
            return {}

        part = write_rows(Rows(table.schema, batches()), path).part
        parts.append(StoredPart(path.stem, index, path, part.rows, part.content_digest, part.sha256))
    return Shards(tuple(parts))


def words() -> str:
    """Return 32 MB of words; zstd makes them a third."""
    random = python_random(42)
    known = ["".join(random.choices("etaoinshrdlucm", k=2 + random.randrange(8))) for _ in range(20_000)]
    return " ".join(random.choices(known, weights=[1 / (rank + 3) for rank in range(len(known))], k=5_000_000))


def drawn(part: int, rows: int, cap: int) -> pa.Array:
    """Return the lengths of the documents of a part, which are all that an index reads."""
    return pa.array(np.minimum(numpy_generator(42, part).lognormal(5.9, 1.0, rows).astype(np.int32), cap - 1))


def encoded(part: int, rows: int, cap: int, text: str = "") -> pa.Table:
    """Return encoded documents; ``text``: what each has 4.5 characters a token of."""
    generator, lengths = numpy_generator(43, part), drawn(part, rows, cap).to_numpy().astype(np.int64)
    ends = np.cumsum(lengths + 1)
    ids = 1 + ((VOCAB_SIZE - 1) * generator.random(int(ends[-1])) ** 4).astype(np.uint16)
    ids[ends - 1] = EOS_ID
    offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
    begins = generator.integers(0, max(1, len(text) - 5 * cap), rows).tolist()
    until = (9 * lengths // 2 + begins).tolist()
    return pa.table(
        {
            "id": pa.array([f"{part}-{row}" for row in range(rows)], pa.large_string()),
            "text": pa.array([text[begin:end] for begin, end in zip(begins, until, strict=True)], pa.large_string()),
            "source": [f"source_{number}" for number in generator.integers(0, SOURCES, rows).tolist()],
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


def cpu_seconds() -> np.ndarray:
    """Return the CPU seconds of this process and of the workers that ended, which are children of the fork server.

    (2,): in user mode, in the system.
    """
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    user, system, of_ended, system_of_ended = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15])
    own = os.times()
    return np.array([own.user + user + of_ended, own.system + system + system_of_ended])


def anonymous_bytes(process: int) -> int:
    """Return the memory of a process and all below it that no file backs; 0 where the system does not say."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    total, left = 0, [process]
    while left:
        left += children.get(one := left.pop(), [])
        with suppress(OSError):
            for line in Path(f"/proc/{one}/status").read_text().splitlines():
                total += int(line.split()[1]) * 1024 if line.startswith("RssAnon") else 0
    return total


def watched(command: list[str]) -> tuple[dict[str, float], int]:
    """Run one measurement; return it, and the most anonymous bytes that its processes had, seen ten times a second."""
    most = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, anonymous_bytes(process.pid))
            time.sleep(0.1)
        assert process.stdout is not None
        printed = process.stdout.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(printed), most


def grow(sizes: list[float], kinds: list[str]) -> None:
    """Measure streams at sizes in GB."""
    print(f"{'':<12}{'GB':>8}{'wall s':>9}{'CPU s':>8}{'CPU s/GB':>10}{'system %':>10}{'main %':>8}{'all, MiB':>10}")
    for kind in kinds or GROWN:
        cap, token_bytes = GROWN[kind]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            parts = stored(folder / kind, int(max(sizes) * 1e9 / token_bytes), cap, kind).parts
            for size in sizes:
                some = Shards(parts[: max(1, round(len(parts) * size / max(sizes)))])
                (folder / f"{kind}.pickle").write_bytes(pickle.dumps(some))
                what = f"{MEMORIES[0]}_{WORKERS[-1]}"
                run, most = watched([sys.executable, __file__, "measure", name, kind, what])
                shutil.rmtree(folder / f"{kind}_{what}")
                print(
                    f"{kind:<12}{run['size'] / 1e9:>8.2f}{run['wall']:>9.1f}{run['cpu']:>8.1f}"
                    f"{run['cpu'] / run['size'] * 1e9:>10.1f}{run['system']:>10.0f}{run['main']:>8.0f}{most >> 20:>10}",
                    flush=True,
                )


def padded_stream(tokens: Shards) -> MadeStream:
    """Return what the index of an annotated stream of these documents looks at."""
    lengths = [batch.column(0).to_numpy() for part in tokens for batch in part.batches(["token_length"])]
    counts = {"windows": tokens.rows, "documents": tokens.rows, "tokens": int(np.concatenate(lengths).sum())}
    return MadeStream("0" * 64, {**counts, "padding_tokens": 0, "remainder_tokens": 0, "tokenizer": {}})


def planned(kind: str, tokens: Shards, tokenizer: Artifact, made: MadeStream | None, memory: int) -> Artifact:
    """Return what is made of the tokens, in the way in which the catalog makes it."""
    length: dict[str, Any] = {"seq_length": SEQ_LENGTH, "seed": 42}
    if kind == "index":
        return plan_artifact(index_padded_stream, lengths=tokens, split="annotated", stream=made, **length)
    common: dict[str, Any] = {"tokenizer": tokenizer, "shuffle_memory": memory}
    if kind == "raw":
        sizes = {"shard_size_tokens": SHARD_TOKENS, "dtype": "uint16"}
        return plan_artifact(write_raw_shards, tokens=[tokens], seed=42, **sizes, **common)
    if kind == "compact":
        return plan_artifact(write_compact_stream, tokens=tokens, shuffle_block=None, **length, **common)
    return plan_artifact(write_annotated_stream, tokens=tokens, **length, **common)


def measure(folder: Path, kind: str, what: str) -> dict[str, float]:
    """Run one measurement in this process."""
    tokens: Shards = pickle.loads((folder / f"{kind}.pickle").read_bytes())
    facts = {"sha256": "0" * 64, "vocab_size": VOCAB_SIZE, "eos_token": "<|endoftext|>", "eos_id": EOS_ID}
    tokenizer = Artifact(folder=folder, ledger={"statistics": facts, "files": {}, "root_digest": "0" * 64})
    out = folder / f"{kind}_{what}"
    shutil.rmtree(out, ignore_errors=True)
    made = padded_stream(tokens) if kind == "index" else None
    size = 0 if made is None else 2 * (SEQ_LENGTH + 1) * tokens.rows
    start_server()  # as a run has done before it comes to its streams
    time.sleep(1)
    wall, before, main_cpu = time.perf_counter(), cpu_seconds(), time.process_time()
    if what == "read":
        size = read(tokens)
    elif what == "copy":
        copy(folder / f"{kind}_{MEMORIES[0]}_{WORKERS[0]}", out)
    else:
        memory, workers = map(int, what.split("_"))
        ArtifactStore(out).save(planned(kind, tokens, tokenizer, made, memory), WorkerProcesses(workers))
    wall = time.perf_counter() - wall
    time.sleep(0.2)  # until the server has counted the workers that ended
    (user, system), main_cpu = (cpu_seconds() - before).tolist(), time.process_time() - main_cpu
    cpu = user + system
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    size = size or sum(path.stat().st_size for path in out.iterdir())
    return {
        "size": size,
        "wall": wall,
        "cpu": cpu,
        "system": 100 * system / max(cpu, 1e-9),
        "main": 100 * main_cpu / max(cpu, 1e-9),
        "peak": int(peak.split()[1]) / 1024,
    }


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), *sys.argv[3:])))
        return
    if sys.argv[1:2] == ["grow"]:
        kinds = [argument for argument in sys.argv[2:] if argument in GROWN]
        grow([float(argument) for argument in sys.argv[2:] if argument not in kinds], kinds)
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
