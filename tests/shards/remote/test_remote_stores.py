"""Stores of parts in a bucket: the digests of local ones, made once, by one of two runs, after any end of a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everytoken.shards import (
    DamagedStore,
    IncompleteStore,
    Inline,
    PartsFailed,
    Store,
    StoreBusy,
    WorkerProcesses,
)
from everytoken.shards.remote import FileCache, RemoteStore, StorageError
from tests.s3_server import S3Server
from tests.shards.functions import add_one, count_up, given, sift, total

URL = "s3://corpora/numbers"


def texts(shards: Any) -> list[Any]:
    return [part.table().to_pylist() for part in shards]


def cached(cache: FileCache) -> int:
    return sum(path.stat().st_size for path in (cache.folder / "files").iterdir())


@pytest.mark.sensitive
@pytest.mark.parametrize("workers", [0, 2, 5])
def test_a_store_in_a_bucket_has_the_ledger_of_a_local_one(
    bucket: Any, cache: FileCache, tmp_path: Path, workers: int
) -> None:
    engine = WorkerProcesses(workers) if workers else Inline()
    planned = given(4).map(sift, factor=3)
    local = Store(tmp_path / "local")
    local.save(planned, Inline())
    remote = RemoteStore(URL, cache)
    assert not remote.exists()
    with pytest.raises(IncompleteStore, match=r"s3://corpora/numbers has not been made\. Run the pipeline"):
        remote.load()
    remote.save(planned, engine)
    assert remote.exists()
    assert bucket.cat_file("corpora/numbers/ledger.json") == (tmp_path / "local/ledger.json").read_bytes()
    for held, found in ((local.load(), remote.load()), (local.load().set_aside, remote.load().set_aside)):
        assert [part.digest for part in found] == [part.digest for part in held]
        assert texts(found) == texts(held)
    names = bucket.ls("corpora/numbers", detail=False)
    assert len(names) == 1 + 4 + 2, "ledger, parts, and what two of them set aside"


@pytest.mark.sensitive
def test_a_second_run_uploads_nothing_and_a_change_what_depends_on_it(
    bucket: Any, cache: FileCache, tmp_path: Path, server: S3Server, ran: Callable[[], list[str]]
) -> None:
    remote = RemoteStore(URL, cache)
    remote.save(given(3).map(count_up), Inline())
    assert len(ran()) == 3 and len(server.puts()) == 4
    elsewhere = RemoteStore(URL, FileCache(tmp_path / "another machine", 1 << 30))
    elsewhere.save(given(3).map(count_up), Inline())
    assert ran() == [] and server.puts() == []
    elsewhere.save(given(3, changed=1).map(count_up), Inline())
    assert ran() == ["part_00001"] and len(server.puts()) == 2
    assert len(bucket.ls("corpora/numbers")) == 4, "the part that was replaced is deleted"
    bucket.rm_file(next(name for name in bucket.ls("corpora/numbers", detail=False) if "part_00002" in name))
    assert not remote.exists()
    with pytest.raises(IncompleteStore, match=r"s3://corpora/numbers lacks 1 of 3 parts.*part_00002"):
        remote.load()
    remote.save(given(3, changed=1).map(count_up), Inline())
    assert ran() == ["part_00002"] and remote.exists()


@pytest.mark.sensitive
def test_a_store_is_made_from_another_and_extends_it(bucket: Any, cache: FileCache, tmp_path: Path) -> None:
    def made(store: Callable[[str], Any], engine: Any) -> Any:
        first, second, third = store("a"), store("b"), store("c")
        first.save(given(3).map(count_up), engine)
        second.save(first.load().map(add_one, add=2), engine)
        third.save(second.load().reduce(total), engine)
        return second.load(), third.load()

    remote = made(lambda name: RemoteStore(f"s3://corpora/{name}", cache), WorkerProcesses(2))
    local = made(lambda name: Store(tmp_path / name), Inline())
    assert [found.root_digest for found in remote] == [found.root_digest for found in local]
    assert texts(remote[0]) == texts(local[0]) and remote[1].values == local[1].values


@pytest.mark.sensitive
def test_of_two_runs_that_save_one_store_the_second_is_refused_and_can_go_on(
    bucket: Any, cache: FileCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Callable[[], list[str]]
) -> None:
    slow, fast = RemoteStore(URL, cache), RemoteStore(URL, FileCache(tmp_path / "other", 1 << 30))
    slow.save(given(2).map(count_up), Inline())
    replace = slow.folder.objects.replace

    def late(name: str, content: bytes, version: str | None) -> None:
        fast.save(given(2).map(count_up, factor=3), Inline())
        replace(name, content, version)

    monkeypatch.setattr(slow.folder.objects, "replace", late)
    with pytest.raises(StoreBusy, match=r"numbers was saved by another run .*Run the same command again"):
        slow.save(given(2).map(count_up, factor=2), Inline())
    assert fast.exists() and texts(fast.load())[1][0]["number"] == 3000
    monkeypatch.setattr(slow.folder.objects, "replace", replace)
    ran()
    slow.save(given(2).map(count_up, factor=2), Inline())
    assert ran() == ["part_00001"], "the other part is the same in both"
    assert texts(slow.load())[1][0]["number"] == 2000


@pytest.mark.sensitive
def test_parts_are_read_through_a_cache_that_stays_below_its_bound(
    bucket: Any, tmp_path: Path, cache: FileCache
) -> None:
    RemoteStore(URL, cache).save(given(6).map(count_up, rows=400), Inline())
    sizes = [part.size for part in RemoteStore(URL, cache).load()]
    small = FileCache(tmp_path / "small", max(sizes) * 2 + 10)
    shards = RemoteStore(URL, small).load()
    for _ in range(2):
        assert texts(shards) == texts(RemoteStore(URL, cache).load())
        assert 0 < cached(small) <= small.bound
    with shards.parts[0].at_hand() as first, shards.parts[1].at_hand():
        with pytest.raises(StorageError, match=r"no room for .*Raise cache.bytes to what all workers read at a time"):
            shards.parts[2].table()
        assert first.exists(), "a copy that is needed is never removed"
    shards.parts[2].table()
    tiny = RemoteStore(URL, FileCache(tmp_path / "tiny", 10)).load()
    with pytest.raises(StorageError, match=r"whose bound is 10 bytes"):
        tiny.parts[0].table()


@pytest.mark.sensitive
def test_a_damaged_object_is_named_and_deleting_it_repairs_the_store(
    bucket: Any, tmp_path: Path, cache: FileCache, ran: Callable[[], list[str]]
) -> None:
    remote = RemoteStore(URL, cache)
    remote.save(given(2).map(count_up), Inline())
    ran()
    name = next(name for name in bucket.ls("corpora/numbers", detail=False) if "part_00001" in name)
    content = bytearray(bucket.cat_file(name))
    content[100] ^= 1
    bucket.pipe_file(name, bytes(content))
    other = RemoteStore(URL, FileCache(tmp_path / "other", 1 << 30))
    with pytest.raises(DamagedStore, match=rf"s3://{name} is not what was written: .*Delete this object and run"):
        other.load().parts[1].table()
    assert not list((tmp_path / "other/files").iterdir())
    bucket.rm_file(name)
    other.save(given(2).map(count_up), Inline())
    assert ran() == ["part_00001"]
    assert len(other.load().parts[1].table()) == 160


@pytest.mark.sensitive
def test_a_damaged_local_copy_is_fetched_again(bucket: Any, cache: FileCache) -> None:
    remote = RemoteStore(URL, cache)
    remote.save(given(2).map(count_up), Inline())
    part: Any = remote.load().parts[0]
    content = bytearray(part.path.read_bytes())
    content[50] ^= 1
    part.path.write_bytes(content)
    part.verify()
    assert len(part.table()) == 160


@pytest.mark.sensitive
@pytest.mark.parametrize("how", ["503", "drop", "slow", "cut"])
def test_a_storage_that_fails_now_and_then_costs_nothing(
    bucket: Any, cache: FileCache, tmp_path: Path, server: S3Server, how: str
) -> None:
    number = iter(range(1 << 30))
    server.fail = lambda method, path, query: how if next(number) % 3 == 0 and method != "HEAD" else None
    RemoteStore(URL, cache).save(given(3).map(count_up), Inline())
    found = RemoteStore(URL, FileCache(tmp_path / "other", 1 << 30)).load()
    Store(tmp_path / "local").save(given(3).map(count_up), Inline())
    assert texts(found) == texts(Store(tmp_path / "local").load())


@pytest.mark.sensitive
def test_a_storage_that_stays_away_is_an_error_after_which_a_run_goes_on(
    bucket: Any, cache: FileCache, server: S3Server, ran: Callable[[], list[str]]
) -> None:
    remote = RemoteStore(URL, cache)
    server.fail = lambda method, path, query: "503" if method == "PUT" and "part_00001" in path else None
    with pytest.raises(PartsFailed, match=r"part_00001.*6 times in a row. Check the network and the storage, then run"):
        remote.save(given(3).map(count_up), Inline())
    assert len(ran()) == 3 and not remote.exists()
    with pytest.raises(IncompleteStore, match="is not complete"):
        remote.load()
    server.fail = lambda method, path, query: None
    remote.save(given(3).map(count_up), Inline())
    assert ran() == ["part_00001"] and remote.exists()


@pytest.mark.sensitive
def test_a_bucket_that_is_not_there_and_a_login_that_is_missing_are_named(
    server: S3Server, cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match=r"s3://nowhere.*no such bucket. Make it, or correct the URL"):
        RemoteStore("s3://nowhere/x", cache).save(given(1).map(count_up), Inline())
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(StorageError, match=r"access to s3://corpora/x.*denied.*Give credentials"):
        RemoteStore("s3://corpora/x", cache).save(given(1).map(count_up), Inline())
    s3fs.S3FileSystem.clear_instance_cache()


SAVE = """
import sys
from pathlib import Path
from everytoken.shards import Inline
from everytoken.shards.remote import FileCache, RemoteStore
from tests.shards.functions import count_up, given
RemoteStore(sys.argv[1], FileCache(Path(sys.argv[2]), 1 << 30)).save(given(6).map(count_up), Inline())
"""


@pytest.mark.sensitive
def test_a_run_that_is_killed_at_any_request_is_finished_by_the_next(
    bucket: Any, cache: FileCache, tmp_path: Path, server: S3Server
) -> None:
    Store(tmp_path / "local").save(given(6).map(count_up), Inline())
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    for puts in (1, 4, 7):  # before the first part is there, amid the parts, before the ledger
        url, place = f"s3://corpora/killed{puts}", tmp_path / f"cache{puts}"
        command = [sys.executable, "-c", SAVE, url, str(place)]
        seen: list[str] = []
        child = subprocess.Popen(command, env=environment)

        def kill(method: str, path: str, query: str, seen: list[str] = seen, child: Any = child, n: int = puts) -> None:
            if method == "PUT":
                seen.append(path)
                if len(seen) == n:
                    child.send_signal(signal.SIGKILL)
                    time.sleep(0.05)

        server.fail = kill
        assert child.wait(60) == -signal.SIGKILL
        server.fail = lambda method, path, query: None
        remote = RemoteStore(url, FileCache(place, 1 << 30))
        server.puts()
        remote.save(given(6).map(count_up), Inline())
        assert len(server.puts()) <= 8 - puts + 1, "parts that are there are not sent again"
        print(bucket.find(url), server.asked[-60:])
        assert remote.ledger() == Store(tmp_path / "local").ledger()
        assert texts(remote.load()) == texts(Store(tmp_path / "local").load())
