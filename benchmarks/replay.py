"""How fast a replay finds and restores documents, beside what it cannot do without: copying the same rows.

``python benchmarks/replay.py [DOCUMENTS]`` makes documents of about 3 KB (repeated three times, as upstream repeats
them), a manifest with addresses and one of the published format, and prints the time of each step with its ratio to
copying every part as the shard store writes one (zstd, digests, fsync). One process, no workers.
"""

from __future__ import annotations

import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.address import Address
from everytoken.corpus import DOCUMENTS
from everytoken.corpus.sampling import HeldOutParameters
from everytoken.provenance import text_hashes
from everytoken.provenance.releases import MANIFEST, SPLITS
from everytoken.provenance.replay import locate_part, match_rows, restore_part
from everytoken.seeds import numpy_generator
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Rows,
    Shards,
    Store,
    StoredPart,
    file_sha256,
    make_engine,
    plan_artifact,
    value_digest,
    write_rows,
)

PARTS = 10
MEMORY = 200_000_000
BATCH = 4_096
CHARACTERS = 3_000
ESTIMATE = HeldOutParameters(
    annotation_threshold=3, chars_per_token=4.068, max_tokens_per_document=2_048, held_out_seed=7, held_out_share=0
)


def main(documents: int) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = write_documents(folder / "documents", documents // PARTS)
        baseline = seconds(lambda: copy(made, folder))
        report("copy", baseline, baseline, documents)
        for kind, manifest in (("with addresses", addressed(made)), ("published format", published(made))):
            print(f"manifest {kind}")
            replay(folder / kind.split()[0], manifest, made, baseline, documents)
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB; DuckDB may have {MEMORY:,} B"
    )


def replay(folder: Path, manifest: Shards, documents: Shards, baseline: float, rows: int) -> None:
    """Time the three steps."""
    places = [[Address("web", part.index, 0)] for part in documents]
    stored = {name: Store(folder / name) for name in ("located", "restored")}
    matches = ArtifactStore(folder / "matches")

    def locate() -> None:
        planned = manifest.map(locate_part, documents=documents, shards=places)
        stored["located"].save(planned, make_engine("inline"))

    def match() -> None:
        located = stored["located"].load()
        inputs: dict[str, Any] = {"located": located, "documents": documents, "rescue": [], "rescue_digests": []}
        matches.save(plan_artifact(match_rows, **inputs, memory=MEMORY))

    def restore() -> None:
        found: Artifact = matches.load()
        planned = (
            stored["located"]
            .load()
            .map(restore_part, split="annotated", documents=documents, matches=found, rescue=[], estimate=ESTIMATE)
        )
        stored["restored"].save(planned, make_engine("inline"))

    for step in (locate, match, restore):
        report(f"  {step.__name__}", seconds(step), baseline, rows)
    if stored["restored"].load().rows != rows:
        sys.exit("the replay lost rows")


def seconds(work: Callable[[], None]) -> float:
    """Return how long it takes, once: what is made is kept."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def report(name: str, taken: float, baseline: float, rows: int) -> None:
    """Print a line."""
    print(f"{name:28} {taken:7.2f} s {rows / taken:12,.0f} documents/s {taken / baseline:6.2f} of copying")


def write_documents(folder: Path, each: int) -> Shards:
    """Write the documents of `PARTS` parts."""
    folder.mkdir()
    parts = []
    for part in range(PARTS):
        path = folder / f"part_{part:05d}.parquet"
        written = write_rows(Rows(DOCUMENTS, batches(part, each)), path).part
        parts.append(StoredPart(path.stem, part, path, written.rows, written.content_digest, written.sha256))
    return Shards(tuple(parts))


def batches(part: int, each: int) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
    """Yield documents; three in a row are the same."""
    words = [f"word{number}" for number in numpy_generator(1).integers(0, 3_000, 100_000)]
    prose = " ".join(words)
    for first in range(0, each, BATCH):
        rows = range(first, min(first + BATCH, each))
        names = [(part * each + row) // 3 for row in rows]
        starts = [name * 977 % (len(prose) - CHARACTERS) for name in names]
        texts = [f"{name} {prose[at : at + CHARACTERS]}" for name, at in zip(names, starts, strict=True)]
        sizes = pa.array([len(text) for text in texts])
        columns = {
            "id": [hashlib.sha256(str(name).encode()).hexdigest()[:36] for name in names],
            "id_type": ["string"] * len(rows),
            "text": texts,
            "source": ["web"] * len(rows),
            "stratum": [""] * len(rows),
            "shard_index": [part] * len(rows),
            "row": list(rows),
            "characters": sizes,
            "utf8_bytes": sizes,
            "text_sha256": [hashlib.sha256(text.encode()).digest() for text in texts],
            "assistant_spans": [None] * len(rows),
        }
        yield pa.record_batch([pa.array(columns[f.name], f.type) for f in DOCUMENTS], DOCUMENTS)
    return {}


def copy(documents: Shards, folder: Path) -> None:
    """Write every part again."""

    def rows(part: Any) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        yield from part.batches()
        return {}

    for part in documents:
        write_rows(Rows(DOCUMENTS, rows(part)), folder / "copied.parquet")


def addressed(documents: Shards) -> Shards:
    """Return value parts of manifests as a release has them; all documents are annotated."""

    def rows(part: Any) -> pa.Table:
        table = part.table(["id", "id_type", "source", "shard_index", "row", "text_sha256"])
        n = len(table)
        made = {
            **{name: table[name] for name in table.column_names},
            "text_hash": text_hashes(table["text_sha256"].combine_chunks(), "documents"),
            "safety_score": np.full(n, 3, np.int8),
            "is_bad": np.ones(n, np.bool_),
            "has_annotation": np.ones(n, np.bool_),
            "token_length": np.full(n, 7, np.int32),
            "is_excluded": np.zeros(n, np.bool_),
        }
        return pa.table({field.name: made[field.name] for field in MANIFEST})

    return manifest_of(documents, rows, "manifest")


def published(documents: Shards) -> Shards:
    """Return value parts of manifests of the published format."""

    def rows(part: Any) -> pa.Table:
        table, n = part.table(["id"]), part.rows
        flags = {"is_bad": np.ones(n, np.bool_), "has_annotation": np.ones(n, np.bool_)}
        return pa.table({"id": table["id"], "safety_score": np.full(n, 3, np.int8), **flags})

    return manifest_of(documents, rows, "published")


def manifest_of(documents: Shards, rows: Callable[[Any], pa.Table], kind: str) -> Shards:
    """Write manifests beside the documents; return what a replay maps over."""
    values, first = [], 0
    for part in documents:
        assert isinstance(part, StoredPart)
        path = part.path.with_name(f"{kind}_{part.name}.parquet")
        pq.write_table(rows(part), path)
        file = {"path": str(path), "rows": part.rows, "first_row": first, "sha256": file_sha256(path)}
        values.append({**dict.fromkeys(SPLITS), "annotated": file})
        first += part.rows
    return Shards.from_values(values, [value_digest(value) for value in values])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
