"""One thread that does all arithmetic, for several requests in turn.

Each request that is worked on has a slot: a reader of one sequence. The thread goes round the slots and does one step
in each: it reads a block of a prompt, or draws a token. No product has rows of two requests, so a reply cannot depend
on the others; batches would be faster, and their last bits would differ.

What waits is bounded: a request beyond ``slots + queue`` is refused. A request that is cancelled gives its place free
at once, or after the step that is under way.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everytoken.generation import PrefixReader
from everytoken.serving.refusals import Refusal
from everytoken.training import ExecutionParameters
from everytoken.training.step import execution

_logger = logging.getLogger(__name__)


class Ended:
    """What a task delivers last, when all went well."""


@dataclass(eq=False)
class ModelTask:
    """One request.

    Attributes:
        prompt: its first, by which a slot is chosen.
        work: given a reader, yields what is to be delivered, or None, a step at a time.
        deliver: takes that, and then `Ended` or the error that ended it, in the thread.
    """

    prompt: Sequence[int]
    work: Callable[[PrefixReader], Iterator[Any]]
    deliver: Callable[[Any], object]
    is_cancelled: bool = field(default=False, init=False)


class _Slot(NamedTuple):
    task: ModelTask
    reader: PrefixReader
    steps: Iterator[Any]


class ModelThread:
    """The thread, its slots and its queue.

    Args:
        readers: one a slot.
        queue: how many requests may wait.
    """

    def __init__(self, readers: Sequence[PrefixReader], queue: int, arithmetic: ExecutionParameters) -> None:
        self._room = len(readers) + queue
        self._free, self._arithmetic = list(readers), arithmetic  # of readers, the one that was free for longest first
        self._waiting: deque[ModelTask] = deque()
        self._active: list[_Slot] = []
        self._stopped = False
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    def submit(self, task: ModelTask) -> None:
        """Let a task wait for its turn.

        Raises:
            Refusal: too many wait, or the server stops.
        """
        with self._change:
            if self._stopped:
                raise stopping()
            if len(self._waiting) + len(self._active) >= self._room:
                raise Refusal(
                    429,
                    f"{len(self._active)} requests are being answered and {len(self._waiting)} wait, and no more may: "
                    "try again later",
                    code="queue_full",
                    headers={"Retry-After": "1"},
                )
            self._waiting.append(task)
            self._change.notify()

    def cancel(self, task: ModelTask) -> None:
        """End a task that nobody waits for any more; nothing is delivered."""
        with self._change:
            task.is_cancelled = True
            if task in self._waiting:
                self._waiting.remove(task)

    def counts(self) -> dict[str, int]:
        """Return how many requests are worked on, and how many wait."""
        with self._change:
            return {"active": len(self._active), "waiting": len(self._waiting)}

    @property
    def is_alive(self) -> bool:
        """Whether requests are answered."""
        return self._thread.is_alive() and not self._stopped

    def stop(self) -> None:
        """Refuse what waits and what is worked on, and end after the step that is under way."""
        with self._change:
            self._stopped = True
            for task in [*self._waiting, *(slot.task for slot in self._active)]:
                if not task.is_cancelled:
                    task.is_cancelled = True
                    task.deliver(stopping())
            self._waiting.clear()
            self._change.notify()

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(seconds)

    def _run(self) -> None:
        with execution(self._arithmetic):
            while self._has_work():
                for slot in list(self._active):
                    self._step(slot)

    def _has_work(self) -> bool:
        """Give free slots to tasks that wait; wait for one; return False when all has to end."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._active or self._stopped)
            while self._waiting and self._free and not self._stopped:
                self._begin(self._waiting.popleft())
            return not self._stopped

    def _begin(self, task: ModelTask) -> None:
        """Give a task the free slot that has read most of its prompt."""
        reader = max(self._free, key=lambda one: one.shared(task.prompt))
        self._free.remove(reader)
        self._active.append(_Slot(task, reader, task.work(reader)))

    def _step(self, slot: _Slot) -> None:
        made: Any = Ended()
        if not slot.task.is_cancelled:
            try:
                made = next(slot.steps, made)
            except Exception as error:  # of this request: the others go on
                if not isinstance(error, Refusal):
                    _logger.exception("A request failed")
                made = error
        is_last = isinstance(made, Ended | Exception)
        with self._change:
            if is_last or slot.task.is_cancelled:
                self._active.remove(slot)
                self._free.append(slot.reader)
            if made is not None and not slot.task.is_cancelled:
                slot.task.deliver(made)


def stopping() -> Refusal:
    """Return what a request gets while the server ends."""
    return Refusal(503, "the server stops: ask again when it runs", code="server_stops")
