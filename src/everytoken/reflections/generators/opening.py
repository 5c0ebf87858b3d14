"""Opens the generator that the parameters name, for one rank."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from everytoken.reflections.generators.asking import Generator
from everytoken.reflections.generators.endpoint import api_key, served_model
from everytoken.reflections.generators.openai_client import Endpoint, open_endpoint
from everytoken.reflections.generators.server_of_task import ServerCommand, task_server
from everytoken.reflections.parameters import (
    EmbeddedGenerator,
    GeneratorParameters,
    OpenAiGenerator,
    RequestSampling,
    ServerGenerator,
)

_PAUSE_OF_EMBEDDED = 0.0


@asynccontextmanager
async def open_generator(parameters: GeneratorParameters, *, server_log: Path) -> AsyncIterator[Generator]:
    """Give the generator, and end what it needs at the end.

    Args:
        server_log: file for what a server says that the rank starts.

    Raises:
        GeneratorError: it cannot be had.
    """
    async with AsyncExitStack() as opened:
        if isinstance(parameters, EmbeddedGenerator):
            from everytoken.reflections.generators.embedded import open_embedded  # torch, which no endpoint needs

            yield await opened.enter_async_context(open_embedded(parameters, str(model_of_generator(parameters))))
        elif isinstance(parameters, OpenAiGenerator):
            endpoint = _endpoint(parameters, parameters.endpoint, parameters.api_key_variable)
            yield await opened.enter_async_context(open_endpoint(endpoint))
        else:
            server = opened.enter_context(task_server(_command(parameters), server_log))
            endpoint = _endpoint(parameters, server.address, None)
            yield await opened.enter_async_context(open_endpoint(endpoint, server.check))


def first_pause(parameters: GeneratorParameters) -> float:
    """Return the seconds before a second attempt at a document, about; an embedded model needs no rest."""
    return _PAUSE_OF_EMBEDDED if isinstance(parameters, EmbeddedGenerator) else parameters.first_pause_seconds


def model_of_generator(parameters: GeneratorParameters) -> str | None:
    """Return what tells the model from others: its name at a server, or the digest of its file.

    None where only the server of a rank will tell.

    Raises:
        GeneratorError: the endpoint is not there, or lacks the model.
    """
    if isinstance(parameters, EmbeddedGenerator):
        file = f"{parameters.project}=={parameters.version} sha256 {parameters.sha256.lower()}: {parameters.member}"
        return f"{file}, {parameters.batch} at a time"  # the last bits of a product depend on how many rows it has
    if isinstance(parameters, ServerGenerator):
        return parameters.model
    key = api_key(parameters.api_key_variable)
    return str(served_model(parameters.endpoint, key, parameters.model)["model"])


def sent_sampling(sampling: RequestSampling) -> dict[str, Any]:
    """Return how tokens are drawn as a request has it; what the server decides is None."""
    sent = sampling.model_dump(exclude={"thinking"})
    return {**sent, "max_tokens": None if sent["max_tokens"] == "free_context" else sent["max_tokens"]}


def _endpoint(parameters: OpenAiGenerator | ServerGenerator, address: str, key_variable: str | None) -> Endpoint:
    sampling = parameters.chosen_sampling
    return Endpoint(
        address=address,
        key_variable=key_variable,
        model=parameters.model,
        sampling=sent_sampling(sampling),
        thinking=sampling.thinking,
        concurrency=parameters.concurrency,
        timeout=parameters.request_seconds,
        first_pause=parameters.first_pause_seconds,
    )


def _command(parameters: ServerGenerator) -> ServerCommand:
    return ServerCommand(
        command=parameters.command,
        port=parameters.port,
        health=parameters.health,
        check_seconds=parameters.check_seconds,
        start_seconds=parameters.start_seconds,
        environment=parameters.environment,
    )
