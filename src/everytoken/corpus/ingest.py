"""Ingestion of one shard: rows of an upstream file become documents with their address.

The text is the renderer's, unchanged. Documents shorter than ``min_chars`` code points are dropped and counted;
anything that cannot be read or rendered fails the part with file and row. Row numbers count before any filter.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from everytoken.corpus.documents import DOCUMENTS, bounded_batches
from everytoken.corpus.errors import BadRow, RowError
from everytoken.corpus.readers import iterate_rows
from everytoken.corpus.renderers import RENDERERS, Document, Renderer
from everytoken.corpus.upstreams import FileStatus, UpstreamFile
from everytoken.shards import Part, Rows, versioned

MAX_STRATA = 1_000
_RENDERER: TypeAdapter[Renderer] = TypeAdapter(Renderer)
_FIX_ROW = "Choose the renderer (and its columns) that fits this source, or another revision without this row."


@versioned(1)
def read_part(part: Part, *, min_chars: int) -> Rows:
    """Read the documents of one planned shard, in file order.

    Args:
        part: its ``value`` is one of `everytoken.corpus.plan.part_values`.
        min_chars: documents with fewer code points are dropped.

    Returns:
        Rows of schema `DOCUMENTS`. Statistics: ``rows_in = kept + too_short``; for the kept ones
        ``by_source[source][stratum]`` with rows, characters (code points) and UTF-8 bytes, and ``length_histogram``,
        where entry ``b`` counts the documents of ``2**b`` to ``2**(b+1) - 1`` characters (an empty one counts as
        ``none``).

    Raises:
        RowError: a row cannot be read or rendered, or the file is missing, is not the one that was planned, or is
            written to or replaced before its last row was read.
    """
    return Rows(DOCUMENTS, _batches(part.value, min_chars))


def _batches(value: dict[str, Any], min_chars: int) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    shard = value["shard"]
    renderer = _RENDERER.validate_python(value["reading"]["renderer"])
    file = UpstreamFile(shard["source"], shard["path"], Path(value["location"]), value["member"])
    status = file.status()  # before the digest: no change between the two readings of the file goes unseen
    _require_planned_bytes(file, status, shard["sha256"])
    counts: Counter[str] = Counter(rows_in=0, kept=0, too_short=0)
    strata: dict[str, Counter[str]] = {}
    histogram: Counter[str] = Counter()

    def rows() -> Iterator[tuple[dict[str, Any], int]]:
        for row in iterate_rows(file, value["reading"]["records"], renderer, shard["first_row"], shard["rows"]):
            counts["rows_in"] += 1
            try:
                document = RENDERERS[renderer.kind](row.key, row.record, renderer)
                text_bytes = _utf8_bytes(document)
            except BadRow as error:
                raise RowError(file.source, file.path, row.number, str(error), _FIX_ROW) from None
            characters = len(document.text)
            if characters < min_chars:
                counts["too_short"] += 1
                continue
            counts["kept"] += 1
            stratum = strata.setdefault(document.stratum, Counter())
            if len(strata) > MAX_STRATA:
                reason = f"the file has over {MAX_STRATA:,} strata, which are for reports"
                raise RowError(file.source, file.path, row.number, reason, "Choose another stratum_column.")
            stratum.update(rows=1, characters=characters, utf8_bytes=text_bytes)
            histogram[f"{characters.bit_length() - 1:02d}" if characters else "none"] += 1
            address = {"source": file.source, "shard_index": shard["shard_index"], "row": row.number}
            yield {"id": document.id, "text": document.text, "stratum": document.stratum, **address}, text_bytes

    try:
        yield from bounded_batches(rows(), DOCUMENTS)
    except RowError:
        _require_unchanged(file, status)  # half of a new file is often no valid row: the change is what to report
        raise
    _require_unchanged(file, status)
    by_stratum = {name: dict(strata[name]) for name in sorted(strata)}
    return {
        **counts,
        "by_source": {file.source: by_stratum},
        "length_histogram": {name: histogram[name] for name in sorted(histogram)},
    }


def _utf8_bytes(document: Document) -> int:
    """Return the size of the text in UTF-8; a lone surrogate in any string (JSON can spell one) has no UTF-8."""
    for name, value in zip(document._fields, document, strict=True):
        try:
            size = len(value.encode("utf-8")) if value is not None else 0
        except UnicodeEncodeError as error:
            raise BadRow(f"the {name} has a lone surrogate at character {error.start}") from None
        if name == "text":
            text_bytes = size
    return text_bytes


def _require_planned_bytes(file: UpstreamFile, status: FileStatus, sha256: str) -> None:
    found = _sha256_of(file, status)
    if found != sha256:
        reason = f"the file has changed since the shard plan: expected SHA-256 {sha256}, found {found}"
        raise RowError(file.source, file.path, None, reason, "Put the planned file back, or remove the plan.")


def _require_unchanged(file: UpstreamFile, status: FileStatus) -> None:
    found = file.status()
    if found != status:
        reason = f"it changed while it was read: expected {status}, found {found}"
        remedy = "See that nothing writes to it, put the planned file back (or remove the plan), and run again."
        raise RowError(file.source, file.path, None, reason, remedy)


@functools.lru_cache(maxsize=64)
def _sha256_of(file: UpstreamFile, status: FileStatus) -> str:
    """Digest a file once a process: shards that are ranges of one file share it while its status stays."""
    return file.sha256()
