"""The documents of a split again, in the order of its manifest: text from upstream, decisions from the manifest.

Rows have the schema of the split stores, second scores included. What only scoring knows and no manifest holds
(``safety_probs``) is null. An id
that the manifest withholds is the upstream's; of a document that was found elsewhere the address is the manifest's, or,
where that has none, its own. A rescued text without address gets ``(text_rescue, split, number)``.

A document that is excluded, or missing and that is allowed, becomes a *tombstone*: an empty text in its place, named in
the exclusions of its part. In the streams its tokens are EOS, so all other windows keep their bytes; that needs its
``token_length``, which the published format does not tell: there, the compact stream moves up behind it. Held-out
documents are in no stream, and one that is missing is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS
from everytoken.corpus import (
    DEFAULT_REASON,
    DOCUMENTS,
    MAX_BATCH_BYTES,
    MAX_BATCH_ROWS,
    SCORED_DOCUMENTS,
    SPLIT_FIELDS,
    Exclusions,
    second_score_fields,
)
from everytoken.corpus.dedup import between, load_mapped
from everytoken.corpus.sampling import HeldOutParameters, estimated_tokens, sum_tokens
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_digests, text_hashes
from everytoken.provenance.releases import SECOND_SCORES, SPLITS, WITHHELD
from everytoken.provenance.replay.manifest_files import RescueFile
from everytoken.provenance.replay.match import (
    AMBIGUOUS,
    BY_ID,
    BY_TEXT,
    CHANGED,
    GONE,
    OUTCOME,
    OUTCOMES,
    PART,
    POSITION,
    RESCUED,
    ROW,
    ROWS_FILE,
    STARTS_FILE,
    UTF8_BYTES,
    RowOutcome,
)
from everytoken.provenance.replay.row_reader import RowReaders
from everytoken.shards import Artifact, Part, Rows, Shards, StoredPart, versioned

_AT_ADDRESS, _EXCLUDED = len(OUTCOMES), len(OUTCOMES) + 1
_Place = Literal[RowOutcome, "at_address", "excluded"]
_NAMES: tuple[_Place, ...] = (*OUTCOMES, "at_address", "excluded")
_IN_DOCUMENTS, _TOMBSTONES = (_AT_ADDRESS, BY_ID, BY_TEXT, AMBIGUOUS), (_EXCLUDED, GONE, CHANGED)
_RESCUE_SOURCE = "text_rescue"


class RestoredStatistics(TypedDict):
    """Statistics of `restore_part`, and how many documents came from where."""

    rows: int
    estimated_tokens: float
    at_address: NotRequired[int]
    by_id: NotRequired[int]
    by_text: NotRequired[int]
    ambiguous: NotRequired[int]
    rescued: NotRequired[int]
    excluded: NotRequired[int]  # from here on tombstones, which the held-out split has not
    gone: NotRequired[int]
    changed: NotRequired[int]


@versioned("restore_part", 1, unrecorded=["rescue"])
def restore_part(
    part: Part,
    *,
    split: str,
    documents: Shards,
    matches: Artifact,
    rescue: Sequence[RescueFile],
    estimate: HeldOutParameters,
) -> Rows:
    """Return the documents of one part of a split, in the order of the manifest, with the columns of its split.

    Memory holds a batch of texts and the row group of each file that was read last, of at most 8 files.

    Raises:
        ProvenanceError: a file of texts cannot be read.
    """
    schema = _split_schema(part.schema)
    return Rows(schema, _restored(part, split, documents, matches, rescue, estimate, schema))


def _split_schema(located: pa.Schema) -> pa.Schema:
    """Return the schema of a split: that of its documents, with the second scores that the manifest has."""
    second = located.field(SECOND_SCORES).type if SECOND_SCORES in located.names else []
    return pa.schema([*SCORED_DOCUMENTS, *second, *SPLIT_FIELDS])


@versioned("find_tombstones", 2)
def find_tombstones(part: Part, *, matches: Artifact) -> Exclusions:
    """Return the exclusions of one part as `everytoken.corpus.exclusion` has them, with token lengths.

    ``{"addresses": [[source, shard_index, row, reason, token_length], ...]}``: the excluded documents of the streams,
    and those that are missing. A document that is in the part more than once is named once.
    """
    found: dict[tuple[Any, ...], list[Any]] = {}
    for placed in _placed(part, matches):
        rows = np.flatnonzero(np.isin(placed.outcomes, _TOMBSTONES) & (placed.splits != SPLITS.index("held_out")))
        if not len(rows):
            continue
        batch = _with_address(placed, placed.batch).take(pa.array(rows))
        columns = (batch.column(name).to_pylist() for name in (*ADDRESS_COLUMNS, "token_length"))
        for row, (*address, length) in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
            outcome = int(placed.outcomes[row])
            reason = DEFAULT_REASON if outcome == _EXCLUDED else f"{OUTCOMES[outcome]} upstream since the release"
            # the splits come in order, and the compact stream, where lengths count, has that of unannotated
            found[tuple(address)] = [*address, reason, *([] if length is None else [length])]
    return Exclusions(addresses=list(found.values()))


class _Placed(NamedTuple):
    """Rows of the manifest, and where their texts are; arrays of shape (rows,)."""

    batch: pa.RecordBatch
    splits: np.ndarray
    outcomes: np.ndarray  # numbers in _NAMES
    parts: np.ndarray
    rows: np.ndarray
    utf8_bytes: np.ndarray

    def take(self, rows: np.ndarray) -> _Placed:
        splits, outcomes, parts, places, sizes = (array[rows] for array in self[1:])
        return _Placed(self.batch.take(pa.array(rows)), splits, outcomes, parts, places, sizes)


def _placed(part: Part, matches: Artifact) -> Iterator[_Placed]:
    """Yield the rows of a part with their places."""
    position = int(load_mapped(matches.path(STARTS_FILE))[part.index])
    table = load_mapped(matches.path(ROWS_FILE))
    for batch in part.batches():
        excluded = batch.column("is_excluded").to_numpy(zero_copy_only=False)
        placed = _Placed(
            batch,
            batch.column("split").to_numpy(),
            np.where(excluded, _EXCLUDED, _AT_ADDRESS),
            batch.column("at_part").fill_null(-1).to_numpy().astype(np.int64),
            batch.column("at_row").fill_null(-1).to_numpy().copy(),
            batch.column("utf8_bytes").fill_null(0).to_numpy().copy(),
        )
        here = np.array(between(table, position, position + batch.num_rows))
        at = here[:, POSITION] - position
        placed.outcomes[at] = here[:, OUTCOME]
        placed.parts[at], placed.rows[at] = here[:, PART], here[:, ROW]
        placed.utf8_bytes[at] = np.maximum(here[:, UTF8_BYTES], 0)
        yield placed
        position += batch.num_rows


def _restored(
    part: Part,
    split: str,
    documents: Shards,
    matches: Artifact,
    rescue: Sequence[RescueFile],
    estimate: HeldOutParameters,
    schema: pa.Schema,
) -> Generator[pa.RecordBatch, None, RestoredStatistics]:
    counts: Counter[_Place] = Counter()
    lengths = [np.empty(0, np.int64)]
    number = SPLITS.index(split)
    paths = [document.path for document in documents if isinstance(document, StoredPart)]
    with closing(RowReaders(DOCUMENTS.names)) as texts, closing(RowReaders(["text"])) as rescued:
        sources = _Sources(paths, [Path(file.path) for file in rescue], texts, rescued)
        for placed in _placed(part, matches):
            is_here = placed.splits == number
            if split == "held_out":
                is_here &= ~np.isin(placed.outcomes, _TOMBSTONES)
            here = placed.take(np.flatnonzero(is_here))
            for outcome, count in zip(*np.unique(here.outcomes, return_counts=True), strict=True):
                counts[_NAMES[outcome]] += int(count)
            for rows in _blocks(np.where(np.isin(here.outcomes, _TOMBSTONES), 0, here.utf8_bytes)):
                made = _documents(here.take(rows), sources, schema)
                lengths.append(made.column("characters").to_numpy())
                yield made
    tokens = sum_tokens(estimated_tokens(np.concatenate(lengths), estimate))
    statistics = RestoredStatistics(rows=sum(counts.values()), estimated_tokens=tokens)
    for name in sorted(counts):
        statistics[name] = counts[name]
    return statistics


def _blocks(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield row numbers in blocks within the bounds of a batch (a row that is larger is a block of its own)."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + MAX_BATCH_BYTES, side="right"))
        stop = min(max(fitting, start + 1), start + MAX_BATCH_ROWS, len(sizes))
        yield np.arange(start, stop)
        start = stop


class _Sources(NamedTuple):
    """Where texts are read."""

    documents: Sequence[Path]
    rescue: Sequence[Path]
    texts: RowReaders
    rescued: RowReaders


def _documents(placed: _Placed, sources: _Sources, schema: pa.Schema) -> pa.RecordBatch:
    """Return the documents of a block."""
    pieces, order = [], []
    for outcomes, make in ((_IN_DOCUMENTS, _read), ((RESCUED,), _rescued), (_TOMBSTONES, _tombstones)):
        for rows, piece in make(placed, np.flatnonzero(np.isin(placed.outcomes, outcomes)), sources):
            pieces.append(piece)
            order.append(rows)
    at = np.concatenate(order)
    table = pa.concat_tables(pieces)
    table = table if (np.diff(at) > 0).all() else table.take(pa.array(np.argsort(at)))
    (body,) = table.combine_chunks().to_batches()
    batch = _with_address(placed, placed.batch)
    columns: dict[str, pa.Array] = {name: body.column(name) for name in DOCUMENTS.names}
    for name in ADDRESS_COLUMNS:
        columns[name] = pc.coalesce(batch.column(name), columns[name])
    withheld = pc.fill_null(pc.equal(batch.column("id_type"), WITHHELD), False)
    known = pc.or_(withheld, batch.column("id").is_valid())  # an id of null stays one, whatever the upstream has now
    columns["id"] = pc.if_else(withheld, columns["id"], batch.column("id"))
    own_type = pc.if_else(withheld, columns["id_type"], pc.coalesce(batch.column("id_type"), columns["id_type"]))
    columns["id_type"] = pc.if_else(known, own_type, None)
    columns["safety_probs"] = pa.nulls(batch.num_rows)
    for name in ("safety_score", "has_annotation", "is_bad"):
        columns[name] = batch.column(name)
    for field in second_score_fields(schema):
        columns[field.name] = pc.struct_field(batch.column(SECOND_SCORES), field.name)
    return pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)


def _with_address(placed: _Placed, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the manifest; those that have no address, and no document with one, say where they are from."""
    if not batch.column("source").null_count:
        return batch
    outcomes = placed.outcomes
    without = pa.array(~np.isin(outcomes, _IN_DOCUMENTS))
    names = pa.array([_RESCUE_SOURCE if outcome == RESCUED else _NAMES[outcome] for outcome in outcomes.tolist()])
    own = (names, batch.column("split").cast(pa.int32()), batch.column("number"))
    for name, values in zip(ADDRESS_COLUMNS, own, strict=True):
        column = pc.coalesce(batch.column(name), pc.if_else(without, values, None))
        batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), column)
    return batch


def _read(placed: _Placed, rows: np.ndarray, sources: _Sources) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield documents that were read, file by file."""
    for part in np.unique(placed.parts[rows]).tolist():
        here = rows[placed.parts[rows] == part]
        yield here, sources.texts.take(sources.documents[part], placed.rows[here]).cast(DOCUMENTS)


def _rescued(placed: _Placed, rows: np.ndarray, sources: _Sources) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield documents of rescued texts, file by file."""
    for file in np.unique(placed.parts[rows]).tolist():
        here = rows[placed.parts[rows] == file]
        table = sources.rescued.take(sources.rescue[file], placed.rows[here]).combine_chunks()
        texts = table.column("text").cast(pa.large_string()).combine_chunks()
        made = _table(texts)
        _require_hashes(made, placed.batch.take(pa.array(here)), sources.rescue[file])
        yield here, made


def _require_hashes(made: pa.Table, batch: pa.RecordBatch, path: Path) -> None:
    """Check that rescued texts are still those that were matched, where the manifest has their hashes."""
    found = pa.array(text_hashes(made.column("text_sha256").combine_chunks(), str(path)))
    if not pc.all(pc.fill_null(pc.equal(found, batch.column("text_hash")), True)).as_py():
        raise ProvenanceError(f"{path} was written to while it was read: a text has another hash. Run again")


def _tombstones(placed: _Placed, rows: np.ndarray, sources: _Sources) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield documents without text."""
    if len(rows):
        yield rows, _table(pa.array([""] * len(rows), pa.large_string()))


def _table(texts: pa.Array) -> pa.Table:
    """Return documents of texts that no upstream has: what a text tells of itself, no id, and no address yet."""
    rows = len(texts)
    nowhere = (pa.array([""] * rows), pa.array(np.zeros(rows, np.int32)), pa.array(np.zeros(rows, np.int64)))
    known = {
        "id": pa.nulls(rows),
        "id_type": pa.nulls(rows),
        "text": texts,
        "stratum": pa.array([""] * rows),
        **dict(zip(ADDRESS_COLUMNS, nowhere, strict=True)),
        "characters": pc.utf8_length(texts),
        "utf8_bytes": pc.binary_length(texts),
        "text_sha256": text_digests(texts),
        "assistant_spans": pa.nulls(rows),
    }
    return pa.table([known[field.name].cast(field.type) for field in DOCUMENTS], schema=DOCUMENTS)
