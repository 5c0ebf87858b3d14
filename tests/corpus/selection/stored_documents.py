"""Stored documents made of texts, for tests of what reads all parts. Workers must be able to import the function."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from everytoken.corpus.documents import DOCUMENTS
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Engine,
    Inline,
    Part,
    Rows,
    Shards,
    Store,
    value_digest,
    versioned,
)
from tests.corpus.part_tables import TablePart, documents


class Given(NamedTuple):
    """One part: the texts of a shard of a source. Upstream rows are those with odd numbers."""

    source: str
    texts: Sequence[str]
    shard_index: int = 0


def table_of(given: Given) -> pa.Table:
    table = documents(given.texts, source=given.source)
    numbers = range(len(given.texts))
    for name, values in (
        ("shard_index", [given.shard_index for _ in numbers]),
        ("row", [2 * row + 1 for row in numbers]),
        ("id", [f"{given.source}-{row}" for row in numbers]),
    ):
        field = DOCUMENTS.field(name)
        table = table.set_column(DOCUMENTS.get_field_index(name), field, pa.array(values, field.type))
    return table.cast(DOCUMENTS)


def in_memory(parts: Sequence[Given], batch_rows: int = 7) -> Shards:
    return Shards(tuple(TablePart(table_of(given), batch_rows, index) for index, given in enumerate(parts)))


@versioned("hand_out", 1)
def hand_out(part: Part) -> Rows:
    """The documents of one `Given`, which is the value of the part."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        table = table_of(Given(*part.value))
        yield from table.to_batches(max_chunksize=max(7, table.num_rows // 20))
        return {}

    return Rows(DOCUMENTS, batches())


def stored(root: Path, parts: Sequence[Given], engine: Engine = Inline()) -> Shards:  # noqa: B008 - immutable
    values = [list(given) for given in parts]
    return kept(root, Shards.from_values(values, list(map(value_digest, values))).map(hand_out), engine)


def kept(root: Path, planned: Shards, engine: Engine = Inline()) -> Shards:  # noqa: B008 - immutable
    store = Store(root)
    store.save(planned, engine)
    return store.load()


def made(root: Path, planned: Artifact) -> Artifact:
    return ArtifactStore(root).save(planned)
