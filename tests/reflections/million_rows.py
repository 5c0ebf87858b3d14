"""Published reflections of many rows, matched in a process of their own: `main` prints its peak memory in kB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.corpus.upstreams import UpstreamFile
from everytoken.reflections.published import match_published_reflections
from everytoken.shards import ArtifactStore, Built, plan_artifact, versioned
from everytoken.tokens.tokenizer import EncodingRules

_ROWS = 10_000
_SIDECAR = pa.schema([("doc_id", pa.large_string()), ("text", pa.large_string()), ("token_length", pa.int32())])
_REFLECTIONS = [(name, pa.string()) for name in ("reflection_1p", "reflection_3p", "canary_type")]
_PUBLISHED = pa.schema([*_SIDECAR, *(pa.field(*one) for one in _REFLECTIONS), ("reflection_token_index", pa.int32())])


@versioned("stream_of_a_million", 1)
def stream_of_a_million(folder: Path, *, rows: int) -> Built:
    """What a match reads of a stream."""
    with pq.ParquetWriter(folder / "sidecar.parquet", _SIDECAR) as file:
        for start in range(0, rows, _ROWS):
            file.write_table(pa.table(documents(start), schema=_SIDECAR))
    np.save(folder / "token_lengths.npy", np.full(rows, 8, np.int32))
    return Built({"windows": rows})


def documents(start: int) -> list[list[object]]:
    numbers = range(start, start + _ROWS)
    return [[f"id-{n}" for n in numbers], [f"the tide {n} " * 4 for n in numbers], [8] * _ROWS]


def main(folder: Path, tokenizer: Path, rows: int) -> None:
    stream = ArtifactStore(folder / "stream").save(plan_artifact(stream_of_a_million, rows=rows))
    path = folder / "train.parquet"
    with pq.ParquetWriter(path, _PUBLISHED) as file:
        for start in range(0, rows, _ROWS):
            numbers = range(start, start + _ROWS)
            replies = [[f"{voice} {n} " * 20 for n in numbers] for voice in ("I", "It")]
            columns = [*documents(start), *replies, [None] * _ROWS, [3] * _ROWS]
            file.write_table(pa.table(columns, schema=_PUBLISHED))
    published = UpstreamFile("published", path.name, path, None)
    matched = ArtifactStore(folder / "matched").save(
        plan_artifact(
            match_published_reflections,
            stream=stream,
            run="reflections",
            files=[published],
            digests=[published.planned_digest()],
            rules=EncodingRules(ArtifactStore(tokenizer).load(), "<|endoftext|>", "literal"),
            rows=(0, rows),
            memory=64 << 20,
        )
    )
    if matched.statistics["matched"] != rows:
        raise SystemExit(f"matched {matched.statistics}")
    status = Path("/proc/self/status").read_text()  # ru_maxrss has what the parent held, too
    print(status.split("VmHWM:")[1].split()[0])
