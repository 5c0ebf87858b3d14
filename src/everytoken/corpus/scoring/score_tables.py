"""Tables of published scores in parquet files, and DuckDB's join of them to the documents.

DuckDB spills to a folder that it is given, and takes the memory that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus.documents import DOCUMENTS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.upstreams.file import UpstreamFile
from everytoken.shards import Shards

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ADDRESS = ("source", "shard_index", "row")
BATCH_ROWS = 65_536

_TOLD = ("safety_score", "safety_probs")


@dataclass(frozen=True)
class ScoreTables:
    """Files that name documents by the same columns."""

    key: tuple[str, ...]
    files: list[UpstreamFile]


def group_tables(files: Sequence[UpstreamFile]) -> list[ScoreTables]:
    """Group the files by the columns that name a document; those of a later group go before those of an earlier."""
    keys = (("id",), ("id", "id_type"), ADDRESS)
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
    known = {*_TOLD, "id", "id_type", *ADDRESS}
    alike = sorted(name for name in schema.names if name.lower() in known - {name} | {"filename", "file_row_number"})
    if alike or len(names) < len(schema.names):  # DuckDB does not tell Id from id
        raise ScoringError(
            f"{file.location} has the columns {schema.names}; {alike or 'some'} cannot be told from those of the join "
            f"(capital letters make no difference). Rename or remove them."
        )
    named = "id" in names or set(ADDRESS) <= names
    key = ("id", *(["id_type"] if "id_type" in names else [])) if "id" in names else ADDRESS
    if not named or not all(name in names and _fits(schema.field(name)) for name in (*key, *_TOLD)):
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        raise ScoringError(
            f"{file.location} has the columns {columns}; a table of scores has safety_score (an integer), safety_probs "
            f"(a list of floats), and id (text or an integer; id_type is text) or {', '.join(ADDRESS)} (text and two "
            f"integers). Choose the tables by scorer.upstream.pattern, or rename and cast columns."
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

    connection = duckdb.connect(
        config={
            "memory_limit": f"{memory}B",
            "temp_directory": spill,
            "preserve_insertion_order": "false",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    connection.execute("SET enable_progress_bar = false")
    try:
        yield connection
    except duckdb.OutOfMemoryException as error:
        raise ScoringError(
            f"joining the published scores needs more than {memory:,} bytes ({_short(error)}). Raise "
            f"annotation.memory, or free space on the disk of the results."
        ) from error
    except duckdb.Error as error:
        raise ScoringError(f"the published scores cannot be joined: {_short(error)}") from error
    finally:
        connection.close()


def _short(error: Exception) -> str:
    return str(error).splitlines()[0]  # what follows is about DuckDB's own settings, or the query


def check_entries(duckdb: DuckDBPyConnection, tables: ScoreTables) -> int:
    """Return the number of entries of the tables, once each has a score and six probabilities."""
    wrong = (
        "safety_score IS NULL OR safety_score < 0 OR safety_score > 5 OR safety_probs IS NULL OR len(safety_probs) <> 6"
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
    ((count,),) = duckdb.execute(f"SELECT count(*) FROM {_read(tables)}").fetchall()
    return int(count)


def _read(tables: ScoreTables) -> str:
    """Return the tables for a query; DuckDB takes a name as a pattern, so what is special in one stands in brackets."""
    names = (re.sub(r"([*?[])", r"[\1]", str(file.location)).replace("'", "''") for file in tables.files)
    files = ", ".join(f"'{name}'" for name in names)
    return f"read_parquet([{files}], filename = true, file_row_number = true, hive_partitioning = false)"


_TYPES = {"id": "VARCHAR", "id_type": "VARCHAR", "source": "VARCHAR", "shard_index": "INTEGER", "row": "BIGINT"}


def matches(duckdb: DuckDBPyConnection, documents: Shards, groups: Sequence[ScoreTables]) -> Iterator[pa.RecordBatch]:
    """Yield every document that a table knows once, by position: columns position, score, probabilities.

    Where several groups know a document, the last of them has the say.

    Raises:
        ScoringError: two rows of a group are of one document.
    """
    joins = []
    for group, tables in enumerate(groups):
        duckdb.register(f"documents_{group}", _keys(documents, tables.key))
        key = ", ".join(f"CAST({name} AS {_TYPES[name]}) AS {name}" for name in tables.key)
        distinct = "DISTINCT " if tables.key == ADDRESS else ""  # a mixture may have a document several times
        joins.append(
            f"SELECT d.position, {group} AS table_group, CAST(t.safety_score AS TINYINT) AS score, "
            f"CAST(t.safety_probs AS FLOAT[]) AS probabilities FROM documents_{group} d JOIN "
            f"(SELECT {distinct}{key}, safety_score, safety_probs FROM {_read(tables)}) t "
            f"USING ({', '.join(tables.key)})"
        )
    found = duckdb.sql(f"{' UNION ALL '.join(joins)} ORDER BY position, table_group")
    waiting: pa.RecordBatch | None = None  # the last row of a batch: the next one may hold a better score
    for batch in found.to_arrow_reader(BATCH_ROWS):
        rows = batch if waiting is None else pa.concat_batches([waiting, batch])
        same_position = np.diff(rows.column("position").to_numpy()) == 0
        twice = np.flatnonzero(same_position & (np.diff(rows.column("table_group").to_numpy()) == 0))
        if len(twice):
            row = int(twice[0])
            group, position = rows.column("table_group")[row].as_py(), rows.column("position")[row].as_py()
            raise ScoringError(_twice(duckdb, documents, groups[group], position))
        yield rows.filter(pa.array(np.append(~same_position, False)))
        waiting = rows.slice(rows.num_rows - 1)
    if waiting is not None:
        yield waiting


def _keys(documents: Shards, key: Sequence[str]) -> pa.RecordBatchReader:
    """Return the columns ``key`` of all documents with their positions."""
    schema = pa.schema([*(DOCUMENTS.field(name) for name in key), pa.field("position", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        position = 0
        for part in documents:
            for batch in part.batches(list(key)):
                positions = pa.array(np.arange(position, position + batch.num_rows))
                yield pa.RecordBatch.from_arrays([*batch.columns, positions], schema=schema)
                position += batch.num_rows

    return pa.RecordBatchReader.from_batches(schema, batches())


def _twice(duckdb: DuckDBPyConnection, documents: Shards, tables: ScoreTables, position: int) -> str:
    batches = (batch for batch in _keys(documents, tables.key) if batch.column("position")[-1].as_py() >= position)
    key = next(row for row in next(batches).to_pylist() if row.pop("position") == position)
    where = " AND ".join(f"CAST({name} AS {_TYPES[name]}) = ?" for name in key)
    rows = (
        duckdb.cursor()
        .execute(  # the join's own result is not read to its end
            f"SELECT filename, file_row_number, safety_score FROM {_read(tables)} WHERE {where} ORDER BY ALL LIMIT 2",
            list(key.values()),
        )
        .fetchall()
    )
    places = " and ".join(f"{name}, row {row} (score {score})" for name, row, score in rows)
    return f"the document {key} is twice in the published scores: {places}. Keep one of them: a document has one score."
