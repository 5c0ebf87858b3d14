"""A Hugging Face hub of a dataset and a few models on loopback, with the faults of a real one.

It speaks what the client asks: the commit of a revision, the tree of files in pages, and files by Range; large ones
(LFS) by a redirect to another origin, as the hub sends to its storage.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import struct
import threading
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

COMMIT = "689a3ea2d8217e64d73a5058913fa43ad15e81aa"
LFS_FROM = 1_000  # bytes


class Fault(NamedTuple):
    """What goes wrong with one request: a status, or a body that is cut after some bytes."""

    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012  # a NamedTuple's default is never written to
    cut_after: int | None = None
    reset: bool = False  # cut by a reset, not by an orderly end
    stalls: bool = False  # after cut_after bytes nothing comes any more
    ignores_range: bool = False
    body: bytes | None = None  # in the place of the right one


class Request(NamedTuple):
    """A request as the server saw it; ``sent`` are the bytes of the body that it gave."""

    kind: str  # info, tree, resolve, storage, account
    path: str
    start: int
    sent: int
    authorization: str | None


@dataclass
class Hub:
    """What the server serves, what it does wrong, and what it was asked."""

    url: str
    dataset: str = "org/texts"
    files: dict[str, bytes] = field(default_factory=dict)
    models: dict[str, dict[str, bytes]] = field(default_factory=dict)  # their files, by id
    page: int = 1_000
    token: str | None = None  # what a private dataset asks for
    gated: bool = False
    resolves_to: str = COMMIT
    answers_from: str = COMMIT
    served: dict[str, bytes] = field(default_factory=dict)  # other bytes than are listed
    gone: set[str] = field(default_factory=set)
    listed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] = lambda entries: entries  # what is told of them
    next_page: int | None = None  # the same one for ever
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    requests: list[Request] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def asked(self, *kinds: str) -> list[Request]:
        return [request for request in self.requests if request.kind in (kinds or ("info", "tree", "resolve"))]

    def tree(self, files: dict[str, bytes]) -> list[dict[str, Any]]:
        folders = {path.rsplit("/", 1)[0] for path in files if "/" in path}
        entries: list[dict[str, Any]] = [
            {"type": "directory", "oid": "0" * 40, "size": 0, "path": path} for path in sorted(folders)
        ]
        for path, content in reversed(files.items()):  # the order is not guaranteed
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, Any] = {"type": "file", "oid": blob, "size": len(content), "path": path}
            if len(content) >= LFS_FROM:
                sha256 = hashlib.sha256(content).hexdigest()
                entry |= {"lfs": {"oid": sha256, "size": len(content), "pointerSize": 134}, "oid": "1" * 40}
            entries.append(entry)
        return self.listed(entries)


def sizes_of_partials(folder: Path) -> list[int]:
    """Return the sizes of what downloads have stored so far."""
    sizes = []
    for path in folder.rglob("*.partial"):
        with suppress(FileNotFoundError):  # it was whole meanwhile
            sizes.append(path.stat().st_size)
    return sizes


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Serve until the end of the block, on a port of loopback that is free."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    port = server.server_address[1]
    hub = Hub(f"http://127.0.0.1:{port}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        path = urllib.parse.unquote(url.path)
        asked = re.fullmatch(r"/api/(datasets|models)/(.+)/(revision|tree)/([^/]+)", path)
        file = re.fullmatch(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if path == "/api/whoami-v2":
            self._answer("account", path, json.dumps({"name": "somebody"}).encode())
        elif path.startswith("/storage/"):
            name, _, path = path.removeprefix("/storage/").partition("//")
            self._send_file("storage", self._files("datasets" if name == self.hub.dataset else "models", name), path)
        elif asked and (files := self._files(asked[1], asked[2])) is not None:
            if asked[3] == "tree":
                self._tree(asked[1], asked[2], asked[4], files, urllib.parse.parse_qs(url.query))
            else:
                info = {"id": asked[2], "sha": self.hub.resolves_to, "siblings": []}
                self._answer("info", asked[4], json.dumps(info).encode())
        elif file and (files := self._files(file[1] or "models", file[2])) is not None:
            self._resolve(file[2], files, file[4])
        else:
            self._refuse("info", path, 404, "RepoNotFound")

    def _files(self, kind: str, name: str) -> dict[str, bytes] | None:
        return self.hub.models.get(name) if kind == "models" else {self.hub.dataset: self.hub.files}.get(name)

    def _tree(self, kind: str, name: str, revision: str, files: dict[str, bytes], query: dict[str, list[str]]) -> None:
        entries, start = self.hub.tree(files), int(query.get("cursor", ["0"])[0])
        assert query["recursive"] in (["True"], ["true"]), "the whole tree is asked for"
        end = start + self.hub.page
        headers = {}
        if self.hub.next_page is not None:
            entries, end = [], self.hub.next_page
        if end < len(entries) or self.hub.next_page is not None:
            following = f"{self.hub.url}/api/{kind}/{name}/tree/{revision}?recursive=true&cursor={end}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._answer("tree", f"{revision}/{start}", json.dumps(entries[start:end]).encode(), headers)

    def _resolve(self, name: str, files: dict[str, bytes], path: str) -> None:
        if path in self.hub.gone or path not in files:
            self._refuse("resolve", path, 404, "EntryNotFound")
        elif len(files[path]) < LFS_FROM:
            self._send_file("resolve", files, path)
        else:
            other_origin = self.hub.url.replace("127.0.0.1", "localhost")
            headers = {
                "Location": f"{other_origin}/storage/{name}//{urllib.parse.quote(path)}?X-Signature=secret",
                "X-Repo-Commit": self.hub.answers_from,
                "X-Linked-Size": str(len(files[path])),
                "X-Linked-Etag": f'"{hashlib.sha256(files[path]).hexdigest()}"',
            }
            self._answer("resolve", path, b"", headers, status=302)

    def _send_file(self, kind: str, files: dict[str, bytes] | None, path: str) -> None:
        assert files is not None
        content = self.hub.served.get(path, files[path])
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        if kind == "resolve":
            headers["X-Repo-Commit"] = self.hub.answers_from
        self._answer(kind, path, content, headers, ranged=True)

    def _refuse(self, kind: str, path: str, status: int, code: str) -> None:
        self._answer(kind, path, b'{"error": "no"}', {"X-Error-Code": code}, status=status)

    def _answer(
        self,
        kind: str,
        path: str,
        body: bytes,
        headers: dict[str, str] | None = None,
        *,
        status: int = 200,
        ranged: bool = False,
    ) -> None:
        fault = self.hub.faults[kind].pop(0) if self.hub.faults[kind] else Fault()
        authorization = self.headers.get("Authorization")
        if kind != "storage" and self.hub.token is not None and authorization != f"Bearer {self.hub.token}":
            code = "GatedRepo" if self.hub.gated else "RepoNotFound"
            fault = Fault(403 if self.hub.gated and authorization else 401, {"X-Error-Code": code})
        headers = dict(headers or {})
        start = int(re.sub(r"\D", "", self.headers.get("Range", "0"))) if ranged and not fault.ignores_range else 0
        if fault.status != 200:
            status, body, headers = fault.status, b"{}", dict(fault.headers)
        elif start:
            whole = len(body)
            status, body = (206, body[start:]) if start < whole else (416, b"")
            headers["Content-Range"] = f"bytes {start}-{whole - 1}/{whole}" if body else f"bytes */{whole}"
        body = body if fault.body is None else fault.body
        sent = len(body) if fault.cut_after is None else min(fault.cut_after, len(body))
        self.hub.requests.append(Request(kind, path, start, sent, authorization))
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # the client may be gone, or killed
            self.wfile.write(body[:sent])
        if fault.stalls:
            self.wfile.flush()
            self.hub.released.wait(1000)  # the end of the test releases it
        if sent < len(body):
            self.close_connection = True
            if fault.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that has enough, or was killed
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
