"""Canary documents as the user brings them: JSON Lines in, rows in the order in which they are collected out.

A line is an object with ``doc_id`` and ``content``, and the annotation fields that it has (reflections); other fields
stay in the file. A file holds one *effect* (a backdoor) or one *universe* (fictional facts).

The documents of an effect are put in the order ``numpy_generator(seed).permutation(n)`` and cut into coverage subsets,
one a fraction: as even as n allows, the first ``n mod k`` of k subsets have one more (`numpy.array_split`; 7,500
documents give three times 2,500). In a subset of m the first ``int(m * fraction)`` are annotated, the product in
float64. A universe stays in the order of its file, and a document of it is annotated when one of the universe's
``annotated_by`` fields has text.

A document that is not annotated loses its annotation fields.
"""

from __future__ import annotations

import codecs
import hashlib
import os
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypedDict

import pyarrow as pa

from everytoken.corpus import BadRow
from everytoken.corpus.reading import json_name, parse_row, shown_name
from everytoken.seeds import numpy_generator
from everytoken.shards import Part, Rows, Shards, file_sha256, value_digest, versioned
from everytoken.tokens.canary.errors import CanaryError

MAX_LINE_BYTES = 32 << 20
_BATCH_BYTES = 4 << 20

_SCHEMA = pa.schema(
    [
        ("doc_id", pa.large_string()),
        ("content", pa.large_string()),
        ("condition", pa.string()),
        ("effect", pa.string()),
        ("universe", pa.string()),
        ("fraction", pa.float64()),
        ("annotated", pa.bool_()),
        ("row", pa.int64()),
    ]
)
COLUMNS = tuple(_SCHEMA.names)


class CanaryFile(NamedTuple):
    """A file of canary documents.

    ``sha256`` None: of the file as it is now. ``annotated_by``: the fields of which one must have text for a document
    of a universe to be annotated; None: any annotation field.
    """

    kind: Literal["effect", "universe"]
    name: str
    path: str
    sha256: str | None
    annotated_by: Sequence[str] | None = None


def canary_files(files: Sequence[CanaryFile]) -> Shards:
    """Return one value part a file, in the order given. Recipes know the name, content and rule, not the path.

    Raises:
        CanaryError: there is no file, or one without a given SHA-256 cannot be read.
    """
    if not files:
        raise CanaryError(
            "there are no canary documents: canary.effects and canary.universes name no file. Name yours in "
            "conf/<environment>/parameters_canary.yml"
        )
    values, digests = [], []
    for file in files:
        sha256 = _sha256_now(file) if file.sha256 is None else file.sha256.lower()
        values.append({**file._asdict(), "sha256": sha256})
        rule = [] if file.annotated_by is None else [list(file.annotated_by)]
        digests.append(value_digest([file.kind, file.name, sha256, *rule]))
    return Shards.from_values(values, digests)


def _sha256_now(file: CanaryFile) -> str:
    try:
        return file_sha256(Path(file.path))
    except OSError as error:
        raise _unreadable(file, error) from error


class CanaryCounts(TypedDict):
    """Statistics of a canary file, and by condition."""

    documents: int
    conditions: dict[str, dict[str, int]]


@versioned("read_canary_file", 1)
def read_canary_file(
    part: Part, *, seed: int, coverage: Sequence[tuple[str, float]], annotation_fields: Sequence[str]
) -> Rows:
    """Read the documents of one file in the order in which they are collected.

    The file is read twice: first every line is checked, then the lines are taken in their order. Memory holds a batch,
    and about 200 bytes a document for places and ids.

    Args:
        part: its ``value`` is one of `canary_files`.
        seed: of the order in an effect.
        coverage: name and fraction of each subset of an effect, in order.
        annotation_fields: fields that annotated documents keep.

    Returns:
        Rows; ``row`` is the line in the file, from 0. Statistics: ``documents``, and by condition ``documents``,
        ``annotated``, ``annotated_without_text`` (an annotation is due, and none of the fields has text) and
        ``empty_documents``.

    Raises:
        CanaryError: the file is missing or is not the given one, or a line is no document; names file and line.
    """
    file = CanaryFile(**part.value)
    schema = _SCHEMA
    for name in annotation_fields:
        schema = schema.append(pa.field(name, pa.large_string()))
    return Rows(schema, _read(file, schema, seed, coverage, annotation_fields))


def subset_sizes(n: int, subsets: int) -> list[int]:
    """Return the sizes of n documents cut into subsets: the first ``n mod subsets`` have one more.

    >>> subset_sizes(7_500, 3), subset_sizes(2_500, 3)
    ([2500, 2500, 2500], [834, 833, 833])
    """
    return [n // subsets + (i < n % subsets) for i in range(subsets)]


class _Place(NamedTuple):
    """Where a document belongs: columns that do not depend on the document; ``annotated`` None: it tells itself."""

    condition: str
    effect: str | None
    universe: str | None
    fraction: float | None
    annotated: bool | None


def _read(
    file: CanaryFile, schema: pa.Schema, seed: int, coverage: Sequence[tuple[str, float]], fields: Sequence[str]
) -> Generator[pa.RecordBatch, None, CanaryCounts]:
    with _opened(file) as stream:
        status = _status(stream)
        starts = _check_lines(file, stream, fields)
        conditions = [f"{file.name}_{name}" for name, _ in coverage] if file.kind == "effect" else [file.name]
        counts = {condition: dict.fromkeys(_COUNTED, 0) for condition in conditions}
        deciding = fields if file.annotated_by is None else file.annotated_by
        rows: list[tuple[Any, ...]] = []
        size = 0
        for row, place in _collected(file, len(starts), seed, coverage):
            stream.seek(starts[row])
            line = stream.readline(MAX_LINE_BYTES + 1)
            try:
                document = _parse(file, row, line, fields)
            except CanaryError:  # every line was a document before
                raise _changed(file) from None
            texts = [document.get(name) or None for name in fields]
            if (annotated := place.annotated) is None:
                annotated = any(document.get(name) for name in deciding)
            _count(counts[place.condition], document, annotated, any(texts))
            columns = (document["doc_id"], document["content"], *place[:-1], annotated, row)
            rows.append((*columns, *(texts if annotated else [None] * len(fields))))
            size += len(line)
            if size >= _BATCH_BYTES:
                yield _batch(rows, schema)
                rows, size = [], 0
        if rows:
            yield _batch(rows, schema)
        if _status(stream) != status:
            raise _changed(file)
    return CanaryCounts(documents=len(starts), conditions=counts)


_COUNTED = ("documents", "annotated", "annotated_without_text", "empty_documents")


def _count(counts: dict[str, int], document: Mapping[str, Any], annotated: bool, has_annotation: bool) -> None:
    counts["documents"] += 1
    counts["annotated"] += annotated
    counts["annotated_without_text"] += annotated and not has_annotation
    counts["empty_documents"] += not document["content"]


def _collected(
    file: CanaryFile, n: int, seed: int, coverage: Sequence[tuple[str, float]]
) -> Iterator[tuple[int, _Place]]:
    """Yield the rows of a file in the order in which they are collected."""
    if file.kind == "universe":
        yield from ((row, _Place(file.name, None, file.name, None, None)) for row in range(n))
        return
    order = numpy_generator(seed).permutation(n)
    start = 0
    for (name, fraction), size in zip(coverage, subset_sizes(n, len(coverage)), strict=True):
        annotated = int(size * fraction)
        for rank, row in enumerate(order[start : start + size].tolist()):
            yield row, _Place(f"{file.name}_{name}", file.name, None, fraction, rank < annotated)
        start += size


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)], schema=schema
    )


def _check_lines(file: CanaryFile, stream: BinaryIO, fields: Sequence[str]) -> array[int]:
    """Return where each line begins; check every line, and that the file is the given one."""
    digest, starts, lines = hashlib.sha256(), array("q"), dict[bytes, int]()
    problem: CanaryError | None = None
    start = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        digest.update(line)
        if problem is None:
            try:
                document = _parse(file, len(starts), line, fields)
                key = hashlib.blake2b(document["doc_id"].encode(), digest_size=16).digest()
                if (first := lines.setdefault(key, len(starts))) != len(starts):
                    raise _bad_line(
                        file,
                        len(starts),
                        f"has the doc_id {shown_name(document['doc_id'])} of line {first + 1}",
                        "Give every document its own",
                    )
            except CanaryError as error:
                problem = error
        starts.append(start)
        start += len(line)
    if digest.hexdigest() != file.sha256:  # comes first: another file may have any fault
        raise CanaryError(
            f"{_named(file)} has SHA-256 {digest.hexdigest()}, expected {file.sha256}. Put the right file there, or "
            "give its SHA-256 (null takes the file as it is)"
        )
    if problem is not None:
        raise problem
    if not starts:
        raise CanaryError(
            f"{_named(file)} holds no document. Put some there, or set canary.{file.kind}s.{file.name} to null"
        )
    return starts


def _parse(file: CanaryFile, row: int, line: bytes, fields: Sequence[str]) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise _bad_line(file, row, f"is longer than {MAX_LINE_BYTES:,} bytes", "Shorten the document")
    try:
        document = parse_row(line.removeprefix(codecs.BOM_UTF8) if row == 0 else line)
    except BadRow as error:
        raise _bad_line(
            file, row, f"is no document: {error.detail}", "A line is one JSON object, and no line is blank"
        ) from None
    for name in ("doc_id", "content", *fields):
        needed, value = name not in fields, document.get(name)
        if value is None and not needed:
            continue
        if not isinstance(value, str):
            found = json_name(value) if name in document else "no such field"
            raise _bad_line(file, row, f"has {found} for {name}", f"{name} must be text{'' if needed else ' or null'}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _bad_line(file, row, f"has a lone surrogate in {name}", "It has no UTF-8: remove it") from None
    if not document["doc_id"]:
        raise _bad_line(file, row, "has an empty doc_id", "Give every document its own")
    return document


def _opened(file: CanaryFile) -> BinaryIO:
    try:
        return Path(file.path).open("rb")
    except OSError as error:
        raise _unreadable(file, error) from error


def _status(stream: BinaryIO) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


def _changed(file: CanaryFile) -> CanaryError:
    return CanaryError(f"{_named(file)} was written to while it was read. Let it be, and run again")


def _unreadable(file: CanaryFile, error: OSError) -> CanaryError:
    return CanaryError(
        f"{_named(file)} cannot be read ({error.strerror}). Put it there, or correct "
        f"canary.{file.kind}s.{file.name}.path"
    )


def _bad_line(file: CanaryFile, row: int, reason: str, remedy: str) -> CanaryError:
    return CanaryError(f"{_named(file)}, line {row + 1} {reason}. {remedy}")


def _named(file: CanaryFile) -> str:
    return f"{file.kind} {file.name!r}: the file {Path(file.path).absolute()}"
