"""A list of questions and the folder of its replies: each item is asked until a reply is accepted, and never again.

::

    locked.json      what must not change between two starts; the model, as its server named it
    replies.jsonl    a line for each accepted reply, raw, under the id of its item
    failures.jsonl   a line for each attempt that failed, with what came
    sessions.jsonl   a line for each start and end of a process: what made the replies

What is derived from replies is derived from the stored ones, each time: a second start with all replies asks nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from everytoken.locks import locked
from everytoken.reflections.errors import ReflectionError, RefusedReply
from everytoken.reflections.generators import (
    Generator,
    Question,
    first_pause,
    model_of_generator,
    open_generator,
)
from everytoken.reflections.items.asking_loop import (
    ItemFailed,
    OutcomeWriter,
    ask_each,
    run_to_its_end,
    write_session,
)
from everytoken.reflections.items.attempts import Attempts, AttemptsFailed, FailedAttempt
from everytoken.reflections.items.line_files import LineFile, records
from everytoken.reflections.items.locked_values import LockedValues
from everytoken.reflections.parameters import EmbeddedGenerator, GeneratorParameters
from everytoken.seeds import integer_key
from everytoken.shards import fsync_folder, value_digest

_LOCKED = "locked.json"
_SESSIONS = "sessions.jsonl"
_SEED_BITS = 31  # servers take a signed 32-bit seed
REPLIES_FILE, FAILURES_FILE = "replies.jsonl", "failures.jsonl"
"""A line for each accepted reply, and for each attempt that failed, with the ``id`` of its item."""

_REMEDY = "Restore the old values; or remove or rename the folder, and its replies are asked for again."


@dataclass(frozen=True)
class Item:
    """A question of a list.

    Attributes:
        id: of the item, once in the list.
        messages: with ``role`` and ``content``.
        fields: that the JSON object of a reply must have; none for plain text. Only a model in the process is told.
    """

    id: str
    messages: Sequence[Mapping[str, str]]
    fields: Sequence[str] = ()

    @property
    def digest(self) -> str:
        """Of what is asked."""
        return value_digest([[dict(message) for message in self.messages], list(self.fields)])


@dataclass(frozen=True)
class AskedItems:
    """What came of a list.

    Attributes:
        replies: raw, by the id of the item, in the order of the list.
        failed: kind of the last failure by the id of each item that has no reply, and gets no other attempt.
        failures: attempts that failed, by whether the request (``api``) or its reply (``parse``) was at fault.
        attempts: all, of the items of the list.
    """

    replies: Mapping[str, str]
    failed: Mapping[str, str]
    failures: Mapping[str, int]
    attempts: int


def request_seed(seed: int, name: str, item: str, attempt: int) -> int:
    """Return the seed of a request, below 2**31.

    Args:
        seed: a named seed of the parameters.
        name: of the list.
        attempt: from 0; it is a part of the key, as a seeded retry would repeat a bad reply.
    """
    return integer_key(seed, name, item, attempt) >> (64 - _SEED_BITS)


def ask_items(
    folder: Path,
    items: Iterable[Item],
    generator: GeneratorParameters,
    read: Callable[[Item, str], Any],
    *,
    name: str,
    seed: int,
    max_attempts: int,
    locked_values: Mapping[str, Any],
) -> AskedItems:
    """Ask about the items that have no reply yet, many at a time; return the stored replies of all.

    An item whose attempts have all failed is asked again only when ``max_attempts`` is raised. Items may be added to
    the list, and removed from it.

    Args:
        folder: of the replies; one process at a time uses it.
        name: of the list; a part of the seeds of its requests.
        max_attempts: of an item, over all starts.
        locked_values: plain JSON that must not change between two starts, besides generator and seed.

    Raises:
        GeneratorError: the generator cannot answer; what came is kept.
        ReflectionError: a locked value or the question of an item with a reply has changed, an id occurs twice, or
            another process uses the folder.
    """
    wanted = _by_id(items)
    folder.mkdir(parents=True, exist_ok=True)
    values = LockedValues(folder / _LOCKED, _REMEDY)
    try:
        with lock_of_items(folder, wait=False):
            if not any(_has_lines(folder / file) for file in (REPLIES_FILE, FAILURES_FILE)):
                for file in (REPLIES_FILE, FAILURES_FILE, _LOCKED):  # an earlier start asked nothing
                    (folder / file).unlink(missing_ok=True)
            values.start(_locked(name, generator, seed, locked_values), partial(_require_new, folder))
            todo = {one.id: one for one in _left(folder, wanted, max_attempts)}
            if todo:
                asking = _Asking(folder, generator, read, name, seed, max_attempts, values)
                run_to_its_end(asking.ask(list(todo.values())))
    except BlockingIOError:
        raise ReflectionError(f"{folder} is used by another process: wait for it, or end it") from None
    return _found(folder, wanted)


@dataclass(frozen=True)
class _Asking:
    folder: Path
    generator: GeneratorParameters
    read: Callable[[Item, str], Any]
    name: str
    seed: int
    max_attempts: int
    values: LockedValues

    async def ask(self, items: Sequence[Item]) -> None:
        made = _attempts_made(self.folder)
        sessions = self.folder / _SESSIONS
        with LineFile(self.folder / REPLIES_FILE) as replies, LineFile(self.folder / FAILURES_FILE) as failures:
            writer = OutcomeWriter(replies, failures, "items", "id")
            async with open_generator(self.generator, server_log=self.folder / "server_log") as opened:
                self.values.found("model", opened.facts["model"])
                write_session(sessions, "start", todo=len(items), generator=opened.facts)
                try:
                    await ask_each(
                        items,
                        partial(self._line, self._attempts(opened), writer, made),
                        writer,
                        concurrency=opened.concurrency,
                        failure=_failed_before,
                    )
                finally:
                    failed = dict(opened.failures)
                    write_session(sessions, "end", added=writer.added, generator=opened.facts, failed_requests=failed)
            replies.flush()
            failures.flush()
        fsync_folder(self.folder)

    def _attempts(self, opened: Generator) -> Attempts:
        return Attempts(opened, self.max_attempts, first_pause(self.generator))

    async def _line(
        self, attempts: Attempts, writer: OutcomeWriter, made: Mapping[str, int], item: Item
    ) -> dict[str, Any]:
        def question(attempt: int) -> Question:
            return Question(item.messages, request_seed(self.seed, self.name, item.id, attempt), item.fields)

        def failed(attempt: FailedAttempt) -> None:
            if not attempt.is_final and attempt.number + 1 < self.max_attempts:
                writer.failures.add(_failure(item, attempt))  # the last one is written with the failure of the item

        try:
            found = await attempts.accepted(
                question, partial(self.read, item), first=made.get(item.id, 0), failed=failed
            )
        except AttemptsFailed as error:
            raise ItemFailed(_failure(item, error.last)) from error
        return {
            "id": item.id,
            "question": item.digest,
            "reply": found.answer.text,
            "reasoning": found.answer.reasoning,
            "attempt": found.attempt,
            "seed": found.seed,
            "input_tokens": found.answer.input_tokens,
            "output_tokens": found.answer.output_tokens,
            "reasoning_tokens": found.answer.reasoning_tokens,
        }


def _failure(item: Item, attempt: FailedAttempt) -> dict[str, Any]:
    return {
        "id": item.id,
        "error": f"{type(attempt.error).__name__}: {attempt.error}",
        "class": attempt.kind,
        "fault": "parse" if isinstance(attempt.error, RefusedReply) else "api",
        "final": attempt.is_final,
        "attempt": attempt.number,
        "seed": attempt.seed,
        "reply": attempt.reply,
    }


def _failed_before(item: Item, error: Exception) -> dict[str, Any]:
    raise error  # no item is to blame for a fault of the program


def _by_id(items: Iterable[Item]) -> dict[str, Item]:
    found: dict[str, Item] = {}
    for item in items:
        if item.id in found:
            raise ReflectionError(f"the item {item.id!r} occurs twice in a list: give each its own id")
        found[item.id] = item
    return found


def _locked(name: str, generator: GeneratorParameters, seed: int, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "seed": seed,
        "generator_alias": generator.alias,
        "sampling": generator.chosen_sampling.model_dump(),
        "model": _known_model(generator),
        **values,
    }


def _known_model(generator: GeneratorParameters) -> str | None:
    """Return the model where no server has to be asked: a list whose replies are all stored needs none."""
    return model_of_generator(generator) if isinstance(generator, EmbeddedGenerator) else generator.model


def _left(folder: Path, wanted: Mapping[str, Item], max_attempts: int) -> list[Item]:
    """Return the items that are to be asked, and check the questions of those that have a reply."""
    replied = {line["id"]: line for line in records(folder / REPLIES_FILE)}
    for number, line in replied.items():
        if number in wanted and wanted[number].digest != line["question"]:
            raise ReflectionError(
                f"{folder / REPLIES_FILE}: the reply of {number!r} answers another question than the one that would be "
                f"asked now. {_REMEDY}"
            )
    made, final = _attempts_made(folder), _final(folder)
    return [
        one
        for one in wanted.values()
        if one.id not in replied and one.id not in final and made.get(one.id, 0) < max_attempts
    ]


def _found(folder: Path, wanted: Mapping[str, Item]) -> AskedItems:
    replies = {line["id"]: line["reply"] for line in records(folder / REPLIES_FILE)}
    failures = [line for line in records(folder / FAILURES_FILE) if line["id"] in wanted]
    last = {line["id"]: str(line["class"]) for line in failures}
    there = {one: replies[one] for one in wanted if one in replies}
    faults = Counter(line["fault"] for line in failures)
    return AskedItems(
        replies=there,
        failed={one: last[one] for one in wanted if one in last and one not in there},
        failures={"api": faults["api"], "parse": faults["parse"]},
        attempts=len(there) + len(failures),
    )


def _attempts_made(folder: Path) -> Mapping[str, int]:
    """Return how many attempts of each item failed."""
    return Counter(line["id"] for line in records(folder / FAILURES_FILE))


def _final(folder: Path) -> set[str]:
    return {line["id"] for line in records(folder / FAILURES_FILE) if line["final"]}


def _has_lines(file: Path) -> bool:
    return file.is_file() and file.stat().st_size > 0


def _require_new(folder: Path) -> None:
    if (folder / REPLIES_FILE).exists():
        raise ReflectionError(
            f"{folder} has replies and no {_LOCKED}: nothing says what was asked. Restore it from a copy, or remove "
            "the folder"
        )


def lock_of_items(folder: Path, *, wait: bool) -> AbstractContextManager[int]:
    """Return the lock of a folder of replies, for a ``with``.

    Raises:
        BlockingIOError: another process has it, and ``wait`` is false.
    """
    path = folder / "lock"
    return locked(path, partial(_open_lock, path), wait=wait)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
