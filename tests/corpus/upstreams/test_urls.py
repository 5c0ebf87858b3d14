from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pydantic import ValidationError

from everytoken.corpus.errors import RowError, UpstreamError
from everytoken.corpus.ingestion.plan import make_shard_plan
from everytoken.corpus.ingestion.source import UpstreamFile, find_files
from everytoken.corpus.upstreams import urls
from everytoken.corpus.upstreams.fetch import Partial
from tests.corpus.ingestion.test_shard_plan import LIMITS, plan_parameters
from tests.corpus.upstreams.test_source import path_source

ROWS = {"b.jsonl": b'{"text": "b"}\n', "a/c.jsonl": b'{"text": "c"}\n' * 9, "a/d/e.jsonl": b"", "a/x.txt": b"x"}
NAMES = ["a/c.jsonl", "a/d/e.jsonl", "b.jsonl"]


def sums(files: dict[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in files).encode()


def content_of(file: UpstreamFile) -> bytes:
    with file.open() as stream:
        return stream.read()


def partials(folder: Path) -> list[Path]:
    return list(folder.rglob("*.partial"))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []
    monkeypatch.setattr("everytoken.shards.remote.retries.pause", waited.append)
    return waited


@pytest.fixture
def memory(waits: list[float]) -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    for name, content in ROWS.items():
        filesystem.pipe_file(f"/texts/{name}", content)
    filesystem.pipe_file("/texts-of-others/z.jsonl", b"{}\n")
    yield filesystem
    filesystem.store.clear()


def test_a_url_is_listed_sorted_and_fetched_when_opened(memory: Any, tmp_path: Path) -> None:
    files = find_files("s", path_source("memory://texts").upstream, tmp_path)
    assert [file.path for file in files] == NAMES
    assert [file.size for file in files] == [len(ROWS[name]) for name in NAMES]
    assert not list(tmp_path.rglob("*.jsonl"))
    assert [content_of(file) for file in files] == [ROWS[name] for name in NAMES]
    assert files[0].location.relative_to(tmp_path).parts[0] == "path"
    memory.store.clear()
    assert [content_of(file) for file in files] == [ROWS[name] for name in NAMES], "copies are there"
    assert partials(tmp_path) == []


def test_planning_takes_the_digest_of_bytes_where_nothing_tells_it(memory: Any, tmp_path: Path) -> None:
    sources = {"s": path_source("memory://texts")}
    files = {"s": find_files("s", sources["s"].upstream, tmp_path)}
    plan = make_shard_plan(sources, files, plan_parameters(n_shards=1), LIMITS)
    (shard,) = plan["shards"]
    assert shard["digest"] == f"sha256:{hashlib.sha256(ROWS[shard['path']]).hexdigest()}"
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == [shard["path"].split("/")[-1]]
    assert "memory" not in json.dumps(plan)


@pytest.mark.parametrize("same_size", [True, False])
def test_an_old_copy_is_not_taken_for_a_file_that_changed(memory: Any, tmp_path: Path, same_size: bool) -> None:
    source = path_source("memory://texts", "b.jsonl")
    (old,) = find_files("s", source.upstream, tmp_path)
    old.open().close()
    changed = ROWS["b.jsonl"].replace(b"b", b"B") if same_size else b"other\n"
    memory.pipe_file("/texts/b.jsonl", changed)
    (new,) = find_files("s", source.upstream, tmp_path)
    assert new.location == old.location
    assert content_of(new) == changed
    with pytest.raises(RowError, match=r"file b.jsonl: it changed at memory://texts since it was listed"):
        old.open()


def test_a_file_that_changes_while_it_is_fetched_is_refused(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = find_files("s", path_source("memory://texts", "b.jsonl").upstream, tmp_path)
    write = Partial.write

    def write_and_change(stream: Any, block: bytes) -> None:
        write(stream, block)
        memory.pipe_file("/texts/b.jsonl", ROWS["b.jsonl"].replace(b"b", b"B"))

    monkeypatch.setattr(Partial, "write", write_and_change)
    with pytest.raises(RowError, match="it changed at memory://texts since it was listed"):
        file.open()
    assert not file.location.exists()


def test_a_file_that_disappears_and_a_folder_that_is_not_there_are_named(memory: Any, tmp_path: Path) -> None:
    files = find_files("s", path_source("memory://texts").upstream, tmp_path)
    memory.rm_file("/texts/b.jsonl")
    with pytest.raises(RowError, match=r"file b.jsonl: b.jsonl of memory://texts is not there"):
        files[2].open()
    assert content_of(files[0]) == ROWS["a/c.jsonl"]
    with pytest.raises(UpstreamError, match=r"source 's': .*memory://none"):
        find_files("s", path_source("memory://none").upstream, tmp_path)
    with pytest.raises(UpstreamError, match=r"no file in memory://texts matches '\*.csv'"):
        find_files("s", path_source("memory://texts", "*.csv").upstream, tmp_path)


def test_a_read_that_fails_goes_on_from_where_it_was(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    (file,) = find_files("s", path_source("memory://texts", "a/c.jsonl").upstream, tmp_path)
    monkeypatch.setattr(urls, "_BLOCK", 10)
    asked: list[int] = []
    opened = memory.open

    class Failing:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self._stream.close()

        def seek(self, place: int) -> None:
            asked.append(place)
            self._stream.seek(place)

        def read(self, size: int) -> bytes:
            if self._stream.tell() in (30, 60) and self._stream.tell() not in asked:
                raise ConnectionResetError("reset")
            return self._stream.read(size)

    monkeypatch.setattr(type(memory), "open", lambda self, *args, **rest: Failing(opened(*args, **rest)))
    assert content_of(file) == ROWS["a/c.jsonl"]
    assert asked == [30, 60]
    assert waits == [1, 1]


def test_a_protocol_whose_package_is_missing_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(urls, "url_to_fs", missing)
    with pytest.raises(
        UpstreamError, match=r"s3://bucket needs a package .*Install s3fs.*pip install 'everytoken\[s3\]'"
    ):
        find_files("s", path_source("s3://bucket").upstream, tmp_path)


def test_an_unknown_protocol_is_named(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"source 's': nope://x cannot be read.*[Pp]rotocol"):
        find_files("s", path_source("nope://x").upstream, tmp_path)


def test_a_password_in_a_url_is_refused_because_parameters_are_recorded() -> None:
    with pytest.raises(ValidationError, match="root has a password in its URL"):
        path_source("ftp://me:secret@host/texts")


def test_a_file_url_is_a_folder_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/b.jsonl").write_bytes(ROWS["b.jsonl"])
    (file,) = find_files("s", path_source(f"file://{tmp_path}/texts").upstream, tmp_path / "files")
    assert file.location == tmp_path / "texts/b.jsonl"
    assert file.remote is None


@pytest.fixture(params=["local", "remote"])
def checked_root(request: pytest.FixtureRequest, tmp_path: Path, memory: Any) -> tuple[str, Any]:
    """A folder with a checksum file, and how another file is written there."""
    root = str(tmp_path / "texts") if request.param == "local" else "memory://texts"

    def write(name: str, content: bytes | None) -> None:
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
            memory.rm_file(f"/texts/{name}")
        else:
            path.write_bytes(content)
            memory.pipe_file(f"/texts/{name}", content)

    for name, content in ROWS.items():
        write(name, content)
    write("SHA256SUMS", sums(ROWS))
    return root, write


def test_a_checksum_file_pins_what_it_lists(checked_root: tuple[str, Any], tmp_path: Path) -> None:
    root, _ = checked_root
    sources = {"s": path_source(root, checksums="SHA256SUMS")}
    files = {"s": find_files("s", sources["s"].upstream, tmp_path / "files")}
    assert [file.pinned for file in files["s"]] == [f"sha256:{hashlib.sha256(ROWS[n]).hexdigest()}" for n in NAMES]
    plan = make_shard_plan(sources, files, plan_parameters(), LIMITS)
    assert not list((tmp_path / "files").rglob("*.jsonl")), "the plan needs no file"
    for file, digest in ((f, s["digest"]) for f in files["s"] for s in plan["shards"] if s["path"] == f.path):
        file.require(digest)
    assert len(find_files("s", path_source(root, "**", checksums="SHA256SUMS").upstream, tmp_path / "files")) == len(
        ROWS
    )


def test_a_file_with_another_digest_than_listed_is_an_error(checked_root: tuple[str, Any], tmp_path: Path) -> None:
    root, write = checked_root
    write("b.jsonl", ROWS["b.jsonl"].replace(b"b", b"B"))
    (file,) = find_files("s", path_source(root, "b.jsonl", checksums="SHA256SUMS").upstream, tmp_path / "files")
    assert file.pinned is not None
    with pytest.raises(
        RowError, match=r"file b.jsonl: .*expected (SHA-256 |sha256:)[0-9a-f]{64}, found (sha256:)?[0-9a-f]"
    ):
        file.require(file.pinned)


def test_a_local_file_that_differs_from_its_checksum_is_an_error_at_the_plan(tmp_path: Path) -> None:
    root, name = tmp_path / "texts", "b.jsonl"
    root.mkdir()
    (root / "SUMS").write_bytes(sums({name: ROWS[name]}))
    (root / name).write_bytes(b"other\n")
    expected, found = (f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (ROWS[name], b"other\n"))
    sources = {"s": path_source(root, checksums="SUMS")}
    files = {"s": find_files("s", sources["s"].upstream, tmp_path / "files")}
    with pytest.raises(RowError, match=rf"file b.jsonl: the checksum file says {expected}, the file has {found}"):
        make_shard_plan(sources, files, plan_parameters(), LIMITS)


def test_a_local_file_that_changes_with_its_checksum_makes_another_plan(tmp_path: Path) -> None:
    root, name = tmp_path / "texts", "b.jsonl"
    root.mkdir()
    sources, digests = {"s": path_source(root, checksums="SUMS")}, []
    for content in (ROWS[name], b"other\n"):
        (root / name).write_bytes(content)
        (root / "SUMS").write_bytes(sums({name: content}))
        files = {"s": find_files("s", sources["s"].upstream, tmp_path / "files")}
        plan = make_shard_plan(sources, files, plan_parameters(), LIMITS)
        digests.append(plan["shards"][0]["digest"])
    assert digests == [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (ROWS[name], b"other\n")]
    (root / name).write_bytes(ROWS[name])  # after the plan, and its checksum not
    with pytest.raises(RowError, match=f"the checksum file says {digests[1]}, the file has {digests[0]}"):
        files["s"][0].planned_digest()


def test_a_file_on_one_side_only_is_an_error(checked_root: tuple[str, Any], tmp_path: Path) -> None:
    root, write = checked_root
    source = path_source(root, checksums="SHA256SUMS")
    write("a/new.jsonl", b"{}\n")
    with pytest.raises(UpstreamError, match=r"SHA256SUMS of .* does not list \['a/new.jsonl'\]"):
        find_files("s", source.upstream, tmp_path / "files")
    write("a/new.jsonl", None)
    write("b.jsonl", None)
    with pytest.raises(UpstreamError, match=r"lists \['b.jsonl'\], which match .* are not there"):
        find_files("s", source.upstream, tmp_path / "files")
    assert len(find_files("s", path_source(root, "a/**", checksums="SHA256SUMS").upstream, tmp_path / "files")) == 3


def test_a_checksum_file_that_is_not_there_or_malformed_is_named(checked_root: tuple[str, Any], tmp_path: Path) -> None:
    root, write = checked_root
    with pytest.raises(UpstreamError, match=r"source 's': .*NONE"):
        find_files("s", path_source(root, checksums="NONE").upstream, tmp_path / "files")
    write("SHA256SUMS", b"what\n")
    with pytest.raises(UpstreamError, match=r"source 's': checksum file SHA256SUMS of .*, line 1: expected 64 hex"):
        find_files("s", path_source(root, checksums="SHA256SUMS").upstream, tmp_path / "files")
    with pytest.raises(ValidationError, match="checksums must be a path below root"):
        path_source(root, checksums="../SHA256SUMS")


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, waits: list[float], tmp_path: Path) -> Iterator[Any]:
    """A bucket of a real S3 server, by the environment as a user would set it."""
    settings = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "s3cret", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, "ENDPOINT_URL": s3_server}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem()
    filesystem.mkdir("texts")
    for name, content in ROWS.items():
        filesystem.pipe_file(f"texts/dolma/{name}", content)
    filesystem.touch("texts/dolma/empty-folder/")
    filesystem.pipe_file("texts/dolma-of-others/z.jsonl", b"{}\n")
    yield filesystem
    filesystem.rm("texts", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.sensitive
def test_a_bucket_is_listed_and_fetched(bucket: Any, tmp_path: Path) -> None:
    files = find_files("s", path_source("s3://texts/dolma").upstream, tmp_path)
    assert [(file.path, file.size) for file in files] == [(name, len(ROWS[name])) for name in NAMES]
    assert [content_of(file) for file in files] == [ROWS[name] for name in NAMES]
    assert [content_of(file) for file in find_files("s", path_source("s3://texts/dolma/").upstream, tmp_path)]
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"s3cret" not in stored + json.dumps([file.to_json() for file in files]).encode()


@pytest.mark.sensitive
def test_an_object_that_changed_or_is_gone_is_noticed(bucket: Any, tmp_path: Path) -> None:
    files = find_files("s", path_source("s3://texts/dolma").upstream, tmp_path)
    files[2].open().close()
    changed = ROWS["b.jsonl"].replace(b"b", b"B")
    bucket.pipe_file("texts/dolma/b.jsonl", changed)
    bucket.rm_file("texts/dolma/a/c.jsonl")
    with pytest.raises(RowError, match=r"file a/c.jsonl: .* is not there"):
        files[0].open()
    assert content_of(find_files("s", path_source("s3://texts/dolma", "b.jsonl").upstream, tmp_path)[0]) == changed
    with pytest.raises(RowError, match=r"b.jsonl: it changed at s3://texts/dolma since it was listed"):
        files[2].open()


@pytest.mark.sensitive
def test_a_large_object_with_a_checksum_is_resumed_by_the_next_run(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b'{"text": "large"}\n' * 200_000
    bucket.pipe_file("texts/large/l.jsonl", large)
    bucket.pipe_file("texts/large/SUMS", sums({"l.jsonl": large}))
    (file,) = find_files("s", path_source("s3://texts/large", checksums="SUMS").upstream, tmp_path)
    write = Partial.write
    written: list[int] = []

    def write_some(stream: Any, block: bytes) -> None:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(len(block))
        write(stream, block)

    with monkeypatch.context() as patched:
        patched.setattr(Partial, "write", write_some)
        with pytest.raises(KeyboardInterrupt):
            file.open()
    (partial,) = partials(tmp_path)
    assert partial.stat().st_size == sum(written)
    rest: list[int] = []
    monkeypatch.setattr(Partial, "write", lambda stream, block: (rest.append(len(block)), write(stream, block)))
    assert content_of(file) == large
    assert sum(rest) == len(large) - sum(written)
    assert partials(tmp_path) == []


@pytest.mark.sensitive
def test_a_bucket_that_is_not_there_and_denied_access_are_named(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UpstreamError, match=r"source 's': .*s3://nowhere"):
        find_files("s", path_source("s3://nowhere/x").upstream, tmp_path)
    (file,) = find_files("s", path_source("s3://texts/dolma", "b.jsonl").upstream, tmp_path)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(urls, "_require_listed_version", denied)
    with pytest.raises(RowError, match=r"access to b.jsonl of s3://texts/dolma is denied.*credentials"):
        file.open()
