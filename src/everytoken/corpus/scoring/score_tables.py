"""Tables of published scores in parquet files, and DuckDB's join of them to the documents.

DuckDB spills to a folder that it is given, and takes the memory that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.address import ADDRESS_COLUMNS
from everytoken.corpus.documents import DOCUMENTS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.outofcore import open_database
from everytoken.shards import Shards

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

USE = (*ADDRESS_COLUMNS, "part")  # a mixture may use a document in several parts
SCORE_BATCH_ROWS = 65_536

_TOLD = ("safety_score", "safety_probs")
_TYPES = {
    "id": "VARCHAR",
    "id_type": "VARCHAR",
    **dict(zip(ADDRESS_COLUMNS, ("VARCHAR", "BIGINT", "BIGINT"), strict=True)),
    "part": "BIGINT",
}


@dataclass(frozen=True)
class ScoreTables:
    """Files that name documents by the same columns."""

    key: tuple[str, ...]
    files: list[UpstreamFile]


def group_tables(files: Sequence[UpstreamFile]) -> list[ScoreTables]:
    """Group the files by the columns that name a document; those of a later group go before those of an earlier."""
    keys = (("id",), ("id", "id_type"), ADDRESS_COLUMNS, USE)
    groups: dict[tuple[str, ...], list[UpstreamFile]] = {key: [] for key in keys}
    types: dict[tuple[str, ...], tuple[UpstreamFile, list[str]]] = {}
    for file in files:
        schema = _schema_of(file)
        key = _key_of(file, schema)
        groups[key].append(file)
        found = [_plain(schema.field(name).type) for name in (*key, *_TOLD)]
        first, expected = types.setdefault(key, (file, found))
        if found != expected:  # DuckDB would read all files with the types of the first: 01 as the number 1
            raise ScoringError(
                f"{file.location} has the types {', '.join(found)} in {', '.join((*key, *_TOLD))}, "
                f"{first.location} has {', '.join(expected)}. Write all tables with the same types."
            )
    return [ScoreTables(key, members) for key, members in groups.items() if members]


def _schema_of(file: UpstreamFile) -> pa.Schema:
    if file.member is not None:
        raise ScoringError(f"{file.path} of {file.source} is inside a wheel; published scores are parquet files.")
    try:
        return pq.read_schema(file.location)
    except (OSError, pa.ArrowException) as error:
        raise ScoringError(
            f"{file.location} is no parquet file ({error}). Choose the tables by scorer.upstream.pattern."
        ) from None


def _key_of(file: UpstreamFile, schema: pa.Schema) -> tuple[str, ...]:
    names = set(schema.names)
    known = {*_TOLD, "id", "id_type", *USE}
    alike = sorted(name for name in schema.names if name.lower() in known - {name} | {"filename", "file_row_number"})
    if alike or len(names) < len(schema.names):  # DuckDB does not tell Id from id
        raise ScoringError(
            f"{file.location} has the columns {schema.names}; {alike or 'some'} cannot be told from those of the join "
            f"(capital letters make no difference). Rename or remove them."
        )
    named = "id" in names or set(ADDRESS_COLUMNS) <= names
    by_id, by_address = ("id", "id_type"), USE if "part" in names else ADDRESS_COLUMNS
    key: tuple[str, ...] = tuple(name for name in by_id if name in names) if "id" in names else by_address
    if not named or not all(name in names and _fits(schema.field(name)) for name in (*key, *_TOLD)):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise ScoringError(
            f"{file.location} has the columns {columns}; a table of scores has safety_score (an integer), safety_probs "
            f"(a list of floats), and id (text or an integer; id_type is text) or {', '.join(ADDRESS_COLUMNS)} (text "
            f"and two integers). Choose the tables by scorer.upstream.pattern, or rename and cast columns."
        )
    return key


def _plain(kind: pa.DataType) -> str:
    """Return the type as a query sees it: ``text`` for any kind of string, ``list of`` for any kind of list."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return f"list of {kind.value_type}"
    return "uuid" if isinstance(kind, pa.UuidType) else str(kind)


def _fits(field: pa.Field) -> bool:
    kind = _plain(field.type)
    if field.name == "safety_probs":
        return kind in ("list of float", "list of double")
    if field.name in ("source", "id_type"):
        return kind == "text"
    return bool(pa.types.is_integer(field.type)) or (field.name == "id" and kind in ("text", "uuid"))


@contextmanager
def connected(spill: str, memory: int) -> Iterator[DuckDBPyConnection]:
    """Give a DuckDB in memory that spills to a folder and loads no extension; report its errors as ours."""
    import duckdb

    try:
        with open_database(Path(spill), memory) as connection:
            yield connection
    except duckdb.OutOfMemoryException as error:
        raise ScoringError(
            f"joining the published scores needs more than {memory:,} bytes ({_short(error)}). Raise "
            f"annotation.memory, or free space on the disk of the results."
        ) from error
    except duckdb.Error as error:
        raise ScoringError(f"the published scores cannot be joined: {_short(error)}") from error


def _short(error: Exception) -> str:
    return str(error).splitlines()[0]  # what follows is about DuckDB's own settings, or the query


def check_entries(duckdb: DuckDBPyConnection, tables: ScoreTables) -> int:
    """Return the number of entries of the tables, once each has a score and six probabilities, and is there once.

    By address, score 0 with null probabilities says that a document has no score although its id has one; and equal
    entries count as one.

    Raises:
        ScoringError: with file and row of what is wrong.
    """
    none = "safety_probs IS NULL" + (" AND safety_score <> 0" if "id" not in tables.key else "")
    wrong = (
        f"safety_score IS NULL OR safety_score < 0 OR safety_score > 5 OR ({none}) OR len(safety_probs) <> 6"
        " OR list_count(safety_probs) <> 6 OR list_min(safety_probs) < 0 OR list_max(safety_probs) > 1"  # NaN is above
    )
    found = duckdb.execute(
        f"SELECT filename, file_row_number, safety_score, safety_probs FROM {_read(tables)} WHERE {wrong} "
        "ORDER BY filename, file_row_number LIMIT 1"
    ).fetchall()
    for name, row, score, probabilities in found:
        raise ScoringError(
            f"{name}, row {row}: safety_score {score} with safety_probs {probabilities}; expected a class 0 to 5 and "
            f"6 probabilities. Mend or leave out the file (scorer.upstream.pattern)."
        )
    key = ", ".join(tables.key)
    not_null = " AND ".join(f"{name} IS NOT NULL" for name in tables.key)
    for values in duckdb.execute(
        f"SELECT {key} FROM {_entries(tables)} WHERE {not_null} GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
    ).fetchall():
        raise ScoringError(_twice(duckdb, tables, dict(zip(tables.key, values, strict=True))))
    ((count,),) = duckdb.execute(f"SELECT count(*) FROM {_read(tables)}").fetchall()
    return int(count)


def _twice(duckdb: DuckDBPyConnection, tables: ScoreTables, key: Mapping[str, Any]) -> str:
    where = " AND ".join(f"CAST({name} AS {_TYPES[name]}) = ?" for name in key)
    rows = duckdb.execute(
        f"SELECT filename, file_row_number, safety_score FROM {_read(tables)} WHERE {where} ORDER BY ALL LIMIT 2",
        list(key.values()),
    ).fetchall()
    places = " and ".join(f"{name}, row {row} (score {score})" for name, row, score in rows)
    return f"the document {key} is twice in the published scores: {places}. Keep one of them: a document has one score."


def _entries(tables: ScoreTables) -> str:
    """Return the entries of the tables for a query, with their key in the types of the documents."""
    key = ", ".join(f"CAST({name} AS {_TYPES[name]}) AS {name}" for name in tables.key)
    distinct = "DISTINCT " if "id" not in tables.key else ""  # a mixture uses a document more than once
    return f"(SELECT {distinct}{key}, safety_score, safety_probs FROM {_read(tables)})"


def _read(tables: ScoreTables) -> str:
    """Return the tables for a query; DuckDB takes a name as a pattern, so what is special in one stands in brackets."""
    names = (re.sub(r"([*?[])", r"[\1]", str(file.location)).replace("'", "''") for file in tables.files)
    files = ", ".join(f"'{name}'" for name in names)
    return f"read_parquet([{files}], filename = true, file_row_number = true, hive_partitioning = false)"


def matching_scores(
    duckdb: DuckDBPyConnection, documents: Shards, groups: Sequence[ScoreTables]
) -> Iterator[pa.RecordBatch]:
    """Yield every document that a table knows once, by position: columns position, score, probabilities.

    Where several groups know a document, the last of them has the say. The tables were checked by `check_entries`.
    """
    joins = []
    for group, tables in enumerate(groups):
        duckdb.register(f"documents_{group}", _keys(documents, tables.key))
        joins.append(
            f"SELECT d.position, {group} AS table_group, CAST(t.safety_score AS TINYINT) AS score, "
            f"CAST(t.safety_probs AS FLOAT[]) AS probabilities FROM documents_{group} d JOIN {_entries(tables)} t "
            f"USING ({', '.join(tables.key)})"
        )
    found = duckdb.sql(f"{' UNION ALL '.join(joins)} ORDER BY position, table_group")
    waiting: pa.RecordBatch | None = None  # the last row of a batch: the next one may hold a better score
    for batch in found.to_arrow_reader(SCORE_BATCH_ROWS):
        rows = batch if waiting is None else pa.concat_batches([waiting, batch])
        yield rows.filter(pa.array(np.append(np.diff(rows.column("position").to_numpy()) != 0, False)))
        waiting = rows.slice(rows.num_rows - 1)
    if waiting is not None:
        yield waiting


def _keys(documents: Shards, key: Sequence[str]) -> pa.RecordBatchReader:
    """Return the columns ``key`` of all documents, ``part`` being the number of theirs, with their positions."""
    numbers = [pa.field(name, pa.int64()) for name in ("part", "position")]
    columns = [name for name in key if name != "part"]
    schema = pa.schema([*(DOCUMENTS.field(name) for name in columns), *numbers])

    def batches() -> Iterator[pa.RecordBatch]:
        position = 0
        for part in documents:
            for batch in part.batches(columns):
                rows = batch.num_rows
                added = [np.full(rows, part.index), np.arange(position, position + rows)]
                yield pa.RecordBatch.from_arrays([*batch.columns, *map(pa.array, added)], schema=schema)
                position += rows

    return pa.RecordBatchReader.from_batches(schema, batches())
