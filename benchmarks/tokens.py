"""How fast documents become tokens, with each engine that is installed and proven, beside the bare engine.

Text: the Python standard library's own sources. ``python benchmarks/tokens.py [megabytes] [texts]`` prints a
table; texts are those of a proof, 100,000 of them if it is not given.
"""

from __future__ import annotations

import resource
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pyarrow as pa

from everytoken.shards import ArtifactStore, Inline, Part, Rows, Shards, Store, StoredPart, plan_artifact, write_rows
from everytoken.tokens.encoding import Recheck, encode_part
from everytoken.tokens.engines import (
    REFERENCE,
    certify_engines,
    installed_engines,
    open_engine,
    reference_version,
)
from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer, train_tokenizer

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
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 100_000
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

        planned = plan_artifact(
            certify_engines,
            rules=EncodingRules(tokenizer, EOS, "literal"),
            engines=installed_engines(),
            reference=reference_version(),
            samples=[documents],
            cases=cases,
            documents=100,
            seed=42,
        )
        seconds, certificate = timed(lambda: ArtifactStore(folder / "certificate").save(planned))
        proven = [name for name, engine in certificate.statistics["engines"].items() if engine["equal"]]
        line(f"proof of {', '.join(installed_engines()) or 'no engine'}", 0, seconds, f"{cases:,} texts")

        for name in [REFERENCE, *proven]:
            bare = open_engine(name, open_tokenizer(tokenizer, EOS).content, "literal")
            bare.encode(texts)  # caches of words are warm for both
            seconds, _ = timed(lambda bare=bare: bare.encode(texts))
            line(f"{name}, all texts at once", size, seconds)
            options = {
                "rules": EncodingRules(tokenizer, EOS, "literal"),
                "certificate": certificate,
                "max_tokens": 2048,
                "max_lossy_share": 0.0,
                "columns": ["id", "source", "shard_index", "row"],
                "engine": name,
                "recheck": Recheck(0.01, 42),
            }
            parts = [encode_part(part, **options) for part in documents]
            seconds, _ = timed(lambda parts=parts: [batch.num_rows for rows in parts for batch in rows.batches])
            line("  encode_part, read from parquet, rows thrown away", size, seconds)
            seconds, _ = timed(
                lambda name=name, options=options: saved(folder / name, documents.map(encode_part, **options))
            )
            line("  encode_part through a store (inline)", size, seconds)
        print(f"peak memory of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def saved(folder: Path, planned: Shards) -> Shards:
    store = Store(folder)
    store.save(planned, Inline())
    return store.load()


if __name__ == "__main__":
    main()
