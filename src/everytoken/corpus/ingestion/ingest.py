"""Ingestion of one part: rows of upstream files become documents with their address, or are set aside with a reason.

The text is the renderer's, unchanged. Row numbers count before any filter. Rows that cannot be read or rendered are
*bad*: a share of them over ``max_bad_share`` fails the part. Documents that a filter leaves out (too short, quality
rules) are no fault of the file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import TypeAdapter

from everytoken.address import file_of
from everytoken.corpus.documents import DOCUMENTS, SET_ASIDE, BatchBuilder
from everytoken.corpus.errors import BAD_ROW_REASONS, BadRow, RowError, SelectionError
from everytoken.corpus.ingestion.plan import PlannedShard, ShardPlan, part_values
from everytoken.corpus.ingestion.quality import QualityRules, rejection
from everytoken.corpus.ingestion.rendered_rows import render_row
from everytoken.corpus.ingestion.source import Source
from everytoken.corpus.reading import Reading, ReadingLimits, Row, UnreadableRow, iterate_rows
from everytoken.corpus.rendering import ConversationRenderer, RenderedDocument, first_identifier, unread_of
from everytoken.corpus.statistics import DocumentCounts, FileRows, TextAmounts, as_written
from everytoken.corpus.upstreams import PLAN_AGAIN, FileStatus, UpstreamFile
from everytoken.shards import Part, Rows, SetAside, Shards, versioned

MAX_STRATA = 1_000
MAX_STRATUM = 1_000  # characters
MAX_UNREAD_KEYS = 1_000  # names for each reason why a key is not read
MAX_UNREAD_KEY = 100  # characters of a name
OTHER_KEYS = "other keys"
_SHOWN = 10
_ROW_BYTES = 200  # of a row beside its text, for the bound of a batch
_QUALITY: TypeAdapter[QualityRules | None] = TypeAdapter(QualityRules | None)


# what is unrecorded decides whether a part can be made, and no byte of it: `check_bad_shares` looks at kept parts again
@versioned("read_part", 2, unrecorded=["max_bad_share", "zstd_window_log_max", "keep_fetched"])
def read_part(
    part: Part,
    *,
    min_chars: int,
    max_row_bytes: int,
    max_bad_share: float,
    zstd_window_log_max: int,
    keep_fetched: bool,
) -> Rows:
    """Read the documents of one part of the plan, in file order; a file that is not here yet is fetched first.

    Args:
        part: its ``value`` is one of `everytoken.corpus.ingestion.plan.part_values`.
        min_chars: documents with fewer code points are set aside.
        max_bad_share: the part fails when more than this share of its rows is bad.
        keep_fetched: whether a fetched file stays when the part is read (one that several parts read always does).

    Returns:
        Rows of schema `DOCUMENTS`, and those set aside of schema `SET_ASIDE`. Statistics: ``rows_in``, ``kept``,
        ``set_aside`` by reason; of the kept ones ``by_source[source][stratum]`` with rows, characters (code points)
        and UTF-8 bytes, ``length_histogram``, see `length_bin`, of chats ``unread_keys``, and ``personal_data`` where
        it is looked for. A part that is read from several files has the rows of each as ``files``.

    Raises:
        RowError: too many rows are bad, or the file cannot be had or read, is not the one that was planned, or is
            written to or replaced before its last row was read.
    """
    limits = ReadingLimits(max_row_bytes=max_row_bytes, zstd_window_log_max=zstd_window_log_max)
    batches = _batches(part.value, min_chars, max_bad_share, limits, keep_fetched)
    return Rows(DOCUMENTS, batches, set_aside=SET_ASIDE)


def read_shards(
    plan: ShardPlan,
    sources: Mapping[str, Source],
    files: Mapping[str, Sequence[UpstreamFile]],
    *,
    min_chars: int,
    max_bad_share: float,
    limits: ReadingLimits,
    keep_fetched: bool,
) -> Shards:
    """Plan the documents of every shard of the plan, a part each.

    Args:
        min_chars: see `read_part`, as all that follows.
        max_bad_share: of the rows of a part.
    """
    values, digests = part_values(plan, sources, files)
    return Shards.from_values(values, digests).map(
        read_part,
        min_chars=min_chars,
        max_row_bytes=limits.max_row_bytes,
        max_bad_share=max_bad_share,
        zstd_window_log_max=limits.zstd_window_log_max,
        keep_fetched=keep_fetched,
    )


def check_bad_shares(statistics: Mapping[str, DocumentCounts], max_bad_share: float) -> None:
    """Check the parts that were made before under another ``max_bad_share``: none may have more bad rows than now.

    Raises:
        SelectionError: some have; their names and numbers.
    """
    over = []
    for name, counts in statistics.items():
        bad = sum(n for reason, n in counts["set_aside"].items() if reason in BAD_ROW_REASONS)
        if bad > as_written(max_bad_share) * counts["rows_in"]:
            over.append(f"{name} of source {'/'.join(counts['by_source'])!r} ({bad:,} of {counts['rows_in']:,})")
    if over:
        raise SelectionError(
            f"{len(over)} parts have more bad rows than the share {max_bad_share:g} allowed: {', '.join(over[:_SHOWN])}"
            f"{', ...' if len(over) > _SHOWN else ''}. See what was set aside beside them; mend the files, or allow "
            "more by ingestion.max_bad_share."
        )


def length_bin(characters: int) -> str:
    """Return the entry ``b`` of a histogram for ``2**b`` to ``2**(b+1) - 1`` characters, ``none`` for an empty text."""
    return f"{characters.bit_length() - 1:02d}" if characters else "none"


class _Left(NamedTuple):
    """A row that does not become a document."""

    reason: str
    detail: str | None
    id: str | None
    raw: bytes | None
    personal_data: Mapping[str, int] = MappingProxyType({})


class _Kept(NamedTuple):
    """A document with its text in UTF-8, and how much personal data of each kind it had."""

    document: RenderedDocument
    utf8: bytes
    personal_data: Mapping[str, int]


def _batches(
    value: dict[str, Any], min_chars: int, max_bad_share: float, limits: ReadingLimits, keep_fetched: bool
) -> Generator[pa.RecordBatch | SetAside, None, DocumentCounts]:
    rules = _Rules(Reading.model_validate(value["reading"]), _QUALITY.validate_python(value["quality"]), min_chars)
    read = [_PlannedFile(given["shard"], UpstreamFile.from_json(given["file"])) for given in value["files"]]
    tally = _Tally([file for _, file in read], rules.reading)
    kept, left = BatchBuilder(DOCUMENTS), BatchBuilder(SET_ASIDE)
    for planned in read:
        yield from _of_file(planned, rules, limits, tally, kept, left)
    tally.check(max_bad_share)
    yield from kept.rest()
    for batch in left.rest():
        yield SetAside(batch)
    for (_, file), given in zip(read, value["files"], strict=True):
        if not keep_fetched and not given["shared"]:  # another worker may be reading the same file
            file.discard()
    return tally.statistics()


class _Rules(NamedTuple):
    """What decides which rows become documents."""

    reading: Reading
    quality: QualityRules | None
    min_chars: int

    @property
    def drops_personal_data(self) -> bool:
        return self.reading.personal_data is not None and self.reading.personal_data.rule == "drop"


class _PlannedFile(NamedTuple):
    shard: PlannedShard
    file: UpstreamFile


def _of_file(
    planned: _PlannedFile, rules: _Rules, limits: ReadingLimits, tally: _Tally, kept: BatchBuilder, left: BatchBuilder
) -> Iterator[pa.RecordBatch | SetAside]:
    """Read the rows of one file into ``kept`` and ``left``, and yield the batches that are full."""
    shard, file = planned
    renderer = rules.reading.renderer
    status = file.require(shard["digest"])
    source, number = file_of(shard)
    tally.begin(file, number)
    try:
        for row in iterate_rows(file, rules.reading, limits, shard["first_row"], shard["rows"]):
            outcome = _document_of(row, rules)
            tally.count_personal_data(outcome.personal_data)
            if isinstance(outcome, _Left):
                tally.leave(row, outcome)
                place = (source, number, row.number, row.offset)
                aside = (*place, outcome.id, outcome.reason, outcome.detail, outcome.raw)
                for batch in left.add(aside, _ROW_BYTES + len(outcome.raw or b"") + 4 * len(outcome.id or "")):
                    yield SetAside(batch)
                continue
            document, utf8, _ = outcome
            tally.keep(row, document, len(utf8))
            if isinstance(row, Row) and isinstance(renderer, ConversationRenderer):
                tally.count_unread(unread_of(row.record, row.unread, renderer))
            identifier = document.id or (None, None)
            measures = (len(document.text), len(utf8), hashlib.sha256(utf8).digest(), document.assistant_spans)
            columns = (*identifier, utf8, source, document.stratum, number, row.number, *measures)
            labels = 4 * (len(document.stratum) + len(identifier[0] or ""))
            yield from kept.add(columns, _ROW_BYTES + len(utf8) + labels)
    except RowError:
        _require_unchanged(file, status)  # half of a new file is often no valid row: the change is what to report
        raise
    _require_unchanged(file, status)


def _document_of(row: Row | UnreadableRow, rules: _Rules) -> _Kept | _Left:
    """Return the document of a row, or why there is none."""
    if isinstance(row, UnreadableRow):
        return _Left(row.reason, _printable(row.detail), None, row.raw)
    try:
        document, personal = render_row(row, rules.reading)
        utf8 = _utf8("text", document.text)
        _utf8("stratum", document.stratum)
        if len(document.stratum) > MAX_STRATUM:
            length = len(document.stratum)
            raise BadRow("cannot_render", f"the stratum has {length:,} characters, a label at most {MAX_STRATUM:,}")
        if document.id is not None:
            _utf8("id", document.id.text)
    except BadRow as error:
        return _Left(error.reason, _printable(error.detail), _id_of(row, rules.reading), None)
    name = None if document.id is None else document.id.text
    if len(document.text) < rules.min_chars:
        return _Left("too_short", None, name, None)
    reason = None if rules.quality is None else rejection(document.text, rules.quality)
    if reason is None and personal and rules.drops_personal_data:
        reason = "personal_data"
    return _Kept(document, utf8, personal) if reason is None else _Left(reason, None, name, None, personal)


def _id_of(row: Row, reading: Reading) -> str | None:
    """Return the id of a row that became no document, if it has one that can be written."""
    columns = getattr(reading.renderer, "id_columns", ())
    try:
        found = first_identifier(row.record, columns) if isinstance(row.record, dict) else None
        name = row.key if found is None else found.text
        return None if name is None else _utf8("id", name).decode("utf-8")
    except BadRow:
        return None


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair, which has no UTF-8
        raise BadRow("lone_surrogate", f"the {name} has a lone surrogate at character {error.start}") from None


def _printable(detail: str) -> str:
    return detail.encode("utf-8", "backslashreplace").decode("utf-8")


class _Tally:
    """Counts of one part, file after file."""

    def __init__(self, files: Sequence[UpstreamFile], reading: Reading) -> None:
        self._source, self._several = files[0].source, len(files) > 1
        self._path = files[0].path
        self._files: list[FileRows] = []
        self._rows = 0  # of the files before
        is_chat = isinstance(reading.renderer, ConversationRenderer)
        self._unread: dict[str, Counter[str]] | None = {} if is_chat else None
        kinds = () if reading.personal_data is None else reading.personal_data.kinds
        self._personal: Counter[str] | None = Counter(dict.fromkeys(("documents", *kinds), 0)) if kinds else None
        self._kept = 0
        self._left: Counter[str] = Counter()
        self._strata: dict[str, list[int]] = {}
        self._histogram: Counter[str] = Counter()
        self._first_bad: list[str] = []

    def begin(self, file: UpstreamFile, number: int) -> None:
        """Count the rows that follow for this file."""
        self._end_file()
        self._path = file.path
        self._files.append(FileRows(path=file.path, shard_index=number, rows=0))

    def _end_file(self) -> None:
        rows = self._kept + self._left.total()
        if self._files:
            self._files[-1]["rows"] = rows - self._rows
        self._rows = rows

    def keep(self, row: Row | UnreadableRow, document: RenderedDocument, utf8_bytes: int) -> None:
        self._kept += 1
        counts = self._strata.get(document.stratum)
        if counts is None:
            counts = self._strata[document.stratum] = [0, 0, 0]
            if len(self._strata) > MAX_STRATA:
                reason = f"the shard has over {MAX_STRATA:,} strata, which are for reports"
                remedy = "Choose another stratum_column."
                raise RowError(self._source, self._path, row.number, reason, remedy)
        characters = len(document.text)
        counts[0] += 1
        counts[1] += characters
        counts[2] += utf8_bytes
        self._histogram[length_bin(characters)] += 1

    def count_unread(self, keys: Iterable[tuple[str, str]]) -> None:
        """Count keys that are not read; beyond `MAX_UNREAD_KEYS` names the others have one count together."""
        if self._unread is None:
            return
        for why, key in keys:
            counts = self._unread.setdefault(why, Counter())
            name = _printable(key[:MAX_UNREAD_KEY])
            counts[name if name in counts or len(counts) < MAX_UNREAD_KEYS else OTHER_KEYS] += 1

    def count_personal_data(self, found: Mapping[str, int]) -> None:
        if self._personal is not None and found:
            self._personal.update(found)
            self._personal["documents"] += 1

    def leave(self, row: Row | UnreadableRow, left: _Left) -> None:
        self._left[left.reason] += 1
        if left.reason in BAD_ROW_REASONS and len(self._first_bad) < _SHOWN:
            file = f"{self._path} " if self._several else ""
            place = f"{file}row {row.number}" + ("" if row.offset is None else f" at byte {row.offset:,}")
            self._first_bad.append(f"{place}: {left.reason}, {left.detail}")

    def check(self, max_bad_share: float) -> None:
        """Raise a `RowError` with counts and the first places when more than this share of the rows is bad."""
        by_reason = {reason: n for reason, n in sorted(self._left.items()) if reason in BAD_ROW_REASONS}
        bad, rows = sum(by_reason.values()), self._kept + self._left.total()
        if bad <= as_written(max_bad_share) * rows:
            return
        counts = ", ".join(f"{n:,} {reason}" for reason, n in by_reason.items())
        places = "; ".join(self._first_bad) + ("; ..." if bad > len(self._first_bad) else "")
        reason = f"{bad:,} of {rows:,} rows are bad ({counts}), more than the share {max_bad_share:g} allowed. {places}"
        wrong = "The source's format, records or renderer (its columns) may not fit this file. " if bad == rows else ""
        remedy = wrong + (
            "Repair the file at its origin, pin another revision, or allow more by ingestion.max_bad_share: "
            "bad rows are then set aside beside the part, with address and reason."
        )
        raise RowError(self._source, self._name, None, reason, remedy)

    @property
    def _name(self) -> str:
        first, last = self._files[0]["path"], self._files[-1]["path"]
        return f"{first} to {last} ({len(self._files):,} files)" if self._several else first

    def statistics(self) -> DocumentCounts:
        strata = {
            name: TextAmounts(rows=rows, characters=characters, utf8_bytes=utf8_bytes)
            for name, (rows, characters, utf8_bytes) in sorted(self._strata.items())
        }
        counts: DocumentCounts = {
            "rows_in": self._kept + self._left.total(),
            "kept": self._kept,
            "set_aside": dict(sorted(self._left.items())),
            "by_source": {self._source: strata},
            "length_histogram": dict(sorted(self._histogram.items())),
        }
        if self._unread is not None:
            counts["unread_keys"] = {why: dict(sorted(keys.items())) for why, keys in sorted(self._unread.items())}
        if self._personal is not None:
            counts["personal_data"] = dict(self._personal)
        if self._several:
            self._end_file()
            counts["files"] = self._files
        return counts


def _require_unchanged(file: UpstreamFile, status: FileStatus) -> None:
    found = file.status()
    if found != status:
        reason = f"it changed while it was read: expected {status}, found {found}"
        remedy = f"See that nothing writes to it, and put the planned file back, or {PLAN_AGAIN}."
        raise RowError(file.source, file.path, None, reason, remedy)
