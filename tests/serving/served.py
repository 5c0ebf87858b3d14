"""A server of a tiny model in a child process, and what a test asks of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import torch

from everytoken.generation import jinja_of_marks
from everytoken.models import LlamaFacts, write_hugging_face
from tests.generation.talking import END, EOS, LLAMA, MARKS, byte_tokenizer, talking_model
from tests.warm_kedro import Started

CONTEXT = 100_000  # a greedy reply of this length takes minutes
NAME = "tiny"
COMMAND = [sys.executable, "-c", "from everytoken.cli import cli; cli()", "serve"]


def tiny_model():
    """Return a model that takes no special token when it takes the most likely one."""
    model = talking_model(context=CONTEXT)
    with torch.no_grad():
        model.embedding[256:] = 0
    return model


TEMPLATE = jinja_of_marks(MARKS, "\n")


def write_model(folder, template=TEMPLATE, model=None):
    tokenizer = byte_tokenizer()
    ends = [tokenizer.token_to_id(EOS), tokenizer.token_to_id(END)]
    write_hugging_face(
        folder / NAME,
        LlamaFacts(LLAMA, 259, CONTEXT, ends[0]),
        (model or tiny_model()).state_dict().__getitem__,
        tokenizer=tokenizer.to_str().encode(),
        eos_token=EOS,
        chat_template=template,
        generation={"eos_token_id": ends},
    )
    return folder / NAME


class Server:
    """A process that serves, and its address."""

    def __init__(self, process, address):
        self.process, self.address = process, address
        self.host, _, port = address.removeprefix("http://").removesuffix("/v1").rpartition(":")
        self.port = int(port)

    def connect(self):
        return HTTPConnection(self.host, self.port, timeout=60)

    def ask(self, method, path, content=None, headers=None, raw=None):
        """Return status, headers and JSON of a response."""
        connection = self.connect()
        body = raw if raw is not None else None if content is None else json.dumps(content)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, dict(response.headers), json.loads(response.read())
        finally:
            connection.close()

    def answer(self, path, **content):
        """Return the JSON of a request that is answered."""
        status, _, found = self.ask("POST", f"/v1/{path}", {"model": NAME, **content})
        assert status == 200, found
        return found

    def refusal(self, path, **content):
        """Return status and error of a request that is refused."""
        status, _, found = self.ask("POST", f"/v1/{path}", {"model": NAME, **content})
        return status, found["error"]

    def events(self, path, **content):
        """Return the events of a whole stream."""
        with self.streaming(path, **content) as events:
            return list(events)

    @contextmanager
    def streaming(self, path, **content):
        """Give the events of a stream as they come; the client goes away at the end."""
        connection = self.connect()
        body = json.dumps({"model": NAME, "stream": True, **content})
        connection.request("POST", f"/v1/{path}", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        try:
            assert response.status == 200, response.read()
            yield _events(response)
        finally:
            response.close()
            connection.close()

    def counts(self):
        """Return how many requests are worked on, and how many wait; None where there are too many connections."""
        with closing(self.connect()) as connection:
            connection.request("GET", "/health")
            response = connection.getresponse()
            if response.status == 503:
                return None
            found = json.loads(response.read())
            return found["active"], found["waiting"]

    def until(self, counts):
        """Ask until there are so many requests."""
        end = time.monotonic() + 120
        while (found := self.counts()) != counts:
            assert time.monotonic() < end, f"found {found}, expected {counts}"


def _events(response):
    for line in response:
        if line.startswith(b"data: "):
            if line == b"data: [DONE]\n":
                return
            yield json.loads(line.removeprefix(b"data: "))


@contextmanager
def serving(model, *options, token=None):
    """Start a server on a free port, and end it."""
    environment = {name: value for name, value in os.environ.items() if name != "EVERYTOKEN_SERVE_TOKEN"}
    if token is not None:
        environment["EVERYTOKEN_SERVE_TOKEN"] = token
    command = ["everytoken", "serve", str(model), "--port", "0", "--threads", "1", *options]
    process = Started(command, Path.cwd(), environment, one_output=False)
    try:
        line = process.first_line()
        assert line.startswith(f"{NAME}: http://"), (line, *process.communicate())
        yield Server(process, line.split()[1])
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
