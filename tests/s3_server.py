"""A real S3 server (moto) on this machine, which can be told to fail: by status, by broken connections, or slowly."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
KEY, SECRET = "key-of-the-tests", "s3cret-of-the-tests"


class S3Server:
    """Its address, what it was asked, and how it fails.

    Attributes:
        fail: gets method, path and query of a request; returns None, or ``503``, ``drop``, ``slow`` or ``cut``.
        asked: method, path and query of each request.
    """

    def __init__(self) -> None:
        self.address = ""
        self.fail: Callable[[str, str, str], str | None] = lambda method, path, query: None
        self.asked: list[tuple[str, str, str]] = []

    def wrapped(self, application: Application) -> Application:
        def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            request = environment["REQUEST_METHOD"], environment["PATH_INFO"], environment.get("QUERY_STRING", "")
            self.asked.append(request)
            how = self.fail(*request)
            if how == "503":
                start("503 Service Unavailable", [("Content-Type", "application/xml"), ("Connection", "close")])
                return [b"<Error><Code>ServiceUnavailable</Code><Message>busy</Message></Error>"]
            if how == "drop":
                environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                raise ConnectionResetError
            if how == "slow":
                time.sleep(0.3)
            body = application(environment, start)
            return self._half(b"".join(body), environment) if how == "cut" else body

        return answer

    @staticmethod
    def _half(body: bytes, environment: dict[str, Any]) -> Iterator[bytes]:
        yield body[: len(body) // 2]
        environment["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError

    def puts(self) -> list[str]:
        """Return the paths of objects that were written since the last call."""
        asked, self.asked = self.asked, []
        return [path for method, path, _ in asked if method == "PUT"]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Give a server that runs while the block runs."""
    moto_server = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    from werkzeug.serving import make_server

    os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"
    server = S3Server()
    application = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)
    made = make_server("127.0.0.1", 0, server.wrapped(application), threaded=True)
    server.address = f"http://127.0.0.1:{made.server_port}"
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield server
    made.shutdown()
    thread.join()


def log_in(server: S3Server, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let this process and its children find server and login in the environment, as users give them."""
    settings = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "DEFAULT_REGION": "us-east-1"}
    for name, value in {**settings, "ENDPOINT_URL": server.address}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
