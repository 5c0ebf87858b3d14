"""A model behind a port of this machine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

import torch
import uvicorn

from everytoken.generation import OpenedModel
from everytoken.serving.application import Served, application
from everytoken.serving.errors import ServingError
from everytoken.serving.guard import Guard, is_loopback
from everytoken.serving.model_thread import ModelThread
from everytoken.training import ExecutionParameters
from everytoken.training.checkpoints import parameters_sha256

_SPARE_CONNECTIONS = 64  # beyond the requests that may wait: `/health`, and those that are refused
_LAST_STEP = 0.3  # seconds that the step under way has when the server ends


@dataclass(frozen=True)
class ServerOptions:
    """How a server listens, and what it takes.

    Attributes:
        port: 0: a free one.
        token: that clients need; None: none, on loopback alone.
        concurrency: requests that are worked on at a time; each keeps what it read, up to the model's context.
        queue: requests that may wait besides.
        max_body_bytes: of a request.
        max_new_tokens: of a reply whose request does not say.
    """

    host: str
    port: int
    token: str | None
    concurrency: int
    queue: int
    max_body_bytes: int
    max_new_tokens: int
    threads: int


class _Server(uvicorn.Server):
    """Ends within a second at Ctrl-C and SIGTERM: replies under way end with an error."""

    def __init__(self, config: uvicorn.Config, thread: ModelThread) -> None:
        super().__init__(config)
        self._model_thread = thread

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._model_thread.stop()
        await super().shutdown(sockets)
        self._model_thread.join(_LAST_STEP)


def serve(opened: OpenedModel, options: ServerOptions, announce: Callable[[str], None]) -> None:
    """Answer requests until Ctrl-C or SIGTERM.

    Args:
        announce: gets the address, when requests are answered from now on.

    Raises:
        ServingError: the address needs a token, or cannot be had.
    """
    if options.token is None and not is_loopback(options.host):
        raise ServingError(
            f"{options.host} is reached from other machines, so it needs a token: set EVERYTOKEN_SERVE_TOKEN, or "
            "listen on 127.0.0.1"
        )
    with _listening(options.host, options.port) as listening:
        readers = [opened.reader() for _ in range(options.concurrency)]
        arithmetic = ExecutionParameters(threads=options.threads, matmul_precision="highest")
        thread = ModelThread(readers, options.queue, arithmetic)
        served = Served(opened, thread, _fingerprint(opened, options.threads), options.max_new_tokens)
        config = uvicorn.Config(
            Guard(application(served), token=options.token, max_body_bytes=options.max_body_bytes),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=options.concurrency + options.queue + _SPARE_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        announce(_url(listening))
        _Server(config, thread).run([listening])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise ServingError(f"cannot listen on {host}, port {port}: {error}. Choose others (--host, --port)") from error


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _fingerprint(opened: OpenedModel, threads: int) -> str:
    """Return what the bits of a reply depend on, besides the machine: parameters, torch, threads."""
    return f"{parameters_sha256(opened.model)[:16]}-torch{torch.__version__}-threads{threads}"
