"""Indexes have the same bytes for any number of workers, and after kills at any moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everytoken.provenance.indexes import reflected_index
from everytoken.provenance.indexes.document_index import index_documents
from everytoken.provenance.indexes.reflected_index import index_reflected_stream
from everytoken.provenance.indexes.stream_index import (
    MadeStream,
    index_compact_stream,
    index_padded_stream,
    index_raw_shards,
)
from everytoken.seeds import numpy_generator, python_random
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Built,
    Engine,
    Inline,
    RangeFailed,
    WorkerProcesses,
    engines,
    plan_artifact,
    versioned,
)
from everytoken.tokens import write_annotated_stream, write_compact_stream
from everytoken.tokens.streams import write_raw_shards
from tests.shards.folders import content
from tests.tokens.corpora import encoded, stored, tokenizer_of
from tests.tokens.streams.killed_workers import kill_a_worker

INDEXES = [index_documents, index_compact_stream, index_padded_stream, index_reflected_stream, index_raw_shards]
ROWS = [3000, 0, 1, 2500, 2, 0, 1200]


@pytest.fixture(autouse=True)
def workers_for_small_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "POOL_BYTES", 0)
    monkeypatch.setattr(reflected_index, "_CHUNK", 1000)


@versioned("reflections_of_lengths", 1)
def reflections_of_lengths(folder: Path, *, lengths: list[int]) -> Built:
    """What the index reads of a reflected stream: every third window has a reflection, every 11th is masked."""
    own, number = np.array(lengths, np.int32), np.arange(len(lengths), dtype=np.int32)
    masked = (own > 0) & (number % 11 == 0)
    has = (own > 1) & (number % 3 == 0) & ~masked
    sizes = np.where(has, 1 + number % 2, 0).astype(np.int32)
    np.save(folder / "token_lengths.npy", np.where(masked, 0, own + sizes))
    np.save(folder / "reflection_index.npy", np.where(has, own // 2, -1))
    np.save(folder / "reflection_lengths.npy", sizes)
    counts = {"windows": len(own), "tokens": int(sizes.sum()), "document_tokens": int(own.sum()), "tokenizer": {}}
    return Built(counts)


def documents(rows: int, part: int) -> pa.Table:
    """Documents with ids of two types, ids that are shared, and documents without any."""
    ids = [None if i % 7 == 0 else str(i % 900) for i in range(rows)]
    types = [None if id is None else "number" if i % 3 else "string" for i, id in enumerate(ids)]
    columns = {
        "id": pa.array(ids, pa.large_string()),
        "id_type": pa.array(types, pa.string()),
        "source": pa.array([("web", "code")[i % 2] for i in range(rows)], pa.string()),
        "shard_index": pa.array([part] * rows, pa.int32()),
        "row": pa.array(range(rows), pa.int64()),
    }
    return pa.table(columns)


def planned(folder: Path, index: Callable[..., Any], memory: int = 40_000) -> Artifact:
    """Parts of which some are empty; the documents of two splits, or the lengths of one and its stream."""
    if index is index_documents:
        tables = [documents(count, part) for part, count in enumerate(ROWS)]
        splits = {name: stored(folder / name, tables, 400) for name in ("annotated", "unannotated")}
        return plan_artifact(index, documents=splits, memory=memory)
    draws = numpy_generator(1)
    tables = [encoded(draws.integers(0, 30, count).tolist(), part) for part, count in enumerate(ROWS)]
    tokens = stored(folder / "in", tables, 400)
    if not (folder / "stream").exists():
        (folder / "stream").mkdir()
    common = {"tokenizer": tokenizer_of(), "seed": 3, "shuffle_memory": 1 << 20}
    if index is index_raw_shards:
        shards = {"shard_size_tokens": 6000}
        built = write_raw_shards(folder / "stream", tokens=[tokens], dtype="uint16", **shards, **common)
        stream = MadeStream("a" * 64, built.statistics)
        lengths, order = {"unannotated": tokens}, ("unannotated",)
        return plan_artifact(index, lengths=lengths, order=order, stream=stream, seed=3, memory=memory, **shards)
    write = write_compact_stream if index is index_compact_stream else write_annotated_stream
    block = {"shuffle_block": 50} if index is index_compact_stream else {}
    built = write(folder / "stream", tokens=tokens, seq_length=31, **common, **block)
    if index is index_reflected_stream:
        lengths = np.load(folder / "stream" / "token_lengths.npy").tolist()
        reflected = ArtifactStore(folder / "reflected").save(plan_artifact(reflections_of_lengths, lengths=lengths))
        return plan_artifact(index, lengths=tokens, split="annotated", reflected=reflected, seq_length=31, seed=3)
    stream = MadeStream("a" * 64, built.statistics)
    return plan_artifact(index, lengths=tokens, split="unannotated", stream=stream, seq_length=31, seed=3)


def made(root: Path, artifact: Artifact, engine: Engine) -> dict[str, bytes]:
    ArtifactStore(root).save(artifact, engine)
    return content(root)


@pytest.mark.parametrize("index", INDEXES)
def test_an_index_has_the_same_bytes_for_any_number_of_workers(tmp_path: Path, index: Callable[..., Any]) -> None:
    artifact = planned(tmp_path, index)
    expected = made(tmp_path / "inline", artifact, Inline())
    assert sum(map(len, expected.values())) > 30_000
    for workers in (1, 2, 5):
        assert made(tmp_path / f"{workers}", artifact, WorkerProcesses(workers)) == expected


def test_a_document_with_an_id_without_type_is_named_by_split_and_part(tmp_path: Path) -> None:
    lies = documents(5, 1)
    lies = lies.set_column(1, "id_type", pa.nulls(5, pa.string()))
    splits = {"annotated": stored(tmp_path / "in", [documents(5, 0), lies])}
    index = plan_artifact(index_documents, documents=splits, memory=1 << 20)
    with pytest.raises(RangeFailed, match=r"annotated part_00001 failed: .* has an id without id_type; ingest"):
        ArtifactStore(tmp_path / "out" / "index").save(index, WorkerProcesses(2))
    assert list(content(tmp_path / "out")) == [".index.lock/"]


@pytest.mark.slow
@pytest.mark.sensitive
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers by the files of Linux")
@pytest.mark.parametrize("index", INDEXES)
def test_a_killed_worker_costs_an_index_no_byte(tmp_path: Path, index: Callable[..., Any]) -> None:
    artifact = planned(tmp_path, index)
    start = time.monotonic()
    expected = made(tmp_path / "undisturbed", artifact, WorkerProcesses(2))
    longest, moments = time.monotonic() - start, python_random(8, index.__name__)
    for number in range(3):
        killer = threading.Thread(target=kill_a_worker, args=(moments.uniform(0.3, 1) * longest,))
        killer.start()
        assert made(tmp_path / f"{number}", artifact, WorkerProcesses(2)) == expected
        killer.join()


@pytest.mark.slow
@pytest.mark.sensitive
@pytest.mark.parametrize("index", INDEXES)
def test_killed_at_random_moments_an_index_comes_whole_or_not_at_all(tmp_path: Path, index: Callable[..., Any]) -> None:
    artifact, root = planned(tmp_path, index), tmp_path / "out" / "index"
    start = time.monotonic()
    expected = made(tmp_path / "undisturbed", artifact, WorkerProcesses(2))
    longest, moments = time.monotonic() - start, python_random(7, index.__name__)
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                made(root, artifact, WorkerProcesses(2))
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not root.exists() or content(root) == expected
    assert made(root, artifact, WorkerProcesses(2)) == expected
    assert sorted(path.name for path in root.parent.iterdir()) == [".index.lock", "index"]
