"""Streams by path are known by the content of every file that reading them depends on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from everytoken.tokens import StreamError, WindowWriter
from everytoken.tokens.streams.streams_by_path import given_files
from tests.tokens.packing_inputs import pack


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    folder = tmp_path / "stream"
    folder.mkdir()
    with WindowWriter(folder / "annotated", 5, np.uint16) as writer:
        writer.write(np.arange(20, dtype=np.uint16).reshape(4, 5))
    np.save(folder / "token_lengths.npy", np.array([4, 3, 2, 1], np.int32))
    return folder


def digest(path: Path) -> str:
    return given_files("it", path, None).root_digest


@pytest.mark.parametrize("name", ["annotated", "annotated.bin", "annotated.idx"])
def test_a_prefix_is_its_pair_and_what_lies_beside_it(stream: Path, name: str) -> None:
    before = digest(stream / name)
    assert before == digest(stream / "annotated")
    for file in ("annotated.bin", "annotated.idx", "token_lengths.npy"):
        content = bytearray((stream / file).read_bytes())
        content[-1] ^= 1
        (stream / file).write_bytes(content)
        assert digest(stream / name) != before, file
        content[-1] ^= 1
        (stream / file).write_bytes(content)
    np.save(stream / "loss_mask.npy", np.zeros((4, 1), np.uint8))
    assert digest(stream / name) != before


def test_one_raw_shard_depends_on_its_manifest(tmp_path: Path) -> None:
    folder = pack(tmp_path).path("manifest.json").parent
    shard = next(iter(sorted(folder.glob("shard_*.bin"))))
    before = digest(shard)
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace("uint32", "uint16"))
    assert digest(shard) != before


def test_another_digest_than_the_pinned_one_and_a_missing_path_are_errors_by_name(stream: Path) -> None:
    assert given_files("it", stream, digest(stream).upper()).root_digest == digest(stream)
    with pytest.raises(StreamError, match=r"^it: .*expected 0000: these are other tokens"):
        given_files("it", stream, "0000")
    with pytest.raises(StreamError, match=r"^pretraining.streams.mine: .*nothing is not there"):
        given_files("pretraining.streams.mine", stream / "nothing", None)
    with pytest.raises(StreamError, match="is an empty folder"):
        (stream.parent / "empty").mkdir()
        given_files("it", stream.parent / "empty", None)


def test_an_artifact_is_known_by_its_ledger(tmp_path: Path) -> None:
    packed = pack(tmp_path)
    assert digest(packed.path("manifest.json").parent) == packed.root_digest
