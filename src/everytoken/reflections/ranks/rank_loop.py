"""What a rank says of itself while its rows are asked, and the marker that is written last."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from everytoken.reflections.generators import Generator, GeneratorError
from everytoken.reflections.items import Attempts, write_session
from everytoken.reflections.ranks.contents import marker_of, read_content
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.shards import fsync_folder, write_text

logger = logging.getLogger(__name__)

_TOLD_EVERY = 2.0  # seconds


@asynccontextmanager
async def telling(rank: RankFolder, attempts: Attempts) -> AsyncIterator[None]:
    """Keep the file with what was asked so far up to date inside the block."""

    async def keep() -> None:
        while True:
            _tell(rank, attempts)
            await asyncio.sleep(_TOLD_EVERY)

    task = asyncio.create_task(keep())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        _tell(rank, attempts)


def _tell(rank: RankFolder, attempts: Attempts) -> None:
    """Write the counts; a disk that does not take them ends no rank."""
    try:
        write_text(rank.requests, json.dumps(attempts.so_far(), sort_keys=True) + "\n")
    except OSError as error:
        logger.warning("rank %s: what was asked so far is not shown (%s)", rank.name, error)


def end_session(rank: RankFolder, generator: Generator, done: int) -> None:
    """Append what the generator did; ``done`` rows of the rank have a result now."""
    write_session(rank.sessions, "end", done=done, generator=generator.facts, failed_requests=dict(generator.failures))


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
