"""Many questions at a time: results and failures are written as they come, and one that fails stops no other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from everytoken.reflections.generators import GeneratorError
from everytoken.reflections.items.line_files import LineFile

_FAILED_IN_A_ROW = 100

_Asked = TypeVar("_Asked")


class ItemFailed(Exception):
    """Nothing acceptable came of one item; ``record`` is its line for the failures."""

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__(record["error"])
        self.record = record


@dataclass
class OutcomeWriter:
    """Writes results and failures; failures in a row end the asking, for then it is no single item that is wrong.

    Attributes:
        unit: what the items are called in a message, such as ``documents``.
        key: of the failure that names its item.
    """

    results: LineFile
    failures: LineFile
    unit: str
    key: str
    in_a_row: int = 0
    added: int = 0

    def add(self, line: dict[str, Any]) -> None:
        """Append a result."""
        self.results.add(line)
        self.added += 1
        self.in_a_row = 0

    def fail(self, record: dict[str, Any]) -> None:
        """Append a failure.

        Raises:
            GeneratorError: it is one of 100 in a row.
        """
        self.failures.add(record)
        self.in_a_row += 1
        if self.in_a_row >= _FAILED_IN_A_ROW:
            raise GeneratorError(
                f"{_FAILED_IN_A_ROW} {self.unit} in a row failed, the last one ({_named(record[self.key])}) with "
                f"{record['error']}. Remove the cause, and give the command again: what is done is kept"
            )


def _named(key: object) -> str:
    return f"row {key:,}" if isinstance(key, int) else str(key)


async def ask_each(
    items: Iterable[_Asked],
    line: Callable[[_Asked], Awaitable[dict[str, Any]]],
    writer: OutcomeWriter,
    *,
    concurrency: int,
    failure: Callable[[_Asked, Exception], dict[str, Any]],
) -> None:
    """Ask about each item and write what comes.

    Args:
        line: gives the result of an item, or raises `ItemFailed`.
        concurrency: questions that the generator answers at a time; at most twice as many items are under way.
        failure: the line of an item that failed in a way that ``line`` does not know.

    Raises:
        GeneratorError: the generator cannot answer any more; lines that came were written.
    """

    async def ask(item: _Asked) -> None:
        try:
            writer.add(await line(item))
        except GeneratorError:
            raise
        except ItemFailed as error:
            writer.fail(error.record)
        except Exception as error:
            writer.fail(failure(item, error))

    under_way: set[asyncio.Task[None]] = set()
    try:
        for item in items:
            under_way.add(asyncio.create_task(ask(item)))
            if len(under_way) >= 2 * concurrency:
                under_way = await _first_ended(under_way)
        while under_way:
            under_way = await _first_ended(under_way)
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _first_ended(tasks: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    ended, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in ended:
        task.result()
    return others


def run_to_its_end(asking: Coroutine[Any, Any, None]) -> None:
    """Run it here; in a thread where an event loop runs here already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(asking)
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(copy_context().run, asyncio.run, asking).result()


def write_session(path: Path, event: str, **told: Any) -> None:
    """Append what this process says of itself and of its generator."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with LineFile(path) as sessions:
        sessions.add({"event": event, "ts": now, "pid": os.getpid(), **told})
