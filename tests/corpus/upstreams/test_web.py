from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from everytoken.corpus.errors import RowError
from everytoken.corpus.ingestion.plan import make_shard_plan
from everytoken.corpus.ingestion.source import Source, UpstreamFile, find_files
from everytoken.corpus.upstreams import retries, urls
from everytoken.datasets import UpstreamFiles
from tests.corpus.ingestion.test_shard_plan import LIMITS, plan_parameters
from tests.corpus.upstreams.hub_server import sizes_of_partials
from tests.corpus.upstreams.test_source import path_source
from tests.corpus.upstreams.test_urls import content_of, partials, sums
from tests.shards.children import wait_until

ROWS = b'{"text": "a row"}\n' * 5_000


@dataclass
class Web:
    """A web server with a folder ``d``; the plainest gives no ranges, and not even sizes."""

    url: str
    files: dict[str, bytes] = field(default_factory=lambda: {"a.jsonl": ROWS})
    sized: bool = True
    version: tuple[str, str] | None = ("ETag", '"1"')
    cuts: list[int] = field(default_factory=list)  # after how many bytes the next answers break off
    busy: int = 0  # so many answers of 503
    ranges: dict[str, str] | None = None  # it gives ranges, with these headers
    skipped: int = 0  # of each range, so many bytes more than was asked
    asked: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # the first byte of each answer with a file
    before_break: Callable[[int], None] = lambda end: None  # called with the last byte sent


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        web: Web = self.server.web  # type: ignore[attr-defined]
        name = self.path.removeprefix("/d").strip("/")
        links = "".join(f'<a href="{name}">{name}</a>' for name in web.files)
        body = links.encode() if name == "" else web.files.get(name)
        status = 404 if body is None else 200
        if name and web.busy:
            web.busy -= 1
            status, body = 503, b""
        body = body or b""
        asked_range = self.headers["Range"] if web.ranges is not None and status == 200 else None
        start = int(asked_range.removeprefix("bytes=").partition("-")[0]) if asked_range else 0
        if asked_range:
            start += web.skipped
            status, rest = (206, body[start:]) if start < len(body) else (416, b"")
        asks_for_headers = name.endswith("jsonl") and not web.sized and self.headers["Accept-Encoding"] == "identity"
        gives_file = with_body and status in (200, 206) and name.endswith("jsonl")
        gives_file = gives_file and bool(asked_range or not asks_for_headers)
        if gives_file:  # before any byte goes out: the client may be faster than this thread
            web.asked.append(name)
            web.starts.append(start)
        self.send_response(status)
        if asked_range:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            for header in (web.ranges or {}).items():
                self.send_header(*header)
            body = rest
        if name and web.version is not None:
            self.send_header(*web.version)
        if web.sized or status != 200:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if not with_body:
            return
        if gives_file and web.cuts:
            body, self.close_connection = body[: web.cuts.pop(0)], True
        try:
            if web.sized or status != 200:
                self.wfile.write(body)
            else:
                self.wfile.write(b"%x\r\n" % len(body) + body + b"\r\n" if body else b"")
                self.wfile.write(b"" if self.close_connection else b"0\r\n\r\n")
            if self.close_connection and gives_file:
                self.wfile.flush()
                web.before_break(start + len(body))
        except ConnectionError:
            self.close_connection = True

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


pytestmark = pytest.mark.sensitive


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr("everytoken.shards.remote.retries.pause", lambda _: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    web = Web(f"http://127.0.0.1:{server.server_address[1]}/d")
    server.web = web  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield web
    server.shutdown()
    server.server_close()
    thread.join()


def only_file(web: Web, folder: Path, checksums: str | None = None) -> UpstreamFile:
    (file,) = find_files("s", path_source(web.url, "*.jsonl", checksums=checksums).upstream, folder)
    return file


def planned(source: Source, folder: Path) -> str:
    plan = make_shard_plan({"s": source}, {"s": find_files("s", source.upstream, folder)}, plan_parameters(), LIMITS)
    return str(plan["shards"][0]["digest"])


def test_a_file_of_unknown_size_counts_no_bytes_and_is_not_fetched_for_the_summary(web: Web, tmp_path: Path) -> None:
    web.sized = False
    dataset = UpstreamFiles(filepath=str(tmp_path / "files.json"), files=str(tmp_path / "files"))
    dataset.save({"s": path_source(web.url, "*.jsonl").upstream})
    assert {**dataset.ledger_summary(), "root_digest": ""} == {
        **{"root_digest": "", "rows": 1, "bytes": 0},
        "is_empty": False,
    }
    assert web.asked == []
    (file,) = dataset.load()["s"]
    assert file.size is None
    assert content_of(file) == ROWS
    assert dataset.ledger_summary()["bytes"] == 0, "the same before and after it is fetched"


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checksums", ["SUMS", None])
def test_a_server_that_cannot_go_on_is_read_again_from_the_start(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sized: bool, checksums: str | None
) -> None:
    monkeypatch.setattr(urls, "_BLOCK", 5_000)
    web.sized, web.files["SUMS"] = sized, sums({"a.jsonl": ROWS})
    file = only_file(web, tmp_path, checksums)
    web.cuts = [50_000, 20_000, 70_000]
    assert content_of(file) == ROWS
    assert partials(tmp_path) == []


@pytest.mark.parametrize("sized", [True, False])
def test_a_server_with_ranges_goes_on_where_it_broke_off(web: Web, tmp_path: Path, sized: bool) -> None:
    web.sized, web.ranges, web.files["a.jsonl"] = sized, {}, ROWS * 40
    web.before_break = lambda end: wait_until(lambda: sizes_of_partials(tmp_path) == [end], f"{end} are not stored")
    file = only_file(web, tmp_path)
    web.cuts = [1_000_000] * 2
    assert content_of(file) == ROWS * 40
    assert web.starts == [0, 1_000_000, 2_000_000]


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize(("headers", "skipped"), [({}, 7), ({}, 40 * len(ROWS)), ({"Content-Encoding": "gzip"}, 0)])
def test_a_range_that_is_not_the_asked_one_is_not_appended(
    web: Web, tmp_path: Path, sized: bool, headers: dict[str, str], skipped: int
) -> None:
    web.sized, web.ranges, web.skipped, web.files["a.jsonl"] = sized, headers, skipped, ROWS * 40
    web.before_break = lambda end: wait_until(lambda: sizes_of_partials(tmp_path) == [end], f"{end} are not stored")
    file = only_file(web, tmp_path)
    web.cuts = [1_000_000]
    assert content_of(file) == ROWS * 40
    given = [] if skipped == 40 * len(ROWS) else [1_000_000 + skipped]
    assert web.starts == [0, *given, 0]


@pytest.mark.parametrize("sized", [True, False])
def test_what_another_run_left_is_discarded_where_the_server_cannot_go_on(
    web: Web, tmp_path: Path, sized: bool
) -> None:
    web.sized, web.files["SUMS"] = sized, sums({"a.jsonl": ROWS})
    file = only_file(web, tmp_path, "SUMS")
    web.cuts = [50_000] * 50
    with pytest.raises(RowError):
        file.open()
    web.cuts = []
    assert content_of(file) == ROWS
    assert partials(tmp_path) == []


@pytest.mark.parametrize("checksums", ["SUMS", None])
def test_reading_from_the_start_is_tried_a_bounded_number_of_times(
    web: Web, tmp_path: Path, checksums: str | None
) -> None:
    web.sized, web.files["SUMS"] = False, sums({"a.jsonl": ROWS})
    file = only_file(web, tmp_path, checksums)
    web.cuts = [1_000 * (attempt + 1) for attempt in range(80)]  # each brings more than the one before
    # the client may lose bytes that came before the break: attempts that brought nothing have a bound of their own
    with pytest.raises(RowError, match=r"file a.jsonl: .*(only from its start, and .* 7 times|6 times in a row)"):
        file.open()
    assert len(web.asked) <= (retries.ATTEMPTS + 1) * retries.ATTEMPTS


def test_a_server_that_is_busy_for_a_while_is_asked_again(web: Web, tmp_path: Path) -> None:
    file = only_file(web, tmp_path)
    web.busy = 5
    assert content_of(file) == ROWS
    web.files.clear()
    with pytest.raises(RowError, match=r"a.jsonl of http.* is not there"):
        file._replace(location=tmp_path / "other").open()


@pytest.mark.parametrize("version", [("ETag", '"1"'), ("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")])
@pytest.mark.parametrize("sized", [True, False])
def test_a_discarded_file_is_not_fetched_for_another_plan_while_its_version_stays(
    web: Web, tmp_path: Path, version: tuple[str, str], sized: bool
) -> None:
    web.sized, web.version = sized, version
    source = path_source(web.url, "*.jsonl")
    digest = planned(source, tmp_path)
    assert digest == f"sha256:{hashlib.sha256(ROWS).hexdigest()}"
    only_file(web, tmp_path).discard()
    fetched = len(web.asked)
    assert planned(source, tmp_path) == digest
    assert len(web.asked) == fetched
    assert not list(tmp_path.rglob("*a.jsonl"))
    web.files["a.jsonl"] = ROWS.replace(b"row", b"Row")
    web.version = (version[0], version[1].replace("1", "2").replace("30", "29"))
    assert planned(source, tmp_path) == f"sha256:{hashlib.sha256(web.files['a.jsonl']).hexdigest()}"
    only_file(web, tmp_path).require(planned(source, tmp_path))


def test_a_damaged_copy_does_not_become_the_plan(web: Web, tmp_path: Path) -> None:
    source = path_source(web.url, "*.jsonl")
    digest = planned(source, tmp_path)
    file = only_file(web, tmp_path)
    file.location.write_bytes(b"x" * len(ROWS))
    assert planned(source, tmp_path) == digest
    file.require(digest)
    assert content_of(file) == ROWS


def test_where_the_server_tells_no_version_the_plan_is_of_the_bytes_that_are_there_now(
    web: Web, tmp_path: Path
) -> None:
    web.version = None
    source = path_source(web.url, "*.jsonl")
    planned(source, tmp_path)
    only_file(web, tmp_path).discard()
    web.files["a.jsonl"] = ROWS.replace(b"row", b"Row")  # of the same size
    assert planned(source, tmp_path) == f"sha256:{hashlib.sha256(web.files['a.jsonl']).hexdigest()}"
