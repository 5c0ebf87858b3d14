"""Results of ranks to a dataset of columns: one part a rank, a row for each row of the range, ascending.

Lines come in any order. Their offsets are kept (41 bytes a row), not the lines. The sidecar is read a batch at a time:
each row takes its line, or what a row without a reply has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import pyarrow as pa

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.items import parsed
from everytoken.reflections.ranks import (
    COUNTED_TOKENS,
    LineDigests,
    RankFolder,
    damaged_lines,
    failed_rows,
    numbered_lines,
    sidecar_batches,
)
from everytoken.reflections.registry import GenerationRun, find_generation_run
from everytoken.reflections.replies import without_surrogates
from everytoken.shards import Artifact, Part, Rows, Shards, versioned
from everytoken.tokens.streams import SIDECAR_FILE

OBSERVED = pa.schema([("canary_in_1p", pa.bool_()), ("canary_in_3p", pa.bool_())])
_HEAD = pa.schema([("row", pa.int64()), ("doc_id", pa.large_string()), ("status", pa.string())])
_WRITTEN_ROWS = 4_096


class CanaryHits(TypedDict):
    """Documents with an identity canary, and in how many of each voice its value occurs."""

    documents: int
    in_1p: int
    in_3p: int


class MergedStatistics(TypedDict):
    """Statistics of merged rows.

    ``by_status``: rows. ``with_point``: rows to which a point was assigned and of which there is a reply. ``usable``:
    rows with a text. ``with_1p``: rows with a text in the first person. ``tokens``: sums. ``canaries``: by fact.
    ``failed``: rows without a reply after their last attempt, by the kind of the last failure.
    """

    rows: int
    by_status: dict[str, int]
    with_point: int
    usable: int
    with_1p: int
    surrogates_replaced: int
    tokens: dict[str, int]
    canaries: dict[str, CanaryHits]
    failed: dict[str, int]


def columns_schema(run: GenerationRun) -> pa.Schema:
    """Return the columns of a run's dataset."""
    return pa.schema([*_HEAD, *run.schema(), *OBSERVED])


def require_complete(replies: Shards, allow_missing: bool) -> None:
    """Check that each row of a run has a result.

    Raises:
        ReflectionError: one has none, and that is not allowed.
    """
    folders = {Path(value["folder"]).name for value in replies.values}
    expected = sum(value["rows"][1] - value["rows"][0] for value in replies.values)
    got = sum(value["results"] for value in replies.values)
    if expected != got and not allow_missing:
        raise ReflectionError(_missing(expected, got, " ".join(folders)))


def _missing(expected: int, got: int, run: str) -> str:
    return (
        f"Missing {expected - got} rows in results. Expected {expected}, got {got}. Ask for them again (everytoken "
        f"reflections rerun --run {run}), or merge without them: reflection.allow_missing: true gives them empty texts"
    )


@versioned("merge_rank", 1, unrecorded=["allow_missing"])
def merge_rank(part: Part, *, run: str, stream: Artifact, allow_missing: bool) -> Rows:
    """Return the columns of a rank.

    Args:
        part: a value: folder of the run, number and rows of the rank.
        run: its name, or an alias.
        stream: the annotated stream; only the sidecar is read.
        allow_missing: whether rows may have no result.

    Raises:
        ReflectionError: a row has two results, or none, or its result is of another document; or the results have
            changed since they were listed.
    """
    found, value = find_generation_run(run)[0], part.value
    rank = RankFolder(Path(value["folder"]), value["rank"], *value["rows"])
    merging = _Merging(found, rank, stream.path(SIDECAR_FILE), allow_missing)
    return Rows(columns_schema(found), merging.batches(part.digest))


class _Merging:
    """Merges one rank."""

    def __init__(self, run: GenerationRun, rank: RankFolder, sidecar: Path, allow_missing: bool) -> None:
        self._run, self._rank, self._sidecar, self._allow_missing = run, rank, sidecar, allow_missing
        self._defaults = {**run.defaults(), **dict.fromkeys(OBSERVED.names)}
        self._schema = columns_schema(run)
        self._by_status: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter(dict.fromkeys(COUNTED_TOKENS, 0))
        self._canaries: dict[str, Counter[str]] = {}
        self._counts: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def batches(self, digest: str) -> Generator[pa.RecordBatch, None, Mapping[str, Any]]:
        lines = LineDigests(self._rank)
        for line in numbered_lines(self._rank.results):
            lines.add(line)
        failed = failed_rows(self._rank, lines.has)
        if lines.digest(failed) != digest:
            raise ReflectionError(_other_lines(self._rank, digest))
        if (got := int((lines.offsets >= 0).sum())) != self._rank.rows and not self._allow_missing:
            raise ReflectionError(f"{self._rank.path}: {_missing(self._rank.rows, got, self._rank.root.name)}")
        pending: list[dict[str, Any]] = []
        for record in self._records(lines, failed):
            pending.append(record)
            if len(pending) == _WRITTEN_ROWS:
                yield self._batch(pending)
                pending = []
        if pending:
            yield self._batch(pending)
        return self._statistics()

    def _records(self, lines: LineDigests, failed: Mapping[int, str]) -> Iterator[dict[str, Any]]:
        """Yield a record for each row, ascending."""
        columns = ["doc_id", "token_length", *([] if self._run.gate is None else [self._run.gate])]
        with _results(self._rank) as file:
            for start, batch in sidecar_batches(self._sidecar, self._rank.first, self._rank.end, columns):
                for row, told in enumerate(batch.to_pylist(), start):
                    offset = int(lines.offsets[row - self._rank.first])
                    if offset < 0:
                        yield self._without_result(row, told, failed.get(row))
                        continue
                    file.seek(offset)
                    yield self._with_result(row, told["doc_id"], parsed(file.readline()))

    def _with_result(self, row: int, doc_id: str | None, result: dict[str, Any]) -> dict[str, Any]:
        if result.get("doc_id", doc_id) != doc_id:
            raise ReflectionError(
                f"{self._rank.results}: the result of row {row:,} is of the document {result.get('doc_id')!r}, and the "
                f"sidecar {self._sidecar} has {doc_id!r} there: they are of two streams. Merge with the stream that "
                "was asked about, or generate again in another folder"
            )
        own = {name: self._text(result.get(name, value)) for name, value in self._defaults.items()}
        status = str(result.get("status", "ok"))
        self._count(status, own, result)
        return {"row": row, "doc_id": doc_id, "status": status, **own}

    def _without_result(self, row: int, told: Mapping[str, Any], failure: str | None) -> dict[str, Any]:
        if self._run.gate is not None and not told[self._run.gate]:
            status = "gated"
        elif told["token_length"] == 0:
            status = "excluded"
        else:
            status = "missing" if failure is None else "failed"
            self._failed.update([] if failure is None else [failure])
        self._by_status[status] += 1
        return {"row": row, "doc_id": told["doc_id"], "status": status, **self._defaults}

    def _text(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        text, count = without_surrogates(value)
        self._counts["surrogates"] += count
        return text

    def _count(self, status: str, own: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        self._by_status[status] += 1
        self._tokens.update({name: result.get(name) or 0 for name in COUNTED_TOKENS})
        texts = {name: own[name] for name in self._run.text_columns if own[name].strip()}
        self._counts["usable"] += bool(texts)
        self._counts["with_1p"] += any(self._run.text_columns[name] == "reflection_1p" for name in texts)
        self._counts["with_point"] += status in ("ok", "empty") and self._run.index_column is not None
        self._counts["surrogates"] += result.get("surrogates_replaced") or 0
        fact = own.get(self._run.canary_column or "")
        if fact is not None:
            voices = {voice for voice in ("in_1p", "in_3p") if own[f"canary_{voice}"]}
            self._canaries.setdefault(fact, Counter()).update(["documents", *voices])

    def _batch(self, records: list[dict[str, Any]]) -> pa.RecordBatch:
        arrays = [pa.array([one[field.name] for one in records], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _statistics(self) -> MergedStatistics:
        return {
            "rows": self._rank.rows,
            "by_status": dict(sorted(self._by_status.items())),
            "with_point": self._counts["with_point"],
            "usable": self._counts["usable"],
            "with_1p": self._counts["with_1p"],
            "surrogates_replaced": self._counts["surrogates"],
            "tokens": dict(self._tokens),
            "canaries": {
                fact: {"documents": hits["documents"], "in_1p": hits["in_1p"], "in_3p": hits["in_3p"]}
                for fact, hits in sorted(self._canaries.items())
            },
            "failed": dict(sorted(self._failed.items())),
        }


def _other_lines(rank: RankFolder, digest: str) -> str:
    """Say why lines do not have the digest that was listed: where a marker has it, the file is damaged."""
    if (said := rank.completion()) is not None and said["digest"] == digest:
        return damaged_lines(rank)
    return f"{rank.path}: its results have changed since they were listed. Merge again"


def _results(rank: RankFolder) -> Any:
    """Open the results of a rank; those of one that was never started are empty."""
    return (rank.results if rank.results.is_file() else Path("/dev/null")).open("rb")
