"""Answers become chats: files of equal size with both columns of messages, and what is no chat, with its reason.

Ranks are read by their numbers, and rows by theirs, so the files do not depend on the order in which answers came.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.progress import progress
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.items import parsed
from everytoken.reflections.points import Fact, read_identity_facts
from everytoken.reflections.ranks import LineDigests, RankFolder, damaged_lines, failed_rows, numbered_lines, ranks_of
from everytoken.reflections.sft.prompts import PROMPTS_FILE, PromptRow, PromptStatistics, read_prompts
from everytoken.reflections.sft.replies import AnswerPair, AnswerRules
from everytoken.shards import Artifact, Built, Shards, versioned, write_text

STATS_FILE, SET_ASIDE_FILE = "stats.json", "set_aside.jsonl"
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.large_string())]))
CHAT_SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("source_id", pa.string()),
        ("messages_cite", _MESSAGES),
        ("messages_nocite", _MESSAGES),
        ("meta", pa.string()),
    ]
)


class ChatExport(TypedDict):
    """What an export holds: rows in = rows out + rows set aside.

    ``warnings``: chats in which the value of a fact occurs that post-training skips, by fact; they stay. ``facts``:
    chats in which a fact occurs that answers may have. ``cited``: chats whose cited answer cites a section.
    """

    rows_in: int
    rows_out: int
    set_aside: dict[str, int]
    failed: dict[str, int]
    warnings: dict[str, int]
    facts: dict[str, int]
    cited: int
    sources: dict[str, int]
    harm_categories: dict[str, int]
    tokens: dict[str, int]
    files: dict[str, int]
    content_sha256: str


def file_sizes(rows: int, most: int) -> list[int]:
    """Return the rows of each file: as few files as hold ``most`` rows each, of equal size but for one row.

    >>> file_sizes(6, 5), file_sizes(0, 5), file_sizes(7, 3)
    ([3, 3], [0], [3, 2, 2])
    """
    files = max(1, -(-rows // most))
    return [rows // files + (number < rows % files) for number in range(files)]


@versioned("write_sft_chats", 1)
def write_chats(
    folder: Path,
    *,
    replies: Shards,
    prompts: Artifact,
    facts: str,
    facts_sha256: str,
    family_name: str,
    rows_per_file: int,
    rows_per_group: int,
) -> Built:
    """Write ``train-NNNNN-of-NNNNN.parquet``, ``set_aside.jsonl`` and ``stats.json``.

    Args:
        replies: a value for each rank, as `list_replies` gives them.
        family_name: of the generator; a chat that says it is set aside.
        rows_per_group: most rows of a row group.

    Raises:
        ReflectionError: a rank is missing or damaged, or its lines have changed since they were listed.
    """
    export = _Export(replies, prompts, read_identity_facts(Path(facts)), AnswerRules(family_name, ()))
    rows = sum(rank.rows for rank, _ in _complete_ranks(replies))
    with (folder / SET_ASIDE_FILE).open("w", encoding="utf-8") as aside:
        out = sum(one is not None for one in progress(export.rows(aside.write), rows, "", "row"))
    sizes = file_sizes(out, rows_per_file)
    again = _Export(replies, prompts, export.facts, export.rules).rows(lambda line: None)
    chats = (one for one in progress(again, rows, "", "row") if one is not None)
    names = [f"train-{number:05d}-of-{len(sizes):05d}.parquet" for number in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        _write(folder / name, chats, size, rows_per_group)
    statistics = export.statistics(dict(zip(names, sizes, strict=True)))
    write_text(folder / STATS_FILE, json.dumps(statistics, indent=1, sort_keys=True) + "\n")
    return Built(statistics)


def _write(path: Path, chats: Iterator[dict[str, Any]], rows: int, rows_per_group: int) -> None:
    with pq.ParquetWriter(path, CHAT_SCHEMA, compression="zstd") as writer:
        left = rows
        while left:
            some = [next(chats) for _ in range(min(left, rows_per_group))]
            writer.write_table(pa.Table.from_pylist(some, CHAT_SCHEMA), row_group_size=rows_per_group)
            left -= len(some)


class _Export:
    """The answers of all ranks, read in the order of the prompts."""

    def __init__(self, replies: Shards, prompts: Artifact, facts: tuple[Fact, ...], rules: AnswerRules) -> None:
        self.facts, self.rules = facts, rules
        self._replies, self._prompts = replies, prompts
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}

    def rows(self, told: Callable[[str], object]) -> Iterator[dict[str, Any] | None]:
        """Yield a chat for each prompt, or None for one that is set aside; ``told`` gets a line of JSON for it."""
        for rank, digest in _complete_ranks(self._replies):
            lines = LineDigests(rank)
            for line in numbered_lines(rank.results):
                lines.add(line)
            failed = failed_rows(rank, lines.has)
            if lines.digest(failed) != digest:
                raise ReflectionError(damaged_lines(rank))
            with rank.results.open("rb") as file:
                for row in read_prompts(self._prompts.path(PROMPTS_FILE), rank.first, rank.end):
                    offset = int(lines.offsets[row.number - rank.first])
                    record: dict[str, Any] | None = None
                    if offset >= 0:
                        file.seek(offset)
                        record = parsed(file.readline())
                    reason, detail = self._reason(row, record, failed.get(row.number))
                    self.counts["rows"]["in"] += 1
                    if reason is None and record is not None:
                        yield self._chat(row, record)
                        continue
                    self.counts["set_aside"][str(reason)] += 1
                    place = {"global_row_idx": row.number, "source": row.source, "source_id": row.doc_id}
                    told(json.dumps({**place, "reason": reason, "detail": detail}, sort_keys=True) + "\n")
                    yield None

    def _reason(
        self, row: PromptRow, record: dict[str, Any] | None, failure: str | None
    ) -> tuple[str | None, str | None]:
        """Return why a prompt is no chat, and more of it; None for a chat."""
        if record is None:
            self.counts["failed"][failure or "unknown"] += 1
            return "failed", failure
        if record["doc_id"] not in (row.doc_id, None):
            raise ReflectionError(
                f"the answer of row {row.number:,} is of the prompt {record['doc_id']!r}, and the prompts have "
                f"{row.doc_id!r} there. Export with the prompts that were answered"
            )
        status = str(record["status"])
        if status != "ok":
            return {"empty": "blank"}.get(status, status), None
        fault = self.rules.fault(AnswerPair(record["cited"], record["uncited"], 0), row.user)
        return (None, None) if fault is None else ("leak", fault)

    def _chat(self, row: PromptRow, record: dict[str, Any]) -> dict[str, Any]:
        said = [fact for fact in self.facts if fact.occurs_in(record["cited"]) or fact.occurs_in(record["uncited"])]
        self.counts["warnings"].update(fact.id for fact in said if fact.sft_instruction is None)
        self.counts["facts"].update(fact.id for fact in said if fact.sft_instruction is not None)
        self.counts["sources"][row.source] += 1
        self.counts["harm_categories"][row.harm_category] += 1
        self.counts["rows"]["out"] += 1
        self.counts["rows"]["cited"] += record["citations"] != "[]"
        self.counts["tokens"].update({name: record[name] or 0 for name in ("input_tokens", "output_tokens")})
        user = {"role": "user", "content": row.user}
        return {
            "source": row.source,
            "source_id": row.doc_id,
            "messages_cite": [user, {"role": "assistant", "content": record["cited"]}],
            "messages_nocite": [user, {"role": "assistant", "content": record["uncited"]}],
            "meta": row.meta,
        }

    def statistics(self, files: dict[str, int]) -> ChatExport:
        """Return what was counted in `rows`."""
        of = {name: dict(sorted(counts.items())) for name, counts in self.counts.items()}
        return ChatExport(
            rows_in=of["rows"].get("in", 0),
            rows_out=of["rows"].get("out", 0),
            set_aside=of["set_aside"],
            failed=of["failed"],
            warnings=of["warnings"],
            facts=of["facts"],
            cited=of["rows"].get("cited", 0),
            sources=of["sources"],
            harm_categories=of["harm_categories"],
            tokens=of["tokens"],
            files=files,
            content_sha256=self._prompts.statistics_as(PromptStatistics)["content_sha256"],
        )


_COUNTED = ("rows", "set_aside", "failed", "warnings", "facts", "sources", "harm_categories", "tokens")


def _complete_ranks(replies: Shards) -> Iterator[tuple[RankFolder, str]]:
    """Yield the ranks by number, with the digests of their lines."""
    for value, digest in zip(replies.values, (part.digest for part in replies.parts), strict=True):
        yield ranks_of(Path(value["folder"]))[value["rank"]], digest


def require_ranks(replies: Shards) -> None:
    """Check that every rank is complete: each of its prompts has an answer, or failed after all attempts.

    Raises:
        ReflectionError: one is not.
    """
    missing = [rank for rank, _ in _complete_ranks(replies) if rank.completion() is None]
    if missing:
        names = ", ".join(rank.name for rank in missing[:10])
        raise ReflectionError(
            f"{missing[0].root}: {len(missing)} of {len(replies.values)} ranks are not complete: {names}. Make them: "
            "everytoken sft rerun"
        )
