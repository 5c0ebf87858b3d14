"""A server with OpenAI's chat API that fails on demand."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "faulty-1"
GOOD = {"analysis": "It is calm.", "reflection_1p": "I like this [1.1].", "reflection_3p": "The model likes it [1.1]."}


def good_reply(body: dict[str, Any]) -> str:
    """Return a reply that depends on the request alone."""
    told = hashlib.sha256(json.dumps([body["messages"], body["seed"]]).encode()).hexdigest()[:8]
    return json.dumps({**GOOD, "reflection_1p": f"I like this {told} [1.1]."})


Script = Callable[[dict[str, Any], int], Any]
"""From a request and how often its document was asked before: a text, (status, text), or a function of the handler."""


class FaultServer(ThreadingHTTPServer):
    """Answers as a script says; counts requests of each document."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, script: Script, key: str | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script, self.key = script, key
        self.seen: Counter[str] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.trial: Callable[[], Any] = lambda: "The sea is wide."

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Handler(BaseHTTPRequestHandler):
    server: FaultServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.key is not None and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.answer(401, {"error": {"message": "wrong key"}})
        elif self.path == "/v1/models":
            self.answer(200, {"object": "list", "data": [{"id": MODEL, "owned_by": "tests"}]})
        elif self.path == "/version":
            self.answer(200, {"version": "0.9.1"})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = body["messages"][-1]["content"]
        with self.server.lock:
            asked = self.server.seen[user]
            self.server.seen[user] += 1
            self.server.bodies.append(body)
        is_trial = user.startswith("Write one sentence")
        said = self.server.trial() if is_trial else self.server.script(body, asked)
        if callable(said):
            said(self)
        elif isinstance(said, tuple):
            self.answer(said[0], {"error": {"message": said[1]}})
        else:
            self.reply(said)

    def reply(self, text: str | None, finish: str = "stop", **message: Any) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
        self.completion([choice])

    def completion(self, choices: list[dict[str, Any]]) -> None:
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        head = {"id": "x", "object": "chat.completion", "created": 1, "model": MODEL, "usage": usage}
        self.answer(200, {**head, "choices": choices})

    def answer(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def cut(self) -> None:
        """Promise more bytes than come."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"id": "x", "choi')
        self.close_connection = True

    def slow(self) -> None:
        time.sleep(2)
        self.reply("too late")


@contextmanager
def fault_server(
    script: Script = lambda body, asked: good_reply(body), key: str | None = None
) -> Iterator[FaultServer]:
    server = FaultServer(script or (lambda body, asked: good_reply(body)), key)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
