"""Artifacts in a bucket: the digests of local ones, made and sent once, and read through a cache of a fraction."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.shards import (
    Artifact,
    ArtifactStore,
    DamagedStore,
    IncompleteStore,
    ShardsError,
    StoreBusy,
    file_sha256,
    plan_artifact,
    unchanging,
)
from everytoken.shards.remote import FileCache, RemoteArtifactStore, StorageError, forget_mapped, map_npy, map_values
from tests.s3_server import S3Server
from tests.shards.functions import build_arrays, build_folder

URL = "s3://corpora/arrays"
REQUEST_BYTES = 1 << 14
ROWS = 100_000

Ran = Callable[[], list[str]]


@pytest.fixture(autouse=True)
def none_mapped() -> Iterator[None]:
    yield
    forget_mapped()


def planned(seed: int = 1, rows: int = ROWS) -> Artifact:
    return plan_artifact(build_arrays, seed=seed, rows=rows)


def on(folder: Path, bound: int = 1 << 30, url: str = URL) -> RemoteArtifactStore:
    return RemoteArtifactStore(url, FileCache(folder, bound), REQUEST_BYTES)


def held(cache: Path) -> int:
    return sum(path.stat().st_size for place in ("files", "artifacts") for path in (cache / place).rglob("*.*"))


def damage(bucket: Any, name: str, place: int = 20_000) -> str:
    """Flip a bit of an object; return its name."""
    found = next(one for one in bucket.find("corpora") if name in one and not one.endswith(".blocks"))
    content = bytearray(bucket.cat_file(found))
    content[place] ^= 1
    bucket.pipe_file(found, bytes(content))
    return str(found)


@pytest.mark.sensitive
def test_an_artifact_in_a_bucket_is_made_and_sent_once(bucket: Any, tmp_path: Path, server: S3Server, ran: Ran) -> None:
    store = on(tmp_path / "cache")
    assert not store.exists()
    with pytest.raises(IncompleteStore, match=r"s3://corpora/arrays has not been made\. Run the pipeline"):
        store.load()
    made = store.save(planned())
    local = ArtifactStore(tmp_path / "local").save(planned())
    assert made.root_digest == store.load().root_digest == local.root_digest
    assert {name: entry["sha256"] for name, entry in store.load().ledger["files"].items()} == {
        name: entry["sha256"] for name, entry in local.ledger["files"].items()
    }
    assert len(ran()) == 2
    server.puts()
    for place in ("cache", "another machine"):
        assert on(tmp_path / place).save(planned()).root_digest == local.root_digest
        assert ran() == [] and server.puts() == []
    before, state = bucket.find("corpora"), store.state()
    assert len(before) == 6, "a ledger, three files, the block tables of two of them"
    store.save(planned(seed=2))
    assert ran() == ["build_arrays"] and store.state() != state
    assert len(bucket.find("corpora")) == 6, "what was replaced is deleted"
    assert len(set(bucket.find("corpora")) & set(before)) == 1


@pytest.mark.sensitive
def test_files_are_fetched_and_checked_when_they_are_used(bucket: Any, tmp_path: Path, server: S3Server) -> None:
    local = ArtifactStore(tmp_path / "local").save(planned())
    on(tmp_path / "cache").save(planned())
    found = on(tmp_path / "other").load()
    server.asked.clear()
    assert found.is_made and found.statistics == {"rows": ROWS} and not server.asked
    assert found.path("name.txt").read_text() == "seed 1\n"
    assert not (found.folder / "tokens.bin").exists(), "a large file is only fetched when its path is asked for"
    with pytest.raises(FileNotFoundError):
        open_whole = found.folder / "tokens.bin"
        open_whole.read_bytes()
    assert ArtifactStore(found.folder).load().root_digest == local.root_digest
    for name in ("tokens.bin", "lengths.npy"):
        assert file_sha256(found.path(name)) == local.ledger["files"][name]["sha256"]
    with pytest.raises(DamagedStore, match=r"s3://corpora/arrays has no file 'other', only"):
        found.path("other")
    again = pickle.loads(pickle.dumps(found))
    assert again == found and again.path("tokens.bin") == found.path("tokens.bin")
    content = bytearray(found.path("tokens.bin").read_bytes())
    content[7] ^= 1
    found.path("tokens.bin").write_bytes(content)
    with unchanging([found]):
        assert file_sha256(found.path("tokens.bin")) == local.ledger["files"]["tokens.bin"]["sha256"]
    name = next(one for one in bucket.find("corpora") if one.endswith(".bin"))
    bucket.rm_file(name)
    with pytest.raises(DamagedStore, match=r"tokens.[0-9a-f]{16}.bin is gone.*Run the pipeline"), unchanging([found]):
        pass
    with pytest.raises(IncompleteStore, match="lacks tokens"):
        on(tmp_path / "other").load()


@pytest.mark.slow
@pytest.mark.sensitive
def test_blocks_are_read_as_a_mapped_file_through_a_cache_of_a_fraction(bucket: Any, tmp_path: Path) -> None:
    local = ArtifactStore(tmp_path / "local").save(planned())
    on(tmp_path / "cache").save(planned())
    bound = 5 * REQUEST_BYTES  # of 13 + 25 blocks
    found = on(tmp_path / "small", bound).load()
    tokens = map_values(found.folder / "tokens.bin", np.dtype("<u2"), 0, ROWS)
    wanted = np.memmap(local.path("tokens.bin"), "<u2", "r")
    rows, expected = tokens.reshape(ROWS // 25, 25), wanted.reshape(ROWS // 25, 25)
    rng = np.random.default_rng(0)
    for _ in range(20):
        numbers = rng.integers(0, len(rows), 50)
        assert (rows[numbers] == expected[numbers]).all()
        assert held(tmp_path / "small") <= bound
    assert rows.shape == expected.shape and len(rows) == len(expected) and rows.dtype == expected.dtype
    assert (rows[100:3000] == expected[100:3000]).all() and (rows[-1] == expected[-1]).all()
    assert (tokens[5:90_000:7] == wanted[5:90_000:7]).all() and tokens[ROWS - 1] == wanted[ROWS - 1]
    assert (rows[7, 3:] == expected[7, 3:]).all() and (rows[5:9, 2] == expected[5:9, 2]).all()
    assert (np.asarray(tokens) == wanted).all() and (tokens[10:2:-1] == wanted[10:2:-1]).all()
    with pytest.raises(IndexError, match="asked for 0 to 4000"):
        rows[np.array([0, 4000])]
    lengths, sorted_ = map_npy(found.folder / "lengths.npy", ROWS), np.load(local.path("lengths.npy"))
    for side in ("left", "right"):
        values = np.concatenate([sorted_[::999], [-1, 1 << 20]])
        assert (np.searchsorted(lengths, values, side) == np.searchsorted(sorted_, values, side)).all()
        assert int(np.searchsorted(lengths, 500, side)) == int(np.searchsorted(sorted_, 500, side))
    assert held(tmp_path / "small") <= bound
    with pytest.raises(StorageError, match=r"no room for 200,000 bytes .* Raise cache.bytes"):
        found.path("tokens.bin")


@pytest.mark.sensitive
def test_a_damaged_block_is_found_before_it_is_read(bucket: Any, tmp_path: Path) -> None:
    on(tmp_path / "cache").save(planned())
    found = on(tmp_path / "other").load()
    tokens = map_values(found.folder / "tokens.bin", np.dtype("<u2"), 0, ROWS)
    first = tokens[0]
    name = damage(bucket, "tokens.")
    with pytest.raises(DamagedStore, match=rf"s3://{name}, bytes 16,384 to 32,768, is not what was written"):
        tokens[9_000:9_001]
    assert tokens[0] == first and tokens[20_000] >= 0
    with pytest.raises(DamagedStore, match="is not what was written"):
        found.path("tokens.bin")
    bucket.rm_file(name)
    with pytest.raises(DamagedStore, match=r"is gone: another run replaced"):
        tokens[30_000:30_001]
    on(tmp_path / "other").save(planned())
    assert tokens[9_000:9_001].dtype == np.uint16


@pytest.mark.sensitive
def test_a_block_that_is_damaged_on_this_disk_is_fetched_again(bucket: Any, tmp_path: Path) -> None:
    local = ArtifactStore(tmp_path / "local").save(planned())
    on(tmp_path / "cache").save(planned())
    found = on(tmp_path / "other").load()
    tokens = map_values(found.folder / "tokens.bin", np.dtype("<u2"), 0, ROWS)
    assert tokens[0] == np.fromfile(local.path("tokens.bin"), "<u2", 1)[0]
    forget_mapped()
    for path in (tmp_path / "other/files").iterdir():
        path.write_bytes(b"\0" * (path.stat().st_size - 1))
    assert (tokens[:] == np.fromfile(local.path("tokens.bin"), "<u2")).all()


@pytest.mark.sensitive
def test_of_two_runs_that_save_one_artifact_the_second_is_refused(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    slow, fast = on(tmp_path / "slow"), on(tmp_path / "fast")
    objects = slow.remote.objects
    replace = objects.replace

    def late(name: str, content: bytes, version: str | None) -> None:
        fast.save(planned(seed=3))
        replace(name, content, version)

    monkeypatch.setattr(objects, "replace", late)
    with pytest.raises(StoreBusy, match=r"arrays was saved by another run .*Run the same command again"):
        slow.save(planned(seed=2))
    assert fast.load().path("name.txt").read_text() == "seed 3\n"
    monkeypatch.setattr(objects, "replace", replace)
    assert len(ran()) == 2
    slow.save(planned(seed=2))
    assert ran() == [], "what was made is kept"
    assert fast.load().path("name.txt").read_text() == "seed 2\n"


@pytest.mark.sensitive
def test_what_is_no_artifact_is_not_replaced(bucket: Any, tmp_path: Path) -> None:
    bucket.pipe_file("corpora/arrays/notes.txt", b"mine")
    with pytest.raises(ShardsError, match=r"s3://corpora/arrays holds \['notes.txt'\].*another URL"):
        on(tmp_path / "cache").save(planned())
    bucket.rm_file("corpora/arrays/notes.txt")
    bucket.pipe_file("corpora/arrays/ledger.json", b'{"format": "everytoken-ledger/2"}')
    with pytest.raises(ShardsError, match=r"holds something that is no artifact"):
        on(tmp_path / "cache").save(planned())
    bucket.pipe_file("corpora/arrays/ledger.json", b'{"format": "everytok')
    assert on(tmp_path / "cache").save(planned()).statistics == {"rows": ROWS}


@pytest.mark.sensitive
def test_folders_of_artifacts_give_way_but_for_those_in_use(bucket: Any, tmp_path: Path) -> None:
    for factor in range(3):
        on(tmp_path / "cache", url=f"s3://corpora/{factor}").save(plan_artifact(build_folder, factor=factor))
    small = tmp_path / "small"
    one = sum(p.stat().st_size for p in on(small, url="s3://corpora/0").load().folder.rglob("*.*"))
    loaded = [on(small, 2 * one + 100, f"s3://corpora/{factor}").load() for factor in range(3)]
    first, second = loaded[0].folder, loaded[1].folder
    with pytest.raises(StorageError, match="no room"):
        loaded[2].path("name.txt")
    loaded[1] = loaded[2]
    assert loaded[2].path("name.txt").read_text() == "factor 2\n"
    assert first.exists() and not second.exists()


SAVE = """
import sys
from pathlib import Path
from everytoken.shards import plan_artifact
from everytoken.shards.remote import FileCache, RemoteArtifactStore
from tests.shards.functions import build_arrays
planned = plan_artifact(build_arrays, seed=1, rows=30_000_000)
RemoteArtifactStore(sys.argv[1], FileCache(Path(sys.argv[2]), 1 << 30)).save(planned)
"""


@pytest.mark.slow
@pytest.mark.sensitive
def test_an_upload_that_is_killed_sends_only_what_is_missing(
    bucket: Any, tmp_path: Path, server: S3Server, ran: Ran
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    child = subprocess.Popen([sys.executable, "-c", SAVE, URL, str(tmp_path / "cache")], env=environment)
    parts: list[str] = []

    def kill(method: str, path: str, query: str) -> None:
        if method == "PUT" and "partNumber" in query:
            parts.append(f"{path}?{query}")
            if len(parts) == 8:
                time.sleep(0.5)
                child.send_signal(signal.SIGKILL)
                time.sleep(0.1)

    server.fail = kill
    assert child.wait(120) == -signal.SIGKILL
    server.fail = lambda method, path, query: None
    sent = bucket.call_s3("list_multipart_uploads", Bucket="corpora")["Uploads"]
    assert len(sent) == 1
    server.puts()
    ran()
    store = RemoteArtifactStore(URL, FileCache(tmp_path / "cache", 1 << 30))
    store.save(planned(rows=30_000_000))
    assert ran() == [], "it was made"
    again = [path for path in server.puts() if not path.endswith((".json", ".blocks"))]
    assert 1 <= len(again) <= 12 - 4 + 1, again  # 8 + 4 parts, of which some were there
    assert store.exists()
