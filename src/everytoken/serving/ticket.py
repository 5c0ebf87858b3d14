"""One request on its way between the event loop and the model's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from everytoken.generation import GenerationError
from everytoken.serving.model_thread import Ended, ModelTask, ModelThread
from everytoken.serving.refusals import Refusal, failed
from everytoken.serving.replies import ReplyPart, Work


class ClientGone(Exception):
    """Nobody waits for the response any more."""


class Ticket:
    """A request that waits for its parts; a client that goes away ends it.

    Args:
        receive: of the request, whose body is read.

    Raises:
        Refusal: too many requests wait.
    """

    def __init__(self, thread: ModelThread, work: Work, receive: Callable[[], Awaitable[Any]]) -> None:
        self._thread, loop = thread, asyncio.get_running_loop()
        self._delivered: asyncio.Queue[Any] = asyncio.Queue()
        self._task = ModelTask(
            work.prompts[0].tokens, work, lambda item: loop.call_soon_threadsafe(self._delivered.put_nowait, item)
        )
        thread.submit(self._task)
        self._watch = asyncio.create_task(self._until_gone(receive))

    async def parts(self) -> AsyncIterator[ReplyPart]:
        """Yield the parts as they come.

        Raises:
            Refusal: the reply failed.
            ClientGone: the client went away.
        """
        try:
            while not isinstance(item := await self._delivered.get(), Ended):
                if isinstance(item, Exception):
                    raise _told(item)
                yield item
        finally:
            self._thread.cancel(self._task)
            self._watch.cancel()

    async def _until_gone(self, receive: Callable[[], Awaitable[Any]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._thread.cancel(self._task)
        self._delivered.put_nowait(ClientGone())


def _told(error: Exception) -> Exception:
    """Return what a client is told: of an error that nobody foresaw the log has more."""
    if isinstance(error, Refusal | ClientGone):
        return error
    if isinstance(error, GenerationError):
        return Refusal(500, str(error))
    return failed()
