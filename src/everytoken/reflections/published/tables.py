"""Files of published reflections, read by the names of their columns.

A file has a row for each reflected document: its text, the reflections, where they belong and the identity canary.
Columns may come in any order, and further ones are ignored. In ``canary_type`` the empty text and null both mean that
there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus.upstreams import UpstreamFile
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.registry import GenerationRun

_BATCH_ROWS = 4_096
_TOKEN_LENGTH = "token_length"


@dataclass(frozen=True)
class PublishedTable:
    """A file of published reflections.

    Attributes:
        first: number of its first row, over all files in the order of their paths.
        length_column: ``token_length``, where the file says how many tokens of each text were trained on; else a text
            is as it was trained on.
    """

    file: UpstreamFile
    first: int
    rows: int
    length_column: tuple[str, ...]


def open_tables(files: Sequence[UpstreamFile], run: GenerationRun) -> list[PublishedTable]:
    """Return the files in order, each checked for the columns that the run needs.

    Raises:
        ReflectionError: there is no file, one is no parquet file, lacks a column or has it in another type.
    """
    if not files:
        raise ReflectionError("there is no file of published reflections: correct reflection.published.upstream")
    tables: list[PublishedTable] = []
    for file in files:
        try:
            with file.open() as opened, pq.ParquetFile(opened) as parquet:
                schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
        except pa.ArrowException as error:
            raise ReflectionError(
                f"{file.location} is no parquet file ({error}). Choose the files by reflection.published.upstream"
            ) from error
        _require_columns(file, schema, run)
        first = tables[-1].first + tables[-1].rows if tables else 0
        tables.append(PublishedTable(file, first, rows, (_TOKEN_LENGTH,) if _TOKEN_LENGTH in schema.names else ()))
    return tables


def read_table(table: PublishedTable, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a file, in the order of their names.

    Raises:
        ReflectionError: the file is damaged.
    """
    try:
        with table.file.open() as opened, pq.ParquetFile(opened) as parquet:
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=list(names), use_threads=False):
                yield batch.select(list(names))
    except (pa.ArrowException, OSError) as error:
        raise ReflectionError(f"{table.file.location} cannot be read ({error}). Fetch the file again") from error


def stored_columns(run: GenerationRun) -> list[str]:
    """Return the columns of the run that published files have: texts, token index, canary."""
    return [*run.text_columns, *(name for name in (run.index_column, run.canary_column) if name is not None)]


def _require_columns(file: UpstreamFile, schema: pa.Schema, run: GenerationRun) -> None:
    needed = ["doc_id", "text", *stored_columns(run)]
    if missing := [name for name in needed if name not in schema.names]:
        raise ReflectionError(
            f"{file.location} has no column {', '.join(missing)}; published reflections of the run {run.name} have "
            f"{', '.join(needed)}. Choose the files by reflection.published.upstream, or rename columns"
        )
    for name in needed:
        kind = schema.field(name).type
        is_number = name == run.index_column
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        may_be_null = name in ("doc_id", run.canary_column) and pa.types.is_null(kind)  # none of the file has one
        if not (pa.types.is_integer(kind) if is_number else is_text or may_be_null):
            expected = "an integer" if is_number else "text"
            raise ReflectionError(
                f"{file.location} has {name} of the type {kind}, expected {expected}: cast the column"
            )
