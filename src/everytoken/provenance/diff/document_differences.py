"""Which documents differ between two builds: by address, out of core.

A document is known by its address, and where a mixture repeats it, by which of its uses it is. Rows of both builds go
into tables of DuckDB in a temporary folder and are joined there in bounded memory. Of the text its hash is compared (8
bytes of SHA-256, as manifests have it), of tokens a hash of their ids, or their number where one of the builds is a
release. An id that a release withholds is not compared.

A document that was *taken down* is so by ``is_excluded`` (manifests) or by the exclusions of its build, which also name
held-out documents, whose rows are gone. In one build it is a kind of difference of its own; in both, what its place in
the streams was made of no longer counts, and its address, split and order alone are compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import ADDRESS_COLUMNS, Address, Addressed, address_fields
from everytoken.corpus.sampling import is_scored
from everytoken.outofcore import open_database
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.hashed_texts import text_hashes
from everytoken.provenance.releases import WITHHELD
from everytoken.shards import Part, Shards, scratch_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROWS = pa.schema(
    [
        *address_fields(nullable=True),
        ("id", pa.large_string()),
        ("split", pa.string()),
        ("position", pa.int64()),
        ("text", pa.uint64()),
        ("score", pa.int8()),
        ("tokens", pa.uint64()),
        ("is_excluded", pa.bool_()),
        ("is_withheld", pa.bool_()),
    ]
)
_DOWN = pa.schema([*address_fields(nullable=True), ("reason", pa.string())])
_DOWN_ROWS = 1 << 16
_NOT_SCORED = np.int8(-1)  # in the place of a class: another score than any
_DOWN_IN_A, _DOWN_IN_B = "(a.down AND NOT b.down)", "(b.down AND NOT a.down)"
_SAID = "a.split IS NOT NULL AND b.split IS NOT NULL AND NOT a.down AND NOT b.down AND"
KINDS = {
    "only_in_a": f"b.split IS NULL AND NOT {_DOWN_IN_B}",
    "only_in_b": f"a.split IS NULL AND NOT {_DOWN_IN_A}",
    "taken_down_in_a": f"b.split IS NOT NULL AND {_DOWN_IN_A}",
    "taken_down_in_b": f"a.split IS NOT NULL AND {_DOWN_IN_B}",
    "split_changed": "a.split <> b.split",
    "id_changed": f"{_SAID} NOT a.is_withheld AND NOT b.is_withheld AND a.id IS DISTINCT FROM b.id",
    "text_changed": f"{_SAID} a.text <> b.text",
    "score_changed": f"{_SAID} a.score <> b.score",
    "tokens_changed": f"{_SAID} a.tokens <> b.tokens",
    "order_changed": "a.split = b.split AND a.rank <> b.rank",
}
TakenDown = Callable[[], Iterator[tuple[Address, str]]]


@dataclass(frozen=True)
class DocumentDifference(Addressed):
    """One document that differs.

    Attributes:
        id: in the build that has it; None: it has none, or a release does not say it.
        in_a, in_b: dataset and number of the document there; None where it is not.
        reason: why it was taken down, where a build says it; in a replayed build also what upstream no longer gave.
    """

    id: str | None
    in_a: tuple[str, int] | None
    in_b: tuple[str, int] | None
    reason: str | None


@dataclass(frozen=True)
class DocumentDifferences:
    """What differs.

    Attributes:
        rows_a, rows_b: how many there are.
        first: the first of each kind, in the order of A, then of B.
    """

    datasets: tuple[str, ...]
    rows_a: int
    rows_b: int
    counts: Mapping[str, int]
    first: Mapping[str, list[DocumentDifference]]

    @property
    def is_none(self) -> bool:
        """Whether no document differs."""
        return not any(self.counts.values())


def compare_documents(
    a: Mapping[str, Callable[[], Shards]],
    b: Mapping[str, Callable[[], Shards]],
    *,
    down_in_a: TakenDown,
    down_in_b: TakenDown,
    ids_of_tokens: bool,
    limit: int,
    memory: int,
) -> DocumentDifferences:
    """Compare documents.

    Args:
        a: reads the documents of the first build, by dataset; the order counts.
        b: of the second build, the same datasets.
        down_in_a: yields address and reason of the documents that the exclusions of the first name.
        ids_of_tokens: whether both have the ids of their tokens; else their numbers are compared.
        limit: documents that are named of each kind.
        memory: bytes that the join may take; the disk takes the rest, about 100 bytes a document.

    Raises:
        ProvenanceError: the join needs more memory or disk.
        DamagedStore: a part cannot be read.
    """
    with scratch_folder("everytoken-diff") as folder, _connected(folder, memory) as duckdb:
        rows_a, rows_b = _load(duckdb, "a", a, ids_of_tokens), _load(duckdb, "b", b, ids_of_tokens)
        _load_taken_down(duckdb, "a", down_in_a)
        _load_taken_down(duckdb, "b", down_in_b)
        duckdb.execute(_JOIN)
        counts, first = {}, {}
        for kind, condition in KINDS.items():
            found = f"FROM joined WHERE {condition.replace('a.', 'a_').replace('b.', 'b_')}"
            counts[kind] = int(duckdb.execute(f"SELECT count(*) {found}").fetchall()[0][0])
            rows = duckdb.execute(
                f"SELECT source, shard_index, row, id, reason, a_split, a_position, b_split, b_position {found} "
                "ORDER BY a_number, a_position, b_number, b_position LIMIT ?",
                [limit],
            ).fetchall()
            first[kind] = [_difference(*row) for row in rows]
    return DocumentDifferences(tuple(a), rows_a, rows_b, counts, first)


def _difference(
    source: str,
    shard_index: int,
    row: int,
    name: str | None,
    reason: str | None,
    in_a: str | None,
    number_in_a: int,
    in_b: str | None,
    number_in_b: int,
) -> DocumentDifference:
    one = None if in_a is None else (in_a, number_in_a)
    other = None if in_b is None else (in_b, number_in_b)
    return DocumentDifference(source, shard_index, row, name, one, other, reason)


# Ranks are among the documents that both have in one split, so that one document more moves no other.
_JOIN = """
CREATE TABLE joined AS
SELECT *, coalesce(a_is_excluded, FALSE) OR coalesce(a_is_named, FALSE) AS a_down,
    coalesce(b_is_excluded, FALSE) OR coalesce(b_is_named, FALSE) AS b_down, coalesce(a_reason, b_reason) AS reason,
    row_number() OVER (PARTITION BY a_split = b_split, a_number ORDER BY a_position) AS a_rank,
    row_number() OVER (PARTITION BY a_split = b_split, b_number ORDER BY b_position) AS b_rank
FROM (
    SELECT coalesce(a.source, b.source) AS source, coalesce(a.shard_index, b.shard_index) AS shard_index,
        coalesce(a.row, b.row) AS row, coalesce(a.id, b.id) AS id,
        a.split AS a_split, a.number AS a_number, a.position AS a_position, a.text AS a_text, a.score AS a_score,
        a.tokens AS a_tokens, a.id AS a_id, a.is_withheld AS a_is_withheld, a.is_excluded AS a_is_excluded,
        b.split AS b_split, b.number AS b_number, b.position AS b_position, b.text AS b_text, b.score AS b_score,
        b.tokens AS b_tokens, b.id AS b_id, b.is_withheld AS b_is_withheld, b.is_excluded AS b_is_excluded
    FROM a FULL JOIN b
    ON a.source = b.source AND a.shard_index = b.shard_index AND a.row = b.row AND a.use = b.use
) AS documents
LEFT JOIN (SELECT source, shard_index, row, reason AS a_reason, TRUE AS a_is_named FROM down_a) AS named_a
USING (source, shard_index, row)
LEFT JOIN (SELECT source, shard_index, row, reason AS b_reason, TRUE AS b_is_named FROM down_b) AS named_b
USING (source, shard_index, row)
"""


@contextmanager
def _connected(folder: Path, memory: int) -> Iterator[DuckDBPyConnection]:
    """Give a DuckDB in a folder that loads no extension; report its errors as ours."""
    import duckdb  # loaded where it is needed

    try:
        with open_database(folder / "spilled", memory, file=folder / "documents.duckdb") as connection:
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise ProvenanceError(f"comparing documents needs more than {memory:,} bytes ({error}); give more") from error
    except duckdb.Error as error:
        raise ProvenanceError(f"the documents cannot be compared: {str(error).splitlines()[0]}") from error


def _load(duckdb: DuckDBPyConnection, name: str, datasets: Mapping[str, Callable[[], Shards]], tokens: bool) -> int:
    """Make a table of all documents; return how many there are."""
    for number, (dataset, shards) in enumerate(datasets.items()):
        reader = pa.RecordBatchReader.from_batches(_ROWS, _rows(dataset, shards(), tokens))
        duckdb.register("incoming", reader)
        into = f"INSERT INTO loaded_{name}" if number else f"CREATE TABLE loaded_{name} AS"
        duckdb.execute(f"{into} SELECT *, {number} AS number FROM incoming")
        duckdb.unregister("incoming")
    duckdb.execute(
        f"CREATE TABLE {name} AS SELECT *, row_number() OVER (PARTITION BY source, shard_index, row "
        f"ORDER BY number, position) AS use FROM loaded_{name}"
    )
    duckdb.execute(f"DROP TABLE loaded_{name}")
    return int(duckdb.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0])


def _load_taken_down(duckdb: DuckDBPyConnection, name: str, addresses: TakenDown) -> None:
    """Make a table of the documents that exclusions name, each once."""

    def batches() -> Iterator[pa.RecordBatch]:
        rows = addresses()
        while some := list(islice(rows, _DOWN_ROWS)):
            columns = zip(*((*address, reason) for address, reason in some), strict=True)
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, field.type) for column, field in zip(columns, _DOWN, strict=True)], schema=_DOWN
            )

    duckdb.register("incoming", pa.RecordBatchReader.from_batches(_DOWN, batches()))
    duckdb.execute(
        f"CREATE TABLE down_{name} AS SELECT source, shard_index, row, min(reason) AS reason FROM incoming GROUP BY ALL"
    )
    duckdb.unregister("incoming")


def _rows(dataset: str, shards: Shards, tokens: bool) -> Iterator[pa.RecordBatch]:
    position = 0
    scored = shards.ledger is None or is_scored(shards.ledger.recipe)
    for part in shards:
        for batch in _read(part, tokens):
            rows = batch.num_rows
            columns = {
                "split": pa.array([dataset] * rows, pa.string()),
                "position": pa.array(np.arange(position, position + rows)),
                "text": _texts(batch),
                "score": _scores(batch) if scored else pa.array(np.full(rows, _NOT_SCORED)),
                "tokens": _tokens(batch),
                "is_excluded": batch.column("is_excluded") if "is_excluded" in batch.schema.names else None,
                "is_withheld": _withheld(batch),
            }
            values = []
            for field in _ROWS:
                value = columns[field.name] if field.name in columns else batch.column(field.name)
                values.append(pa.nulls(rows, field.type) if value is None else value.cast(field.type))
            yield pa.RecordBatch.from_arrays(values, schema=_ROWS)
            position += rows


def _read(part: Part, tokens: bool) -> Iterator[pa.RecordBatch]:
    """Yield the columns of a part that are compared; no text is read."""
    wanted = {*ADDRESS_COLUMNS, "id", "id_type", "is_excluded"}
    wanted |= {"text_hash", "text_sha256", "safety_score"}
    wanted.add("tokens" if tokens else "token_length")
    yield from part.batches([name for name in part.schema.names if name in wanted])


def _scores(batch: pa.RecordBatch) -> pa.Array | None:
    return batch.column("safety_score") if "safety_score" in batch.schema.names else None


def _texts(batch: pa.RecordBatch) -> pa.Array | None:
    if "text_hash" in batch.schema.names:
        return batch.column("text_hash")
    if "text_sha256" not in batch.schema.names:
        return None
    return pa.array(text_hashes(batch.column("text_sha256"), "documents"))


def _withheld(batch: pa.RecordBatch) -> pa.Array:
    if "id_type" not in batch.schema.names:
        return pa.array(np.zeros(batch.num_rows, np.bool_))
    return pc.fill_null(pc.equal(batch.column("id_type"), WITHHELD), False)


def _tokens(batch: pa.RecordBatch) -> pa.Array | None:
    if "token_length" in batch.schema.names:
        return batch.column("token_length")
    if "tokens" not in batch.schema.names:
        return None
    ids = batch.column("tokens")
    offsets, flat = ids.offsets.to_numpy() - ids.offsets[0].as_py(), ids.flatten().to_numpy().tobytes()
    width = ids.type.value_type.bit_width // 8
    ends = (offsets * width).tolist()
    hashes = (int.from_bytes(hashlib.sha256(flat[start:end]).digest()[:8], "big") for start, end in pairwise(ends))
    return pa.array(np.fromiter(hashes, np.uint64, batch.num_rows))
