"""Training from streams in a bucket, through a cache that holds a fraction of them: the bytes of local streams."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, ArtifactStore, Built, DamagedStore, file_sha256, plan_artifact, versioned
from everytoken.shards.remote import FileCache, RemoteArtifactStore, StorageError, forget_mapped
from everytoken.tokens import EncodingRules, WindowWriter, open_training_windows
from everytoken.tokens.order.parameters import DataParameters
from everytoken.tokens.streams import open_tokens
from everytoken.tokens.tokenizer.probe import library_record, probe_record
from everytoken.training import CheckpointParameters, DistributionParameters, TrainingError
from everytoken.training.checkpoints import CheckpointStore
from everytoken.training.run.artifacts import prepare_job, train
from everytoken.training.run.job import fetch_inputs
from everytoken.training.run.one_process import run_job
from tests.models.tiny_llama import LLAMA
from tests.s3_server import S3Server
from tests.shards.remote.conftest import bucket, one_server, server  # noqa: F401
from tests.training.tiny import EOS, SEQ, byte_encoder, training_parameters

REQUEST_BYTES = 4096
BOUND = 48_000
"""Of streams with more than 300,000 bytes."""
DATA = DataParameters(
    schedule="integer",
    weights=None,
    replay=None,
    later_epochs="as_written",
    seed=1,
    check="sampled",
    document_mask=False,
)


@versioned("tokenizer_of_bytes", 1)
def tokenizer_of_bytes(folder: Path) -> Built:
    encoder = byte_encoder(folder)
    return Built({"probe": probe_record(encoder.tokenizer.tokenizer)}, library_record())


@versioned("random_compact", 1)
def random_compact(folder: Path, *, windows: int) -> Built:
    with WindowWriter(folder / "compact", SEQ + 1, np.uint16) as writer:
        writer.write(numpy_generator(1).integers(0, 257, (windows, SEQ + 1)).astype(np.uint16))
    return Built({"windows": windows})


@versioned("random_annotated", 1)
def random_annotated(folder: Path, *, windows: int) -> Built:
    generator = numpy_generator(2)
    rows, lengths = generator.integers(0, 256, (windows, SEQ + 1)), generator.integers(1, SEQ, windows)
    rows[np.arange(SEQ + 1) >= lengths[:, None]] = 256
    with WindowWriter(folder / "annotated", SEQ + 1, np.uint16) as writer:
        writer.write(rows.astype(np.uint16))
    np.save(folder / "token_lengths.npy", lengths.astype(np.int32))
    return Built({"windows": windows})


PLANNED = {
    "compact": plan_artifact(random_compact, windows=5000),
    "annotated": plan_artifact(random_annotated, windows=3000),
}


@pytest.fixture(autouse=True)
def none_mapped() -> Iterator[None]:
    yield
    forget_mapped()


@pytest.fixture
def local(tmp_path: Path) -> dict[str, Artifact]:
    return {name: ArtifactStore(tmp_path / "local" / name).save(planned) for name, planned in PLANNED.items()}


def remote(folder: Path) -> dict[str, Artifact]:
    """Return the streams in the bucket, with a small cache in ``folder``."""
    for name, planned in PLANNED.items():
        RemoteArtifactStore(f"s3://corpora/{name}", FileCache(folder / "made", 1 << 30), REQUEST_BYTES).save(planned)
    cache = FileCache(folder / "cache", BOUND)
    return {name: RemoteArtifactStore(f"s3://corpora/{name}", cache, REQUEST_BYTES).load() for name in PLANNED}


def given_of(folder: Path, streams: dict[str, Artifact], runs: str, processes: int = 1) -> dict[str, Any]:
    tokenizer = ArtifactStore(folder / "tokenizer").save(plan_artifact(tokenizer_of_bytes))
    return {
        "streams": list(streams.items()),
        "seq_length": None,
        "rules": EncodingRules(tokenizer, EOS, "literal"),
        "model": LLAMA,
        "training": training_parameters(steps=30, batch_size=64, micro_batch_size=32),
        "data": DATA,
        "initial": None,
        "held_out": None,
        "checkpoints": CheckpointParameters(
            folder=str(folder / runs), every_steps=5, milestone_steps=None, mirror=None
        ),
        "distribution": DistributionParameters(processes=processes, nodes=1, strategy="ddp", device="cpu"),
    }


def trained(folder: Path, streams: dict[str, Artifact], runs: str, processes: int = 1) -> Artifact:
    planned = plan_artifact(train, **given_of(folder, streams, runs, processes))
    return ArtifactStore(folder / f"{runs}_checkpoint").save(planned)


def used(cache: Path) -> int:
    return sum(path.stat().st_size for place in ("files", "artifacts") for path in (cache / place).rglob("*.*"))


@pytest.mark.sensitive
def test_batches_of_remote_streams_are_those_of_local_ones(
    bucket: Any,  # noqa: F811
    tmp_path: Path,
    local: dict[str, Artifact],
) -> None:
    found = remote(tmp_path)
    here, there = (open_training_windows(streams, DATA, 64) for streams in (local, found))
    assert there.sizes == here.sizes == (5000, 3000)
    for step in (0, 3, 50, 51, 124, 7):
        for one, other in zip(here.read_batch(step), there.read_batch(step), strict=True):
            assert one.dtype == other.dtype and (one == other).all()
        assert used(tmp_path / "cache") <= BOUND
    flat, expected = (open_tokens(one).windows(7) for one in (found["compact"], local["compact"]))
    numbers = numpy_generator(3).integers(0, len(expected), 300)
    assert len(flat) == len(expected) and (flat.read(numbers) == expected.read(numbers)).all()


@pytest.mark.sensitive
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_checkpoint_of_remote_streams_has_the_bytes_of_local_ones(
    bucket: Any,  # noqa: F811
    tmp_path: Path,
    local: dict[str, Artifact],
    processes: int,
) -> None:
    expected = trained(tmp_path, local, "here", processes=processes)
    made = trained(tmp_path, remote(tmp_path), "there", processes=processes)
    assert made.root_digest == expected.root_digest
    assert file_sha256(made.path("model.safetensors")) == file_sha256(expected.path("model.safetensors"))
    assert used(tmp_path / "cache") <= BOUND


@pytest.mark.sensitive
def test_a_storage_that_dies_during_training_is_waited_for_and_then_named(
    bucket: Any,  # noqa: F811
    tmp_path: Path,
    local: dict[str, Artifact],
    server: S3Server,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    streams, seen = remote(tmp_path), []

    def die(method: str, path: str, query: str) -> str | None:
        if method == "GET" and path.endswith(".bin"):
            seen.append(path)
        return "drop" if len(seen) > 75 else None

    server.fail = die
    with caplog.at_level(logging.WARNING), pytest.raises(StorageError) as error:
        trained(tmp_path, streams, "there")
    assert "6 times in a row. Check the network and the storage, then run the same command again" in str(error.value)
    assert sum("trying again in" in record.message for record in caplog.records) >= 5
    server.fail = lambda method, path, query: None
    assert list((tmp_path / "there").rglob("model.safetensors")), "it was within the training"
    made = trained(tmp_path, streams, "there")
    assert len(made.measured["segments"]) >= 1
    assert made.root_digest == trained(tmp_path, local, "here").root_digest


@pytest.mark.sensitive
def test_a_damaged_block_is_in_no_batch(
    bucket: Any,  # noqa: F811
    tmp_path: Path,
    local: dict[str, Artifact],
) -> None:
    streams = remote(tmp_path)
    windows = open_training_windows(streams, DATA.model_copy(update={"check": "sizes"}), 64)
    name = next(one for one in bucket.find("corpora/compact") if one.endswith(".bin"))
    content = bytearray(bucket.cat_file(name))
    content[3 * REQUEST_BYTES + 5] ^= 1
    bucket.pipe_file(name, bytes(content))
    with pytest.raises(DamagedStore, match=rf"s3://{name}, bytes 12,288 to 16,384, is not what was written"):
        for step in range(30):
            batch = windows.read_batch(step)
            assert (batch[0] == open_training_windows(local, DATA, 64).read_batch(step)[0]).all()


@pytest.mark.sensitive
def test_a_full_check_fetches_whole_files_where_the_cache_has_room(
    bucket: Any,  # noqa: F811
    tmp_path: Path,
    local: dict[str, Artifact],
) -> None:
    streams, full = remote(tmp_path), DATA.model_copy(update={"check": "full"})
    with pytest.raises(StorageError, match=r"no room for 130,000 bytes .* Raise cache.bytes"):
        open_training_windows(streams, full, 64)
    cache = FileCache(tmp_path / "large", 1 << 20)
    large = {name: RemoteArtifactStore(f"s3://corpora/{name}", cache, REQUEST_BYTES).load() for name in PLANNED}
    batch = open_training_windows(large, full, 64).read_batch(3)
    assert (batch[0] == open_training_windows(local, DATA, 64).read_batch(3)[0]).all()


@pytest.mark.sensitive
def test_a_node_without_the_folder_of_a_stream_fetches_it(
    bucket: Any,  # noqa: F811
    tmp_path: Path,
    local: dict[str, Artifact],
) -> None:
    streams, expected = remote(tmp_path), trained(tmp_path, local, "here")
    made = RemoteArtifactStore("s3://corpora/tokenizer", FileCache(tmp_path / "cache", BOUND))
    rules = EncodingRules(made.save(plan_artifact(tokenizer_of_bytes)), EOS, "literal")
    job = prepare_job(**{**given_of(tmp_path, streams, "there"), "rules": rules})
    assert job.tokenizer is not None and len(job.remote) == 3
    shutil.rmtree(tmp_path / "cache")
    forget_mapped()
    run_job(job, lambda records: None, None)
    newest = CheckpointStore(job.folder, mirror=None, milestone_steps=None).newest()
    assert newest is not None and job.tokenizer.is_file()
    assert file_sha256(newest.folder / "model.safetensors") == file_sha256(expected.path("model.safetensors"))
    RemoteArtifactStore("s3://corpora/compact", FileCache(tmp_path / "made", 1 << 30), REQUEST_BYTES).save(
        plan_artifact(random_compact, windows=4999)
    )
    with pytest.raises(TrainingError, match=r"s3://corpora/compact was saved again since .* Run the pipeline"):
        fetch_inputs(job)
