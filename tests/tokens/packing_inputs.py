"""Encoded documents of several sources and datasets, and what packing is made from; for tests and their children."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from everytoken.shards import Artifact, ArtifactStore, Built, Shards, plan_artifact, versioned
from everytoken.tokens.streams.raw_shards import write_raw_shards
from tests.tokens.corpora import encoded, stored

Documents = Sequence[tuple[str, int]]  # source and content tokens of each


@versioned("tokenizer_facts", 1)
def tokenizer_facts(folder: Path, *, vocab_size: int, eos_id: int) -> Built:
    """A tokenizer artifact as far as packing looks at it."""
    return Built({"vocab_size": vocab_size, "eos_id": eos_id, "sha256": "ab" * 32})


def tokenizer(folder: Path, vocab_size: int = 700, eos_id: int = 0) -> Artifact:
    return ArtifactStore(folder).save(plan_artifact(tokenizer_facts, vocab_size=vocab_size, eos_id=eos_id))


def table(documents: Documents, part: int, kind: pa.DataType | None = None) -> pa.Table:
    made = encoded([length for _, length in documents], part, kind)
    sources = pa.array([source for source, _ in documents], pa.string())
    return made.set_column(made.column_names.index("source"), "source", sources)


def tables(datasets: Sequence[Sequence[Documents]], kind: pa.DataType | None = None) -> list[list[pa.Table]]:
    """Every part of every dataset; no two documents are alike."""
    return [
        [table(documents, 40 * number + index, kind) for index, documents in enumerate(parts)]
        for number, parts in enumerate(datasets)
    ]


def datasets(folder: Path, made: Sequence[Sequence[pa.Table]], batch_rows: int = 1000) -> list[Shards]:
    return [stored(folder / f"dataset_{number}", parts, batch_rows) for number, parts in enumerate(made)]


MIXED = [
    [[(("web", "code", "math")[i % 7 % 3], (5 * i + part) % 23) for i in range(120)] for part in range(2 + number)]
    for number in range(2)
]


def pack(folder: Path, **changed: Any) -> Artifact:
    """Pack the mixed documents into ``folder/raw_shards``."""
    given = {"shard_size_tokens": 500, "dtype": "uint32", "seed": 3, "shuffle_memory": 5000, **changed}
    planned = plan_artifact(
        write_raw_shards,
        tokens=datasets(folder / "in", tables(MIXED), 17),
        tokenizer=tokenizer(folder / "tokenizer"),
        **given,
    )
    return ArtifactStore(folder / "raw_shards").save(planned)
