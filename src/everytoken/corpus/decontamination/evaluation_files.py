"""Evaluation files: the texts of their examples, for decontamination.

A file is known by its SHA-256. Its rows are its *examples*, numbered from 0: lines of JSON Lines, records of JSON, rows
of parquet, arrow and CSV or TSV (with a header), paragraphs of plain text (lines up to a blank one). An example has the
texts of its fields; a field that is a list or an object gives every text in it. No n-gram runs from one text to the
next: a corpus that holds an example need not hold its fields in this order. Fields that shall be read on are joined
with a space: ``[question, [question, answer]]`` takes the question, and both together.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from everytoken.corpus.errors import RowError, SelectionError
from everytoken.corpus.reading import (
    DamagedFile,
    Reading,
    ReadingLimits,
    Row,
    UnreadableRow,
    decompressed,
    delimited_rows,
    iterate_rows,
    text_blocks,
)
from everytoken.corpus.rendering import JoinedRenderer
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.shards import UNRECORDED, file_sha256

EvaluationFileKind = Literal["jsonl", "json", "parquet", "arrow", "csv", "tsv", "txt"]

_KINDS: dict[str, EvaluationFileKind] = {
    **{".jsonl": "jsonl", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"},
    **{".csv": "csv", ".tsv": "tsv", ".txt": "txt"},
}
_COMPRESSIONS = {".gz": "gz", ".zst": "zst"}
_WHOLE = ("parquet", "arrow")  # compressed inside


class EvaluationFile(BaseModel):
    """One file of examples; see the module docstring.

    Attributes:
        path: of the file, on this machine.
        sha256: of its bytes, as ``sha256sum`` tells it.
        format: null to go by the name: ``.jsonl .json .csv .tsv .txt``, each also with ``.gz`` or ``.zst`` after it,
            ``.parquet .arrow``. ``.json.gz`` and ``.json.zst`` are JSON Lines by name, as Dolma's are.
        records: for ``json``: the key that holds the records, or null when the whole file does.
        fields: of an example; a list of names joins their texts. None for ``txt``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str, UNRECORDED]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    format: EvaluationFileKind | None = None
    records: str | None = None
    fields: tuple[str | Annotated[tuple[str, ...], Field(min_length=1)], ...] = ()

    @model_validator(mode="after")
    def _readable(self) -> EvaluationFile:
        kind = self.kind
        if kind is None:
            raise ValueError(
                f"the format of {self.path} is not known by its name; expected one of {', '.join(_KINDS)} (but for "
                f"parquet and arrow also with .gz or .zst after it). Set format"
            )
        if kind in _WHOLE and self.compression:
            raise ValueError(f"{self.path}: {kind} is compressed inside and is not read from .gz or .zst. Unpack it")
        if self.records is not None and kind != "json":
            raise ValueError(f"records is {self.records!r}, but {self.path} is read as {kind}. Set records to null")
        if (kind == "txt") != (not self.fields):
            raise ValueError(
                f"fields is {list(self.fields)}, and {self.path} is read as {kind}: "
                + ("plain text has none. Set it to []" if kind == "txt" else "name those that hold the texts")
            )
        return self

    @property
    def kind(self) -> EvaluationFileKind | None:
        """The format, given or by the name."""
        stem = self.path.removesuffix(f".{self.compression}") if self.compression else self.path
        named = next((kind for suffix, kind in _KINDS.items() if stem.endswith(suffix)), None)
        if named == "json" and self.compression:
            named = "jsonl"  # as the readers of sources take it
        return self.format or named

    @property
    def compression(self) -> str | None:
        """How it is compressed, by the name."""
        return next((name for suffix, name in _COMPRESSIONS.items() if self.path.endswith(suffix)), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Every field that is looked at, once."""
        every = (name for entry in self.fields for name in ([entry] if isinstance(entry, str) else entry))
        return tuple(dict.fromkeys(every))


class Decontamination(BaseModel):
    """Which documents hold n-grams of evaluation files, and whether they go.

    Attributes:
        ngram: words of an n-gram; 13 is what GPT-3 and lm-evaluation-harness take.
        files: of the evaluations, by name; several splits are several files.
        max_documents: n-grams that are in more documents are ignored (phrases of a language, licences, templates), or
            null to ignore none; GPT-3 took 10.
        remove: whether contaminated documents are dropped; otherwise they are only reported.
        min_matches: a document is contaminated when it has at least so many n-grams of the evaluations, at every place
            counted...
        min_share: ...and they are at least this share of its n-grams.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ngram: int = Field(ge=2, le=1_000)
    files: Annotated[dict[str, EvaluationFile], Field(min_length=1)]
    max_documents: PositiveInt | None
    remove: bool
    min_matches: PositiveInt
    min_share: float = Field(ge=0, le=1)


class Example(NamedTuple):
    """An example: its number in the file, and its texts."""

    number: int
    texts: list[str]


def read_examples(name: str, given: EvaluationFile, limits: ReadingLimits) -> Iterator[Example]:
    """Yield the examples of a file, in order; memory holds one of them.

    Args:
        limits: bounds of memory; a row that is larger is an error here.

    Raises:
        SelectionError: the file is missing, damaged or another one, a row cannot be read, or lacks a field.
    """
    path = Path(given.path)
    where = f"evaluation file {name!r}, {path.absolute()}"
    try:
        found = file_sha256(path)
    except OSError as error:
        raise SelectionError(
            f"{where}: it cannot be read ({error.strerror}). Put the file there, or correct "
            f"decontamination.files.{name}.path."
        ) from None
    if found != given.sha256:
        raise SelectionError(
            f"{where}: its SHA-256 is {found}, expected {given.sha256}. Put the right file there, or correct "
            f"decontamination.files.{name}.sha256 when this one is meant."
        )
    before = path.stat()
    for number, record in _records(where, path, given, limits):
        yield Example(number, _texts(where, number, record, given))
    after = path.stat()
    if (before.st_size, before.st_mtime_ns, before.st_ino) != (after.st_size, after.st_mtime_ns, after.st_ino):
        raise SelectionError(f"{where}: it was written to while it was read. Run again.")


def _texts(where: str, number: int, record: Mapping[str, Any], given: EvaluationFile) -> list[str]:
    if given.kind == "txt":
        return [record["text"]]
    if missing := [field for field in given.names if field not in record]:
        raise SelectionError(
            f"{where}, row {number}: it has no field {missing[0]!r}, found {sorted(record)[:20]}. Set fields to those "
            f"that hold the texts; a field may be null, but every row must have it."
        )
    texts: list[str] = []
    for entry in given.fields:
        if isinstance(entry, str):
            texts += _strings(record[entry])
        else:
            texts.append(" ".join(text for field in entry for text in _strings(record[field])))
    return texts


def _strings(value: Any) -> Iterator[str]:
    """Yield every text within a value; a number or truth value as JSON spells it (the answer to a question)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool | int | float):
        yield json.dumps(value)
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _strings(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from _strings(member)


def _records(
    where: str, path: Path, given: EvaluationFile, limits: ReadingLimits
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    if given.kind == "txt":
        yield from enumerate(_paragraphs(where, path, given, limits))
        return
    if given.kind in ("csv", "tsv"):
        yield from enumerate(_table_rows(where, path, given, limits))
        return
    renderer = JoinedRenderer(
        kind="joined", text_columns=given.names, separator=" ", id_columns=(), stratum_column=None
    )
    reading = Reading.model_validate({"renderer": renderer, "records": given.records, "format": given.kind})
    try:
        for row in iterate_rows(UpstreamFile(where, str(path), path, None), reading, limits):
            if isinstance(row, UnreadableRow):
                at = "" if row.offset is None else f" at byte {row.offset:,}"
                raise _unreadable(where, f"row {row.number}{at}", f"{row.reason}: {row.detail}")
            yield row.number, row.record
    except RowError as error:
        raise SelectionError(
            f"{where}: {error.reason}. Correct fields, records or format to what the file has; or repair the file, and "
            f"give its new SHA-256."
        ) from None


def _paragraphs(where: str, path: Path, given: EvaluationFile, limits: ReadingLimits) -> Iterator[Mapping[str, Any]]:
    with _text(where, path, given, limits) as file:
        gathered: list[str] = []
        size = 0
        while line := file.readline(limits.max_row_bytes):
            if line.isspace():
                if gathered:
                    yield {"text": "".join(gathered)}
                gathered, size = [], 0
                continue
            gathered.append(line)
            size += len(line)
            if size > limits.max_row_bytes:
                reason = f"a paragraph has over {limits.max_row_bytes:,} characters (reading.max_row_bytes)"
                raise _unreadable(where, f"near {gathered[0][:60]!r}", reason)
        if gathered:
            yield {"text": "".join(gathered)}


def _table_rows(where: str, path: Path, given: EvaluationFile, limits: ReadingLimits) -> Iterator[Mapping[str, Any]]:
    kind: Literal["csv", "tsv"] = "tsv" if given.kind == "tsv" else "csv"
    try:
        with path.open("rb") as stream:
            start, blocks = text_blocks(decompressed(stream, given.compression, limits.zstd_window_log_max), kind)
            for row in delimited_rows(blocks, start, kind, limits.max_row_bytes):
                if isinstance(row, Row):
                    yield row.record
                elif row.reason != "blank_line":
                    raise _unreadable(where, f"row {row.number} at byte {row.offset:,}", row.detail)
    except DamagedFile as error:
        raise SelectionError(f"{where}: {error.reason}. {error.remedy}") from None


@contextmanager
def _text(where: str, path: Path, given: EvaluationFile, limits: ReadingLimits) -> Iterator[io.TextIOWrapper]:
    """Open a file of UTF-8 text, compressed or not; a byte order mark is no part of it."""
    with path.open("rb") as stream:
        blocks = decompressed(stream, given.compression, limits.zstd_window_log_max)
        try:
            yield io.TextIOWrapper(io.BufferedReader(_Blocks(blocks)), encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise _unreadable(where, f"near byte {stream.tell():,}", f"it is not UTF-8 ({error.reason})") from None
        except DamagedFile as error:
            raise SelectionError(f"{where}: {error.reason}. {error.remedy}") from None


class _Blocks(io.RawIOBase):
    """A file that reads what blocks of bytes hold."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._left = iter(blocks), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = next(self._blocks, b"")
        some = self._left[: len(buffer)]
        buffer[: len(some)] = some
        self._left = self._left[len(some) :]
        return len(some)


def _unreadable(where: str, place: str, reason: str) -> SelectionError:
    return SelectionError(f"{where}, {place}: {reason}. Repair the file, and give its new SHA-256.")
