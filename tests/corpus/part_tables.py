"""Parts in memory, and what a part function makes of them: for tests that need no store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from everytoken.corpus.documents import DOCUMENTS, SCORED_DOCUMENTS
from everytoken.shards import Rows, SetAside


@dataclass(frozen=True)
class TablePart:
    rows_table: pa.Table
    batch_rows: int = 7
    index: int = 0
    value: Any = None
    digest: str = ""

    @property
    def name(self) -> str:
        return f"part_{self.index:05d}"

    @property
    def rows(self) -> int:
        return int(self.rows_table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return self.rows_table.schema

    def batches(self, columns: Sequence[str] | None = None, first_row: int = 0) -> Iterator[pa.RecordBatch]:
        yield from self.table(columns).slice(first_row).combine_chunks().to_batches(max_chunksize=self.batch_rows)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        return self.rows_table if columns is None else self.rows_table.select(list(columns))


def value_part(value: Any, index: int = 0) -> TablePart:
    return TablePart(DOCUMENTS.empty_table(), index=index, value=value)


def collect(rows: Rows) -> tuple[pa.Table, dict[str, Any]]:
    """Run the generator and return the table and the statistics; every batch must have the declared schema."""
    kept, _, statistics = collect_all(rows)
    return kept, statistics


def collect_all(rows: Rows) -> tuple[pa.Table, pa.Table, dict[str, Any]]:
    """Return the table, the table of what was set aside (without columns where nothing can be) and the statistics."""
    batches: list[pa.RecordBatch] = []
    aside: list[pa.RecordBatch] = []
    aside_schema = rows.set_aside or pa.schema([])
    while True:
        try:
            made = next(rows.batches)
        except StopIteration as stop:
            return pa.Table.from_batches(batches, rows.schema), pa.Table.from_batches(aside, aside_schema), stop.value
        batch, schema, where = (
            (made.batch, aside_schema, aside) if isinstance(made, SetAside) else (made, rows.schema, batches)
        )
        assert batch.schema.equals(schema)
        where.append(batch)


def documents(texts: Sequence[str], ids: Sequence[str | None] | None = None, source: str = "s") -> pa.Table:
    n = len(texts)
    columns = {
        "id": list(ids) if ids is not None else [None] * n,
        "id_type": ["string" if identifier is not None else None for identifier in ids or [None] * n],
        "text": list(texts),
        "source": [source] * n,
        "stratum": ["even" if row % 2 == 0 else "odd" for row in range(n)],
        "shard_index": [0] * n,
        "row": list(range(n)),
        "characters": [len(text) for text in texts],
        "utf8_bytes": [len(text.encode()) for text in texts],
        "text_sha256": [hashlib.sha256(text.encode()).digest() for text in texts],
        "assistant_spans": [None] * n,
    }
    return pa.table(columns, schema=DOCUMENTS)


def scored(lengths: Sequence[int], scores: Sequence[int | None], source: str = "s") -> pa.Table:
    table = documents(["x" * length for length in lengths], source=source)
    columns = {name: table.column(name) for name in table.column_names}
    columns["safety_score"] = pa.array(scores, pa.int8())
    columns["safety_probs"] = pa.array([[0.0] * 6] * len(scores), pa.list_(pa.float32()))
    schema = SCORED_DOCUMENTS
    if None in scores:
        schema = schema.set(schema.get_field_index("safety_score"), pa.field("safety_score", pa.int8()))
    return pa.table(columns, schema=schema)
