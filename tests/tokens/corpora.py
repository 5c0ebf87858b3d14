"""Small stored datasets for the tests of tokens: documents, encoded documents, and what a store would load of
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.shards import Artifact, ArtifactStore, Part, Rows, Shards, plan_artifact
from everytoken.shards.parts import StoredPart
from everytoken.shards.writing import write_rows
from everytoken.tokens import train_tokenizer

EOS = "<|endoftext|>"

DOCUMENTS = pa.schema(
    [
        ("id", pa.large_string()),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("shard_index", pa.int32()),
        ("row", pa.int64()),
        ("safety_score", pa.int8()),
        ("is_bad", pa.bool_()),
    ]
)


def documents(texts: Sequence[str], part: int = 0, sources: Sequence[str] = ("web", "code")) -> pa.Table:
    n = len(texts)
    return pa.table(
        {
            "id": [None if i % 5 == 4 else f"{part}-{i}" for i in range(n)],
            "text": list(texts),
            "source": [sources[i % len(sources)] for i in range(n)],
            "shard_index": [part] * n,
            "row": list(range(n)),
            "safety_score": [i % 6 for i in range(n)],
            "is_bad": [i % 6 >= 3 for i in range(n)],
        },
        schema=DOCUMENTS,
    )


def encoded(lengths: Sequence[int], part: int = 0, kind: pa.DataType | None = None, eos: int = 0) -> pa.Table:
    """Documents whose content is ``part, document, 1, 2, ...`` shortened to the given lengths, and EOS."""
    tokens = [[*([part + 1, i + 1, *range(1, n)][:n]), eos] for i, n in enumerate(lengths)]
    table = documents([f"text {part} {i} é" for i in range(len(lengths))], part)
    table = table.append_column("token_length", pa.array(list(lengths), pa.int32()))
    return table.append_column("tokens", pa.array(tokens, pa.list_(kind or pa.uint16())))


def tokenizer_of(kind: pa.DataType | None = None, vocab_size: int | None = None, eos: int = 0) -> Artifact:
    """Return what a store would load of a tokenizer whose ids are of the type ``kind`` (uint16), as far as streams
    look at it."""
    size = vocab_size or (1 << 16 if kind in (None, pa.uint16()) else 1 << 20)
    statistics = {"sha256": "5" * 64, "vocab_size": size, "eos_token": EOS, "eos_id": eos}
    return Artifact(folder=Path(), ledger={"statistics": statistics, "files": {}, "root_digest": f"{size} {eos}"})


def stored(folder: Path, tables: Sequence[pa.Table], batch_rows: int = 1000) -> Shards:
    """Write each table as a part, in batches of ``batch_rows``."""
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Part] = []
    for index, table in enumerate(tables):

        def batches(table: pa.Table = table) -> Iterator[pa.RecordBatch]:
            yield from table.to_batches(max_chunksize=batch_rows)
            return {}

        path = folder / f"part_{index:05d}.parquet"
        written = write_rows(Rows(table.schema, batches()), path).part
        parts.append(StoredPart(path.stem, index, path, written.rows, written.content_digest, written.sha256))
    return Shards(tuple(parts))


def run(rows: Rows) -> tuple[pa.Table, Mapping[str, Any]]:
    """Run what a part function returned: its rows and its statistics."""
    batches = []
    while True:
        try:
            batches.append(next(rows.batches))
        except StopIteration as stop:
            return pa.Table.from_batches(batches, rows.schema), stop.value


def small_tokenizer(folder: Path, texts: Sequence[str]) -> Artifact:
    """Train 285 tokens on ``texts``."""
    corpus = stored(folder / "texts", [documents(texts)])
    planned = plan_artifact(
        train_tokenizer, texts=[corpus], vocab_size=285, min_frequency=1, special_tokens=[EOS], eos_token=EOS
    )
    return ArtifactStore(folder / "tokenizer").save(planned)


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def token_ids(values: Any) -> list[int]:
    return [int(value) for value in np.asarray(values)]
