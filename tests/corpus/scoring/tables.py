"""Documents with chosen ids and addresses, and tables of scores, for tests of what joins them."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus.documents import DOCUMENTS, SCORE_FIELDS, SCORED_DOCUMENTS
from everytoken.corpus.upstreams.file import UpstreamFile
from everytoken.shards import Engine, Inline, Part, Rows, Shards, Store, file_sha256, value_digest, versioned

Scores = Sequence[float] | None


class Document(NamedTuple):
    """A document, and the class probabilities that it has been given (None: none, which is score 0)."""

    id: str | None
    source: str = "s"
    probabilities: Scores = None
    text: str = ""
    id_type: str = "string"
    address: tuple[int, int] | None = None  # shard_index and row; None: where it stands


def one_hot(k: int, p: float = 0.5) -> list[float]:
    """Return probabilities whose most probable class is k."""
    return [p if n == k else (1 - p) / 5 for n in range(6)]


def table_of(documents: Sequence[Document], shard_index: int, scored: bool) -> pa.Table:
    texts = [document.text or f"text of {document.id}" for document in documents]
    addresses = [document.address or (shard_index, row) for row, document in enumerate(documents)]
    columns: dict[str, Any] = {
        "id": [document.id for document in documents],
        "id_type": [None if document.id is None else document.id_type for document in documents],
        "text": texts,
        "source": [document.source for document in documents],
        "stratum": ["all"] * len(documents),
        "shard_index": [shard for shard, _ in addresses],
        "row": [row for _, row in addresses],
        "characters": [len(text) for text in texts],
        "utf8_bytes": [len(text.encode()) for text in texts],
        "text_sha256": [hashlib.sha256(text.encode()).digest() for text in texts],
        "assistant_spans": [None] * len(documents),
    }
    if not scored:
        return pa.table(columns, schema=DOCUMENTS)
    given = [document.probabilities for document in documents]
    columns["safety_score"] = [0 if some is None else int(np.argmax(some)) for some in given]
    columns["safety_probs"] = given
    return pa.table(columns, schema=SCORED_DOCUMENTS)


@versioned("hand_out", 1)
def hand_out(part: Part, *, scored: bool) -> Rows:
    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        table = table_of([Document(*given) for given in part.value], part.index, scored)
        yield from table.to_batches(max_chunksize=3)
        return {}

    return Rows(SCORED_DOCUMENTS if scored else DOCUMENTS, batches())


def stored(
    root: Path,
    parts: Sequence[Sequence[Document]],
    scored: bool = False,
    engine: Engine = Inline(),  # noqa: B008 - immutable
) -> Shards:
    values = [[list(document) for document in part] for part in parts]
    store = Store(root)
    store.save(Shards.from_values(values, list(map(value_digest, values))).map(hand_out, scored=scored), engine)
    return store.load()


def write_scores(
    path: Path, scores: Sequence[tuple[str | None, Sequence[float | None] | None]], **columns: Any
) -> Path:
    """Write a table as somebody publishes it: id, safety_score, safety_probs; columns take the place of these."""
    arrays = {
        "id": pa.array([identifier for identifier, _ in scores], pa.string()),
        "safety_score": pa.array([0 if some is None else int(np.argmax(some)) for _, some in scores], pa.int8()),
        "safety_probs": pa.array([some for _, some in scores], SCORE_FIELDS[1].type),
    }
    chosen = {name: array for name, array in {**arrays, **columns}.items() if array is not None}
    pq.write_table(pa.table(chosen), path, row_group_size=2)
    return path


def files(folder: Path) -> list[UpstreamFile]:
    """Return the parquet files of a folder as an upstream lists them."""
    return [UpstreamFile("scores", path.name, path, None) for path in sorted(folder.glob("*.parquet"))]


def digests(some: Sequence[UpstreamFile]) -> list[str]:
    return [f"sha256:{file_sha256(file.location)}" for file in some]
