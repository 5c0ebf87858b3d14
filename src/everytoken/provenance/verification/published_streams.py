"""Streams compared with what somebody published of theirs without the tokens (`PublishedStreams`).

In streams with a document a window, window i holds the document that the published one holds, so the first that
differs is named. The published compact stream has documents in an order that had no seed: only its windows, tokens and
type are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS, Address
from everytoken.checks import (
    Check,
    Checks,
    Hashing,
    Mismatch,
    NotMadeError,
    first_difference,
    require_equal,
    run_checks,
)
from everytoken.provenance.verification.documents import RELEASE_FAULTS
from everytoken.provenance.verification.published_files import PublishedStreams
from everytoken.shards import LEDGER_FILE, read_any_ledger
from everytoken.tokens.checks import open_array
from everytoken.tokens.streams import (
    SIDECAR_FILE,
    STREAM_KINDS,
    TOKEN_LENGTHS_FILE,
    IndexedTokens,
    StreamKind,
    open_indexed,
)

_UNSEEDED = "the published order of documents inside a part had no seed, so its windows hold other tokens"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ComparedStream:
    """A stream in a folder, and what is published of the stream of its name.

    ``full``: whether its ``.bin`` is read; else its SHA-256 is that of its ledger.
    """

    kind: StreamKind
    folder: Path
    published: PublishedStreams
    full: bool
    hashing: Hashing

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.kind.name

    def tokens(self) -> IndexedTokens:
        """Return the stream, mapped."""
        return open_indexed(self.folder / self.name)

    def document(self, window: int) -> str:
        """Name the document of a window, as the sidecar does."""
        row = _sidecar_row(self.folder / SIDECAR_FILE, window)
        address = f", {Address.of(row)}" if all(row.get(name) is not None for name in ADDRESS_COLUMNS) else ""
        return f"it holds {self.name} document {row['doc_id']!r}{address}"


def _sidecar_row(path: Path, number: int) -> dict[str, Any]:
    """Return what names the document of a row; only its row group is read."""
    with pq.ParquetFile(path) as file:
        ends = np.cumsum([file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)])
        group = int(np.searchsorted(ends, number, side="right"))
        first = int(ends[group]) - file.metadata.row_group(group).num_rows
        columns = [name for name in ("doc_id", *ADDRESS_COLUMNS) if name in file.schema_arrow.names]
        row: dict[str, Any] = file.read_row_group(group, columns).slice(number - first, 1).to_pylist()[0]
    return row


def published_checks(published: PublishedStreams, streams: Mapping[str, Path], *, full: bool) -> Iterator[Check]:
    """Compare streams with what is published of them; each check comes when it is made.

    Args:
        streams: folders by name, of `PublishedStreams.find`.
        full: whether every ``.bin`` is hashed, and published files are compared with the published lists.
    """
    with Hashing() as hashing:
        for name, folder in streams.items():
            stream = ComparedStream(STREAM_KINDS[name], folder, published, full, hashing)
            checks = [(f"{name} {what}", check) for what, check in _checks(stream)]
            yield from run_checks(checks, stream, RELEASE_FAULTS)


def _checks(stream: ComparedStream) -> Checks[ComparedStream]:
    files: Checks[ComparedStream] = (("published files", _check_published),) if stream.full else ()
    if stream.kind.layout == "packed":
        return (*files, ("windows", _check_counts), ("order", _refuse_to_compare))
    return (*files, ("index", _check_index), ("lengths", _check_lengths), ("tokens", _check_tokens))


def _check_published(stream: ComparedStream) -> str:
    """The published files that are compared are those that the published lists say."""
    published, checked = stream.published, []
    for path in filter(None, (published.indexes[stream.name], _lengths_of(stream))):
        digest = published.sum_of(stream.name, PurePosixPath(path).name)
        found = stream.hashing.begin(published.bring(path)).result()
        if found != digest:
            raise Mismatch(f"{published.reference}: {path}", f"SHA-256 {digest[:16]}", found[:16], "copy it again")
        checked.append(path)
    return f"{', '.join(checked)} as the published list says"


def _lengths_of(stream: ComparedStream) -> str | None:
    return stream.published.lengths_file(stream.name) if stream.kind.layout == "padded" else None


def _check_counts(stream: ComparedStream) -> str:
    ours, theirs = stream.tokens(), stream.published.index(stream.name)
    place = f"{ours.prefix}.idx"
    require_equal(f"{place}: type", ours.tokens.dtype.name, theirs.dtype.name)
    require_equal(f"{place}: windows", len(ours), len(theirs.lengths))
    tokens = int(ours.lengths.sum(dtype=np.int64))
    require_equal(f"{place}: tokens", tokens, int(theirs.lengths.sum(dtype=np.int64)))
    return f"{len(ours):,} windows, {tokens:,} tokens, {theirs.dtype.name}, as published"


def _refuse_to_compare(stream: ComparedStream) -> str:
    raise NotMadeError(_UNSEEDED)


def _check_index(stream: ComparedStream) -> str:
    ours, theirs = stream.tokens(), stream.published.index(stream.name)
    place = f"{ours.prefix}.idx"
    require_equal(f"{place}: type", ours.tokens.dtype.name, theirs.dtype.name)
    require_equal(f"{place}: windows", len(ours), len(theirs.lengths))
    for what in ("lengths", "pointers", "document_index"):
        found, expected = getattr(ours, what), getattr(theirs, what)
        require_equal(f"{place}: {what}", len(found), len(expected))
        if (i := first_difference(found, expected)) is not None:
            more = stream.document(min(i, len(ours) - 1))
            raise Mismatch(f"{place}: {what} of window {i:,}", str(expected[i]), str(found[i]), more=more)
    return f"{len(ours):,} windows, {theirs.dtype.name}, as published"


def _check_lengths(stream: ComparedStream) -> str:
    """Every window holds a document of the published length; the first that does not is named."""
    path, file = stream.folder / TOKEN_LENGTHS_FILE, stream.published.lengths_file(stream.name)
    if file is None:
        raise NotMadeError(f"{stream.published.reference} has no {TOKEN_LENGTHS_FILE} with as many entries as windows")
    theirs = open_array(stream.published.bring(file), len(stream.published.index(stream.name).lengths), np.int32)
    ours = open_array(path, len(stream.tokens()), np.int32)
    both = min(len(ours), len(theirs))
    if (i := first_difference(ours[:both], theirs[:both])) is not None:
        more = stream.document(i)
        raise Mismatch(f"{path} window {i:,}", f"token_length {theirs[i]}", str(ours[i]), more=more)
    if len(ours) != len(theirs):
        more = stream.document(both) if len(ours) > both else f"window {both:,} is the first that is missing"
        raise Mismatch(str(path), f"{len(theirs):,} windows", f"{len(ours):,}", more=more)
    longest, at_it = _longest(ours)
    return f"{both:,} as published; the longest has {longest:,} tokens, as have {at_it / max(1, both):.1%}"


def _longest(lengths: np.ndarray) -> tuple[int, int]:
    """Return the greatest of lengths, (n,), and how many are as great."""
    longest = int(lengths.max(initial=0))
    blocks = (lengths[start : start + _CHUNK] for start in range(0, len(lengths), _CHUNK))
    return longest, sum(int(np.count_nonzero(block == longest)) for block in blocks)


def _check_tokens(stream: ComparedStream) -> str:
    """The ``.bin``, which is not published, has the SHA-256 that is."""
    path = stream.folder / f"{stream.name}.bin"
    expected = stream.published.sum_of(stream.name, path.name)
    found, how = (stream.hashing.begin(path).result(), "") if stream.full else (_sum_in_ledger(path), " in its ledger")
    if found != expected:
        remedy = "no published file says in which window"
        raise Mismatch(str(path), f"SHA-256 {expected[:16]} as published", f"{found[:16]}{how}", remedy)
    return f"SHA-256 {found[:16]}{how}, as published"


def _sum_in_ledger(path: Path) -> str:
    if not path.with_name(LEDGER_FILE).is_file():
        raise NotMadeError(f"no {LEDGER_FILE} says the SHA-256 of {path}; --full computes it")
    return str(read_any_ledger(path.parent)["files"][path.name]["sha256"])
