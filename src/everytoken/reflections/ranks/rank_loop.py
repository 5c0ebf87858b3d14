"""The loop of a rank: all rows that have no result yet are asked, many at a time, and the marker is written last."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from everytoken.reflections.generators import Generator, GeneratorError
from everytoken.reflections.prompts import SidecarRow
from everytoken.reflections.ranks.contents import marker_of, read_content
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.reflections.ranks.requests_of_rows import DocumentFailed, RowRequests, failure
from everytoken.reflections.ranks.result_lines import LineFile
from everytoken.shards import fsync_folder, write_text

logger = logging.getLogger(__name__)

_TOLD_EVERY = 2.0  # seconds
_FAILED_IN_A_ROW = 100


@dataclass
class RankWriter:
    """Writes the lines of a rank; failures in a row end it, for then it is no single document that is wrong."""

    results: LineFile
    failures: LineFile
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
                f"{_FAILED_IN_A_ROW} documents in a row failed, the last one (row {record['global_row_idx']:,}) with "
                f"{record['error']}. Remove the cause, and submit the rank again: what is done is kept"
            )


async def ask_rows(rows: Iterable[SidecarRow], requests: RowRequests, writer: RankWriter) -> None:
    """Ask about each row and write what comes; at most twice as many are under way as the generator answers at a time.

    Raises:
        GeneratorError: the generator cannot answer any more; lines that came are written.
    """
    most = 2 * requests.generator.concurrency
    under_way: set[asyncio.Task[None]] = set()
    try:
        for row in rows:
            under_way.add(asyncio.create_task(_ask(row, requests, writer)))
            if len(under_way) >= most:
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


async def _ask(row: SidecarRow, requests: RowRequests, writer: RankWriter) -> None:
    """Write the line of one row; whatever is wrong with it, others go on."""
    try:
        writer.add(await requests.line(row))
    except GeneratorError:
        raise
    except DocumentFailed as error:
        writer.fail(error.record)
    except Exception as error:
        writer.fail(failure(row, error, 0, ""))


def write_session(rank: RankFolder, event: str, **told: Any) -> None:
    """Append what a process of the rank says of itself and of its generator."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with LineFile(rank.sessions) as sessions:
        sessions.add({"event": event, "ts": now, "pid": os.getpid(), **told})


@asynccontextmanager
async def telling(rank: RankFolder, requests: RowRequests) -> AsyncIterator[None]:
    """Keep the file with what was asked so far up to date inside the block."""

    async def keep() -> None:
        while True:
            _tell(rank, requests)
            await asyncio.sleep(_TOLD_EVERY)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        _tell(rank, requests)


def _tell(rank: RankFolder, requests: RowRequests) -> None:
    """Write the counts; a disk that does not take them ends no rank."""
    try:
        write_text(rank.requests, json.dumps(requests.so_far(), sort_keys=True) + "\n")
    except OSError as error:
        logger.warning("rank %s: what was asked so far is not shown (%s)", rank.name, error)


def end_session(rank: RankFolder, generator: Generator, done: int) -> None:
    """Append what the generator did; ``done`` rows of the rank have a result now."""
    write_session(rank, "end", done=done, generator=generator.facts, failed_requests=dict(generator.failures))


def complete_rank(rank: RankFolder) -> None:
    """Write the marker of a rank all of whose rows were asked and are on disk.

    Raises:
        GeneratorError: rows are missing: neither done nor failed.
    """
    fsync_folder(rank.path)
    content = read_content(rank)
    if missing := rank.rows - content.results - len(content.failed):
        raise GeneratorError(f"{rank.path}: {missing:,} rows were not asked. Submit the rank again")
    rank.complete(marker_of(rank, content))
