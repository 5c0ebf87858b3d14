"""How fast text becomes tokens, and tokens streams, beside the bare library and a plain copy of the bytes.

Text: the Python standard library's own sources. ``python benchmarks/tokens.py [megabytes]`` prints a table.
"""

from __future__ import annotations

import resource
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pyarrow as pa

from everytoken.shards import ArtifactStore, Built, Inline, Part, Rows, Shards, Store, plan_artifact
from everytoken.shards.parts import StoredPart
from everytoken.shards.writing import write_rows
from everytoken.tokens import (
    encode_part,
    open_tokenizer,
    train_tokenizer,
    write_annotated_stream,
    write_compact_stream,
)

EOS = "<|endoftext|>"
PARTS = 4


SCHEMA = pa.schema(
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


def documents_of(folder: Path, names: list[str]) -> Shards:
    """Store files as scored documents, in parts."""
    folder.mkdir()
    parts: list[Part] = []
    for index in range(PARTS):
        mine = names[index::PARTS]

        def batches(index: int = index, mine: list[str] = mine) -> Generator[pa.RecordBatch, None, dict[str, Any]]:
            for row, name in enumerate(mine):
                text = Path(name).read_text(encoding="utf-8", errors="replace")
                values = [[name], [text], ["stdlib"], [index], [row], [0], [False]]
                columns = [pa.array(value, kind) for value, kind in zip(values, SCHEMA.types, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            return {}

        path = folder / f"part_{index:05d}.parquet"
        written = write_rows(Rows(SCHEMA, batches()), path)
        parts.append(
            StoredPart(path.stem, index, path, written.part.rows, written.part.content_digest, written.part.sha256)
        )
    return Shards(tuple(parts))


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = run()
    return time.perf_counter() - start, made


def line(what: str, size: int, seconds: float, note: str = "") -> None:
    print(f"{what:<58}{size / 1e6:>9.1f} MB{seconds:>8.2f} s{size / 1e6 / seconds:>9.1f} MB/s  {note}")


def main() -> None:
    wanted = float(sys.argv[1]) * 1e6 if len(sys.argv) > 1 else 12e6
    names: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in path.parts and size < wanted:
            names.append(str(path))
            size += path.stat().st_size
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = documents_of(folder / "documents", names)
        texts = [text for part in documents for batch in part.batches(["text"]) for text in batch["text"].to_pylist()]
        size = sum(len(text.encode()) for text in texts)
        print(f"{len(texts)} files of the standard library in {PARTS} parts")

        parameters = {"vocab_size": 8000, "min_frequency": 2, "special_tokens": [EOS], "eos_token": EOS}
        planned = plan_artifact(train_tokenizer, texts=[documents], **parameters)
        seconds, tokenizer = timed(lambda: ArtifactStore(folder / "tokenizer").save(planned))
        line("train_tokenizer, 8,000 tokens", size, seconds)

        bare = open_tokenizer(tokenizer, EOS).tokenizer
        bare.encode_batch_fast(texts)  # the library's cache of words is warm for both
        seconds, _ = timed(lambda: bare.encode_batch_fast(texts))
        line("tokenizers encode_batch_fast, all texts at once", size, seconds)
        seconds, _ = timed(lambda: [encoding.ids for encoding in bare.encode_batch_fast(texts)])
        line("the same, and the ids taken out", size, seconds)

        options = {"tokenizer": tokenizer, "eos_token": EOS, "max_lossy_share": 0.0}
        parts = [encode_part(part, max_tokens=2048, **options) for part in documents]
        seconds, _ = timed(lambda: [batch.num_rows for rows in parts for batch in rows.batches])
        line("encode_part, read from parquet, rows thrown away", size, seconds)
        planned_tokens = documents.map(encode_part, max_tokens=1 << 30, **options)
        seconds, tokens = timed(lambda: saved(folder / "tokens", planned_tokens))
        line("encode_part, not cut, through a store (inline)", size, seconds)
        cut = saved(folder / "cut", documents.map(encode_part, max_tokens=1920, **options))

        for memory in (1 << 30, 4 << 20):
            common = {"tokenizer": tokenizer, "seq_length": 2048, "seed": 42, "shuffle_memory": memory}
            seconds, _ = timed(fresh(folder / "out", write_compact_stream, tokens=tokens, shuffle_block=None, **common))
            compared("write_compact_stream", folder / "out", seconds, memory)
            seconds, _ = timed(fresh(folder / "out", write_annotated_stream, tokens=cut, **common))
            compared("write_annotated_stream", folder / "out", seconds, memory)
        print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def saved(folder: Path, planned: Shards) -> Shards:
    store = Store(folder)
    store.save(planned, Inline())
    return store.load()


def fresh(folder: Path, write: Callable[..., Built], **inputs: Any) -> Callable[[], Built]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return lambda: write(folder, **inputs)


def compared(what: str, folder: Path, seconds: float, memory: int) -> None:
    """Print the writer's rate, and that of a plain copy of the files it wrote."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    line(f"{what}, {memory >> 20} MiB", size, seconds)
    copy = folder.with_name("copy")
    copying, _ = timed(lambda: shutil.copytree(folder, copy))
    shutil.rmtree(copy)
    line("  a plain copy of its files", size, copying)


if __name__ == "__main__":
    main()
