"""Documents read again from their upstream, by address.

Only the files that hold one of the addresses are opened (and fetched, where they are not on this machine yet), and each
is left after the last row that is wanted. A row before that is parsed where its format asks for it, never rendered.
Memory holds what is returned, and what reading a file takes (`everytoken.corpus.reading.readers`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from everytoken.address import Address
from everytoken.corpus import BadRow
from everytoken.corpus.ingestion import Source, render_row
from everytoken.corpus.reading import Reading, ReadingLimits, Row, UnreadableRow, iterate_rows
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.provenance.errors import ProvenanceError

# What became a document was read within the limits of its run; here no row that is wanted is passed over.
_LIMITS = ReadingLimits(max_row_bytes=1 << 40, zstd_window_log_max=31)


class UpstreamDocument(NamedTuple):
    """A document as its upstream has it now: its id (None: it has none), and its text."""

    id: str | None
    text: str


def read_documents_at(
    sources: Mapping[str, Source], files: Mapping[str, Sequence[UpstreamFile]], addresses: Iterable[Address]
) -> dict[Address, UpstreamDocument]:
    """Return the documents at these addresses, in the order of files and rows.

    Args:
        sources: by name; how their files are read.
        files: of each source, sorted by path as `everytoken.corpus.ingestion.source.find_files` gives them: number
            ``shard_index`` is the file of an address.
        addresses: each may come more than once.

    Raises:
        ProvenanceError: there is no such source, file or row, or the row is no document any more.
        CorpusError: a file cannot be fetched or read.
    """
    return dict(iterate_documents_at(sources, files, addresses))


def iterate_documents_at(
    sources: Mapping[str, Source], files: Mapping[str, Sequence[UpstreamFile]], addresses: Iterable[Address]
) -> Iterator[tuple[Address, UpstreamDocument]]:
    """Yield address and document one after the other; as `read_documents_at`, which holds them all."""
    for (source, shard_index), rows in sorted(_by_file(addresses).items()):
        if source not in sources or source not in files:
            raise ProvenanceError(
                f"there is no source {source!r}; the sources of this environment are {sorted(sources)}. Give an "
                "address of one of them, or the environment that read it"
            )
        if not 0 <= shard_index < len(files[source]):
            raise ProvenanceError(
                f"source {source!r} has {len(files[source]):,} files, numbered from 0; there is no "
                f"file {shard_index}. Its upstream may have moved: list the files again, at the pinned revision"
            )
        yield from _read(files[source][shard_index], shard_index, sources[source].reading, rows)


def _by_file(addresses: Iterable[Address]) -> dict[tuple[str, int], set[int]]:
    wanted: dict[tuple[str, int], set[int]] = {}
    for source, shard_index, row in addresses:
        wanted.setdefault((source, shard_index), set()).add(row)
    return wanted


def _read(
    file: UpstreamFile, shard_index: int, reading: Reading, rows: set[int]
) -> Iterator[tuple[Address, UpstreamDocument]]:
    left, last = set(rows), max(rows)
    if (first := min(rows)) < 0:
        raise ProvenanceError(f"source {file.source!r}, file {file.path}: row {first}; rows are numbered from 0")
    with closing(_rows(file, reading, first)) as found:
        for row in found:
            if row.number in left:
                left.remove(row.number)
                yield Address(file.source, shard_index, row.number), _document(file, row, reading)
            if row.number >= last:
                break
    if left:
        raise ProvenanceError(
            f"source {file.source!r}, file {file.path}: there is no row {min(left):,} ({len(left):,} of {len(rows):,} "
            "rows that were asked for are not there). The file is shorter than it was when it was read: bring back "
            "the revision that the shard plan names"
        )


def _rows(file: UpstreamFile, reading: Reading, first: int) -> Generator[Row | UnreadableRow, None, None]:
    yield from iterate_rows(file, reading, _LIMITS, first)


def _document(file: UpstreamFile, row: Row | UnreadableRow, reading: Reading) -> UpstreamDocument:
    try:
        if isinstance(row, UnreadableRow):
            raise BadRow(row.reason, row.detail)
        document = render_row(row, reading).document
    except BadRow as error:
        raise ProvenanceError(
            f"source {file.source!r}, file {file.path}, row {row.number:,} is no document any more ({error}); expected "
            "one. The file has changed, or the source's format, records or renderer have: bring back those that it was "
            "read with"
        ) from None
    return UpstreamDocument(None if document.id is None else document.id.text, document.text)
