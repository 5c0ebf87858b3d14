"""The manifest of a split: of each document where it came from and what was decided, never its text.

Rows are those of the split, in the same parts and order. ``text_hash`` tells whether a document changed, and
nothing of its text (`everytoken.provenance.hashed_texts`).

An id may itself be text: the title of an article stands in the article. An id of `MOST_ID_CHARACTERS` and more of which
as many characters in a row stand in a document that has this id is *withheld*: it is null, and its ``id_type`` is
``withheld``. So is an id in which a whole short document stands, and the id of a document that was taken down, which
may be a name that somebody wants to be forgotten. The address still says where the document is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS, Address, address_fields
from everytoken.corpus import excluded_addresses, excluded_rows
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_hashes
from everytoken.shards import Part, Rows, versioned

MOST_ID_CHARACTERS = 50
WITHHELD = "withheld"

MANIFEST = pa.schema(
    [
        pa.field("id", pa.large_string(), nullable=True),
        pa.field("id_type", pa.string(), nullable=True),
        *address_fields(nullable=False),
        pa.field("text_hash", pa.uint64(), nullable=False),
        pa.field("safety_score", pa.int8(), nullable=False),
        pa.field("is_bad", pa.bool_(), nullable=False),
        pa.field("has_annotation", pa.bool_(), nullable=False),
        pa.field("token_length", pa.int32(), nullable=True),
        pa.field("is_excluded", pa.bool_(), nullable=False),
    ]
)
SECOND_SCORES = "second_scores"
"""The last column of a manifest whose documents have second scores: a struct of float32, in the order of names."""

_AS_THEY_ARE = ("id", "id_type", *ADDRESS_COLUMNS, "safety_score", "is_bad", "has_annotation")
_READ = [*_AS_THEY_ARE, "text_sha256"]


def manifest_schema(second: Iterable[str]) -> pa.Schema:
    """Return the schema of a manifest: `MANIFEST`, and `SECOND_SCORES` where there are any names of such."""
    fields = [pa.field(name, pa.float32(), nullable=False) for name in sorted(second)]
    if not fields:
        return MANIFEST
    return pa.schema([*MANIFEST, pa.field(SECOND_SCORES, pa.struct(fields), nullable=False)])


@dataclass(frozen=True)
class Withheld:
    """Which ids are withheld.

    Attributes:
        keys: of (id_type, id) as sorted 64-bit numbers, 8 bytes an id: of two that agree in them, one is withheld for
            the other.
        lengths: the characters that they have, ascending.
    """

    keys: bytes
    lengths: tuple[int, ...]


def withheld_of(ids: Iterable[Sequence[str]]) -> Withheld:
    """Return what tells ids, given as (id_type, id), from others."""
    known = [(_key(id_type, identifier), len(identifier)) for id_type, identifier in ids]
    keys = np.unique(np.fromiter((key for key, _ in known), "<u8", len(known))).tobytes()
    return Withheld(keys, tuple(sorted({length for _, length in known})))


class WithheldIds(TypedDict):
    """Ids of a part, each as [id_type, id], sorted."""

    ids: list[list[str]]


@versioned("find_withheld_ids", 2)
def find_withheld_ids(part: Part, exclusions: Part) -> WithheldIds:
    """Return the ids of a part that would show text, and those of documents that were taken down.

    Args:
        part: documents with ``id``, ``id_type``, ``characters`` and ``text``; texts are only read of a part that has
            an id as long.
        exclusions: the value of this part, see `everytoken.corpus.exclusion`.
    """
    found = _ids_taken_down(part, excluded_addresses(exclusions))
    if any(_may_show_text(batch).any() for batch in part.batches(["id", "characters"])):
        columns = ["id_type", "id", "text"]
        for batch in part.batches([*columns, "characters"]):
            some = batch.filter(pa.array(_may_show_text(batch)))
            rows = zip(*(some.column(name).to_pylist() for name in columns), strict=True)
            found.update((id_type, identifier) for id_type, identifier, text in rows if shows_text(identifier, text))
    return WithheldIds(ids=sorted(map(list, found)))


def _may_show_text(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return which rows have an id as long as what may not be shown, or as their whole text."""
    lengths = pc.fill_null(pc.utf8_length(batch.column("id")), -1).to_numpy(zero_copy_only=False)
    characters = batch.column("characters").to_numpy()
    return np.asarray((lengths >= MOST_ID_CHARACTERS) | ((lengths >= characters) & (characters > 0)))


def shows_text(identifier: str, text: str) -> bool:
    """Return whether `MOST_ID_CHARACTERS` characters of an id stand in a row in a text, or all of a text in the id."""
    if text and text in identifier:
        return True
    half = MOST_ID_CHARACTERS // 2  # as many in a row hold a whole half that begins at a multiple of it
    if not any(identifier[at : at + half] in text for at in range(0, len(identifier) - half + 1, half)):
        return False
    last = len(identifier) - MOST_ID_CHARACTERS
    return any(identifier[at : at + MOST_ID_CHARACTERS] in text for at in range(last + 1))


def _ids_taken_down(part: Part, excluded: Mapping[Address, int | None]) -> set[tuple[str, str]]:
    if not excluded:
        return set()
    found: set[tuple[str, str]] = set()
    for batch in part.batches([*ADDRESS_COLUMNS, "id", "id_type"]):
        some = batch.filter(pa.array(excluded_rows(batch, excluded)))
        pairs = zip(some.column("id_type").to_pylist(), some.column("id").to_pylist(), strict=True)
        found.update((id_type, identifier) for id_type, identifier in pairs if identifier is not None)
    return found


def _key(id_type: str, identifier: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{id_type}\0{identifier}".encode()).digest()[:8], "little")


def is_withheld(batch: pa.RecordBatch, withheld: Withheld) -> npt.NDArray[np.bool_]:
    """Return of which rows (``id``, ``id_type``) the id is withheld, bool (rows,)."""
    keys, result = np.frombuffer(withheld.keys, "<u8"), np.zeros(batch.num_rows, np.bool_)
    if not len(keys):
        return result
    lengths = pc.fill_null(pc.utf8_length(batch.column("id")), -1).to_numpy(zero_copy_only=False)
    candidates = np.flatnonzero(np.isin(lengths, withheld.lengths))
    some = np.fromiter(_keys(batch.take(pa.array(candidates))), np.uint64, len(candidates))
    result[candidates] = keys[np.minimum(np.searchsorted(keys, some), len(keys) - 1)] == some
    return result


def _keys(batch: pa.RecordBatch) -> Iterable[int]:
    return map(_key, batch.column("id_type").to_pylist(), batch.column("id").to_pylist())


class ManifestStatistics(TypedDict):
    """Statistics of a part of a manifest, and by source; ``tokens`` without EOS."""

    rows: int
    tokens: int
    without_id: int
    withheld: int
    excluded: int
    by_source: dict[str, dict[str, int]]


@versioned("manifest_part", 1)
def manifest_part(
    documents: Part, tokens: Part, exclusions: Part, *, withheld: Withheld, second: Sequence[str] = ()
) -> Rows:
    """List the documents of a part of a split that is in a stream; rows are those of `manifest_schema`.

    Statistics: ``rows``, ``tokens`` (content), ``without_id`` (upstream has none), ``withheld``, ``excluded``, and the
    same under ``by_source``.

    Args:
        exclusions: the value of this part, see `everytoken.corpus.exclusion`.
        second: names of the second scores that the documents have.

    Raises:
        ProvenanceError: the tokens are not of these documents; names the first row.
    """
    columns = [*ADDRESS_COLUMNS, "token_length"]
    encoded = pa.Table.from_batches(tokens.batches(columns), pa.schema(map(tokens.schema.field, columns)))
    schema = manifest_schema(second)
    return Rows(schema, _listed(documents, encoded, tokens.name, excluded_addresses(exclusions), withheld, schema))


@versioned("held_out_manifest_part", 1)
def held_out_manifest_part(documents: Part, *, withheld: Withheld, second: Sequence[str] = ()) -> Rows:
    """List the documents of a part of the held-out split: no token length, and none is excluded (it has no windows that
    keep a place for one). Rows and statistics as those of `manifest_part`.
    """
    schema = manifest_schema(second)
    return Rows(schema, _listed(documents, None, documents.name, {}, withheld, schema))


def _listed(
    documents: Part,
    encoded: pa.Table | None,
    name: str,
    excluded: Mapping[Address, int | None],
    withheld: Withheld,
    schema: pa.Schema,
) -> Generator[pa.RecordBatch, None, ManifestStatistics]:
    counts, done = _Counts(), 0
    second = list(schema.field(SECOND_SCORES).type) if SECOND_SCORES in schema.names else []
    for batch in documents.batches([*_READ, *(field.name for field in second)]):
        rows = batch.num_rows
        lengths = pa.nulls(rows, pa.int32()) if encoded is None else _lengths(batch, encoded, done, name)
        hidden = is_withheld(batch, withheld)
        columns = {column: batch.column(column) for column in _AS_THEY_ARE}
        counts.add_ids(batch, hidden)
        columns["id"] = pc.if_else(pa.array(hidden), None, columns["id"])
        columns["id_type"] = pc.if_else(pa.array(hidden), WITHHELD, columns["id_type"])
        columns["text_hash"] = pa.array(text_hashes(batch.column("text_sha256"), f"{name} row {done} or later"))
        columns["token_length"] = lengths
        columns["is_excluded"] = pa.array(excluded_rows(batch, excluded))
        if second:
            columns[SECOND_SCORES] = pa.StructArray.from_arrays([batch.column(f.name) for f in second], fields=second)
        listed = pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in schema], schema=schema)
        counts.add(listed)
        done += rows
        yield listed
    if encoded is not None and done != encoded.num_rows:
        raise ProvenanceError(f"{name}: {done} documents, and {encoded.num_rows} that are encoded. {_AGAIN}")
    return counts.statistics()


_AGAIN = "Run the pipeline tokenization again."


def _lengths(batch: pa.RecordBatch, encoded: pa.Table, first: int, name: str) -> pa.Array:
    """Return the token lengths of documents, whose addresses must be those of the rows from ``first`` on."""
    some = encoded.slice(first, batch.num_rows)
    for column in ADDRESS_COLUMNS:
        ours, theirs = batch.column(column), some.column(column).combine_chunks()
        if not ours.equals(theirs):
            pairs = zip(ours.to_pylist(), [*theirs.to_pylist(), *[None] * batch.num_rows], strict=False)
            row, (found, expected) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
            raise ProvenanceError(
                f"{name} row {first + row}: {column} is {found!r} in the split and {expected!r} among the encoded "
                f"documents: they are of other documents. {_AGAIN}"
            )
    return some.column("token_length").combine_chunks()


_COUNTED = ("rows", "tokens", "without_id", "withheld", "excluded")


class _Counts:
    """What is counted, by source."""

    def __init__(self) -> None:
        self._by_source: dict[str, dict[str, int]] = {}

    def add_ids(self, documents: pa.RecordBatch, hidden: npt.NDArray[np.bool_]) -> None:
        without = np.asarray(documents.column("id").is_null().to_numpy(zero_copy_only=False))
        self._add(documents.column("source"), {"without_id": without, "withheld": hidden})

    def add(self, listed: pa.RecordBatch) -> None:
        tokens = np.asarray(pc.fill_null(listed.column("token_length"), 0).to_numpy(zero_copy_only=False), np.int64)
        excluded = np.asarray(listed.column("is_excluded").to_numpy(zero_copy_only=False))
        self._add(
            listed.column("source"),
            {"rows": np.ones(listed.num_rows, np.int64), "tokens": tokens, "excluded": excluded},
        )

    def _add(self, sources: pa.Array, columns: dict[str, npt.NDArray[Any]]) -> None:
        coded = sources.dictionary_encode()
        for number, source in enumerate(coded.dictionary.to_pylist()):
            here = coded.indices.to_numpy() == number
            counts = self._by_source.setdefault(source, dict.fromkeys(_COUNTED, 0))
            for name, column in columns.items():
                counts[name] += int(column[here].sum(dtype=np.int64))

    def statistics(self) -> ManifestStatistics:
        by_source = dict(sorted(self._by_source.items()))
        total = {name: sum(counts[name] for counts in by_source.values()) for name in _COUNTED}
        return ManifestStatistics(
            rows=total["rows"],
            tokens=total["tokens"],
            without_id=total["without_id"],
            withheld=total["withheld"],
            excluded=total["excluded"],
            by_source=by_source,
        )
