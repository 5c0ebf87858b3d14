"""Streams and raw shards have the same bytes for any number of workers, and after kills at any moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everytoken.seeds import python_random
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Engine,
    Inline,
    RangeFailed,
    WorkerProcesses,
    engines,
    file_sha256,
    plan_artifact,
)
from everytoken.shards.table_digests import stored_content
from everytoken.tokens import write_annotated_stream, write_compact_stream
from everytoken.tokens.streams import write_raw_shards
from tests.shards.folders import content
from tests.tokens.corpora import encoded, stored, tokenizer_of
from tests.tokens.streams.killed_workers import kill_a_worker

WRITERS = {
    write_compact_stream: "compact.bin",
    write_annotated_stream: "annotated.bin",
    write_raw_shards: "shard_00000.bin",
}


@pytest.fixture(autouse=True)
def workers_for_small_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "POOL_BYTES", 0)


def planned(folder: Path, write: Callable[..., Any], memory: int, kind: pa.DataType | None = None) -> Artifact:
    """Parts of which some are empty, and some shorter than a window."""
    rows = [200, 0, 1, 150, 2, 0]
    tables = [encoded([(7 * i + part) % 30 for i in range(count)], part, kind) for part, count in enumerate(rows)]
    tokens = stored(folder / "in", tables, 17)
    common = {"tokenizer": tokenizer_of(kind), "seed": 3, "shuffle_memory": memory}
    if write is write_raw_shards:
        dtype = "uint32" if kind == pa.uint32() else "uint16"
        return plan_artifact(write, tokens=[tokens, tokens], shard_size_tokens=6000, dtype=dtype, **common)
    block = {"shuffle_block": 50} if write is write_compact_stream else {}
    return plan_artifact(write, tokens=tokens, seq_length=31, **common, **block)


def made(root: Path, artifact: Artifact, engine: Engine) -> dict[str, bytes]:
    ArtifactStore(root).save(artifact, engine)
    return content(root)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("kind", [pa.uint16(), pytest.param(pa.uint32(), marks=pytest.mark.slow)])
def test_all_files_have_the_same_bytes_for_any_number_of_workers(
    tmp_path: Path, write: Callable[..., Any], kind: pa.DataType
) -> None:
    expected = made(tmp_path / "inline", planned(tmp_path, write, 1 << 30, kind), Inline())
    assert len(expected[WRITERS[write]]) > 10_000
    for memory, workers in ((1000, 1), (1000, 2), (30_000, 5), (1 << 30, 2)):
        root = tmp_path / f"{memory}_{workers}"
        assert made(root, planned(tmp_path, write, memory, kind), WorkerProcesses(workers)) == expected


def test_digests_that_the_writer_of_the_sidecar_takes_are_those_of_the_file(tmp_path: Path) -> None:
    artifact = ArtifactStore(tmp_path / "out").save(planned(tmp_path, write_annotated_stream, 1000), WorkerProcesses(2))
    path, entry = artifact.path("sidecar.parquet"), artifact.ledger["files"]["sidecar.parquet"]
    found = {"sha256": file_sha256(path), "content_digest": stored_content(path)[1], "bytes": path.stat().st_size}
    assert entry == found


@pytest.mark.parametrize("write", [write_compact_stream, write_annotated_stream])
def test_an_error_in_a_part_names_it_and_leaves_nothing(tmp_path: Path, write: Callable[..., Any]) -> None:
    tokens = stored(tmp_path / "in", [encoded([3, 4]), encoded([2, 9], 1), encoded([1], 2)])
    common = {"tokenizer": tokenizer_of(vocab_size=7), "seq_length": 31, "seed": 3, "shuffle_memory": 1 << 20}
    block = {"shuffle_block": None} if write is write_compact_stream else {}
    stream = plan_artifact(write, tokens=tokens, **common, **block)
    with pytest.raises(RangeFailed, match=r"part_00001 failed: .*StreamError: part_00001 row 1: token id 7, expected"):
        ArtifactStore(tmp_path / "out" / "stream").save(stream, WorkerProcesses(2))
    assert list(content(tmp_path / "out")) == [".stream.lock/"]


def test_an_error_in_a_part_of_raw_shards_names_it_and_leaves_nothing(tmp_path: Path) -> None:
    lies = encoded([2, 9], 1)
    column = lies.column_names.index("token_length")
    lies = lies.set_column(column, "token_length", pa.array([2, 8], pa.int32()))
    tokens = [stored(tmp_path / "in", [encoded([3, 4]), lies, encoded([1], 2)])]
    common = {"tokenizer": tokenizer_of(), "dtype": "uint16", "seed": 3, "shuffle_memory": 1 << 20}
    shards = plan_artifact(write_raw_shards, tokens=tokens, shard_size_tokens=10, **common)
    with pytest.raises(RangeFailed, match=r"part_00001 failed: .*StreamError: part_00001 row 1: 10 tokens, expected"):
        ArtifactStore(tmp_path / "out" / "raw_shards").save(shards, WorkerProcesses(2))
    assert list(content(tmp_path / "out")) == [".raw_shards.lock/"]


@pytest.mark.slow
@pytest.mark.sensitive
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers by the files of Linux")
@pytest.mark.parametrize("write", WRITERS)
def test_a_killed_worker_costs_no_byte(tmp_path: Path, write: Callable[..., Any]) -> None:
    stream = planned(tmp_path, write, 1000)
    start = time.monotonic()
    expected = made(tmp_path / "undisturbed", stream, WorkerProcesses(2))
    longest, moments = time.monotonic() - start, python_random(8, write.__name__)
    for number in range(3):
        killer = threading.Thread(target=kill_a_worker, args=(moments.uniform(0.3, 1) * longest,))
        killer.start()
        assert made(tmp_path / f"{number}", stream, WorkerProcesses(2)) == expected
        killer.join()


@pytest.mark.slow
@pytest.mark.sensitive
@pytest.mark.parametrize("write", WRITERS)
def test_killed_at_random_moments_a_stream_comes_whole_or_not_at_all(tmp_path: Path, write: Callable[..., Any]) -> None:
    stream, root = planned(tmp_path, write, 1000), tmp_path / "out" / "stream"
    start = time.monotonic()
    expected = made(tmp_path / "undisturbed", stream, WorkerProcesses(2))
    longest, moments = time.monotonic() - start, python_random(7, write.__name__)
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                made(root, stream, WorkerProcesses(2))
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not root.exists() or content(root) == expected
    assert made(root, stream, WorkerProcesses(2)) == expected
    assert sorted(path.name for path in root.parent.iterdir()) == [".stream.lock", "stream"]
