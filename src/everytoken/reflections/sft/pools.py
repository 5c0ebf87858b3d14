"""The rows of a pool: prompts, each with its id and what the export keeps of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everytoken.corpus import BadRow
from everytoken.corpus.reading import Reading, ReadingLimits, UnreadableRow, iterate_rows
from everytoken.corpus.rendering import JoinedRenderer, first_identifier, read_chat
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.sft.parameters import HarmCategory, PromptPool
from everytoken.shards import canonical_json

_FIELD_OF_SHAPE = {"messages": "messages", "sharegpt": "conversations", "strings": "data", "transcript": "chosen"}
_NOT_FITTING = ("other_values", "no_user_turn", "blank", "too_long")


class PoolPrompt(NamedTuple):
    """A prompt as its pool has it.

    Attributes:
        source: as the export names it.
        user: what the user says, unchanged.
        meta: JSON object of the columns that are kept.
    """

    source: str
    source_id: str
    user: str
    meta: str
    harm_category: HarmCategory


class PoolCounts:
    """What became of the rows of a pool: ``rows``, and those set aside by reason, each with the first that was."""

    def __init__(self) -> None:
        self.rows = 0
        self.set_aside: Counter[str] = Counter()
        self.first_bad: str | None = None

    def leave(self, reason: str, where: str) -> None:
        """Count a row that is no prompt of the mix."""
        self.set_aside[reason] += 1
        if reason not in _NOT_FITTING and self.first_bad is None:
            self.first_bad = where

    def require_few_bad(self, pool: str, share: float) -> None:
        """Check that few rows cannot be read.

        Raises:
            ReflectionError: there are more than ``share``.
        """
        bad = sum(count for reason, count in self.set_aside.items() if reason not in _NOT_FITTING)
        if bad > share * self.rows:
            raise ReflectionError(
                f"sft.mix.pools.{pool}: {bad:,} of {self.rows:,} rows cannot be read, first {self.first_bad}. Correct "
                "the pool's columns or its files, or allow more by sft.mix.max_bad_share"
            )


def read_pool(
    name: str,
    pool: PromptPool,
    files: Sequence[UpstreamFile],
    limits: ReadingLimits,
    max_characters: int,
    counts: PoolCounts,
) -> Iterator[PoolPrompt]:
    """Yield the prompts of a pool that fit, in the order of its files and rows.

    Args:
        max_characters: code points of the longest prompt.

    Raises:
        RowError: a file is missing or damaged, or lacks a column.
    """
    renderer = JoinedRenderer(kind="joined", text_columns=pool.columns, separator=" ")
    reading = Reading(renderer=renderer, records=pool.records, format=pool.format)
    for file in files:
        for row in iterate_rows(file, reading, limits):
            number, where = counts.rows, f"row {row.number:,} of {file.path}"
            counts.rows += 1
            if isinstance(row, UnreadableRow):
                counts.leave(row.reason, f"{where}: {row.detail}")
                continue
            try:
                found = _prompt(f"{name}-{number}", name, pool, row.record)
            except BadRow as error:
                counts.leave(error.reason, f"{where}: {error.detail}")
                continue
            reason = found if isinstance(found, str) else _fault(found.user, max_characters)
            if isinstance(found, str) or reason is not None:
                counts.leave(str(reason), where)
            else:
                yield found


def _fault(user: str, max_characters: int) -> str | None:
    if not user.strip():
        return "blank"
    return "too_long" if len(user) > max_characters else None


def _prompt(own_id: str, name: str, pool: PromptPool, record: Any) -> PoolPrompt | str:
    """Return the prompt of a row, or why it is none of the pool."""
    if not isinstance(record, dict):
        raise BadRow("cannot_render", f"the record is {type(record).__name__}, expected an object")
    if missing := [column for column in pool.columns if column not in record and column not in pool.id_columns]:
        raise BadRow("cannot_render", f"it has no {missing[0]!r}; its columns are {sorted(record)[:20]}")
    if not all(_is_wanted(record[column], wanted) for column, wanted in pool.where.items()):
        return "other_values"
    user = _user(pool, record[pool.column])
    if user is None:
        return "no_user_turn"
    identifier = first_identifier(record, pool.id_columns)
    meta: Mapping[str, Any] = {column: record[column] for column in pool.meta}
    try:
        kept = canonical_json(meta)
    except (TypeError, ValueError):
        raise BadRow("cannot_render", f"the columns {list(pool.meta)} are no JSON: keep others (meta)") from None
    source = pool.source or name
    return PoolPrompt(source, own_id if identifier is None else identifier.text, user, kept, pool.harm_category)


def _user(pool: PromptPool, value: Any) -> str | None:
    if pool.chat is not None:
        turns = read_chat({_FIELD_OF_SHAPE[pool.shape]: value}, pool.shape)
        return next((turn.content for turn in turns if turn.role == "user"), None)
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRow("text_not_string", f"{pool.prompt!r} is {type(value).__name__}, expected str")
    return value


def _is_wanted(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)
