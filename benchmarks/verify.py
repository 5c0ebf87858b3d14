"""How long `everytoken verify` takes for a release and its streams, beside the SHA-256 of the same files; and how
long it takes to find which documents of two builds differ.

``python benchmarks/verify.py --folder FOLDER`` makes a release of ``--documents`` (1,000,000) and their streams (about
540 tokens a document; 1 GB). Each measurement is a process of its own, and its memory is the peak of that process.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.corpus.ingestion import PlanParameters, shard_order
from everytoken.provenance.diff import compare_documents
from everytoken.provenance.releases import (
    MANIFEST,
    RELEASE_FORMAT,
    Licence,
    Release,
    open_release,
    versions,
    withheld_of,
    write_release,
)
from everytoken.provenance.verification import release_checks
from everytoken.seeds import numpy_generator
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Built,
    Inline,
    Part,
    Rows,
    Shards,
    Store,
    canonical_json,
    file_sha256,
    plan_artifact,
    versioned,
)
from everytoken.tokens.streams import SIDECAR, tokenizer_facts, write_annotated_stream, write_compact_stream
from everytoken.tokens.tokenizer import train_tokenizer

PARTS, SEQ_LENGTH, BUDGET, SEED, BATCH = 20, 2048, 128, 42, 4096
PLAN = {"seed": SEED, "offset": 0, "n_shards": PARTS, "expect_shards": PARTS}
UPSTREAM = {"kind": "path", "root": "texts", "pattern": "*.jsonl", "checksums": None}
TEXT = "a document of a benchmark, whose text is the same for all"
EOS = "<|endoftext|>"
LICENCE = Licence(name="none", spdx="CC0-1.0", url="https://example.org", attribution="", text="none")
TOKENS = pa.schema(
    [
        *(
            field
            for field in (SIDECAR.field(name) for name in SIDECAR.names)
            if field.name not in ("doc_id", "token_length")
        ),
        pa.field("id", pa.large_string()),
        pa.field("token_length", pa.int32()),
        pa.field("tokens", pa.list_(pa.uint16())),
    ]
)


@versioned("documents", 1)
def documents(part: Part, *, first: int, rows: int, cap: int, vocab_size: int) -> Rows:
    """Encoded documents of log-normal length."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        generator = numpy_generator(SEED, first, part.index)
        for start in range(0, rows, BATCH):
            count = min(BATCH, rows - start)
            lengths = np.minimum(generator.lognormal(5.9, 1.0, count).astype(np.int64), cap - 1)
            ends = np.cumsum(lengths + 1)
            ids = generator.integers(1, vocab_size, int(ends[-1])).astype(np.uint16)
            ids[ends - 1] = 0
            numbers = np.arange(first + start, first + start + count)
            columns = {
                "id": [f"{part.index}-{number}" for number in numbers.tolist()],
                "text": [TEXT] * count,
                "safety_score": np.zeros(count, np.int8),
                "is_bad": np.zeros(count, np.bool_),
                "source": ["web"] * count,
                "shard_index": np.full(count, part.index, np.int32),
                "row": numbers,
                "token_length": lengths.astype(np.int32),
                "tokens": pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), pa.array(ids)),
            }
            arrays = [pa.array(columns[field.name], field.type) for field in TOKENS]
            yield pa.RecordBatch.from_arrays(arrays, schema=TOKENS)
        return {}

    return Rows(TOKENS, batches())


@versioned("listed", 1)
def listed(part: Part, *, split: str) -> Rows:
    """The manifest of the documents; they all have the one text."""
    from everytoken.provenance import text_hash

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        rows = 0
        for batch in part.batches([name for name in TOKENS.names if name in MANIFEST.names]):
            count = batch.num_rows
            columns = {
                "id_type": ["string"] * count,
                "text_hash": np.full(count, text_hash(TEXT), np.uint64),
                "has_annotation": np.full(count, split == "annotated"),
                "is_excluded": np.zeros(count, np.bool_),
            }
            if split == "held_out":
                columns["token_length"] = pa.nulls(count, pa.int32())
            arrays = [
                pa.array(columns[field.name], field.type) if field.name in columns else batch.column(field.name)
                for field in MANIFEST
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=MANIFEST)
            rows += count
        counts = {**dict.fromkeys(("tokens", "without_id", "withheld", "excluded"), 0), "rows": rows}
        return {**counts, "by_source": {"web": counts}}

    return Rows(MANIFEST, batches())


@versioned("nothing", 1)
def nothing(folder: Path) -> Built:
    """An artifact without files."""
    return Built({})


def save(folder: Path, planned: Shards) -> Shards:
    """Store parts and load them."""
    Store(folder).save(planned, Inline())
    return Store(folder).load()


def make(folder: Path, count: int) -> None:
    """Make streams and release."""
    parts = Shards.from_values([0] * PARTS, [str(i) for i in range(PARTS)])
    texts = save(folder / "texts", parts.map(documents, first=0, rows=1, cap=9, vocab_size=9))
    trained = plan_artifact(
        train_tokenizer, texts=[texts], vocab_size=290, min_frequency=1, special_tokens=[EOS], eos_token=EOS
    )
    tokenizer = ArtifactStore(folder / "tokenizer").save(trained)
    facts, rows = tokenizer_facts(tokenizer), count // PARTS
    shares = {"annotated": rows // 10, "unannotated": rows - rows // 10 - 1, "held_out": 1}
    first, manifests, tokens = 0, {}, {}
    for split, number in shares.items():
        cap = SEQ_LENGTH - (BUDGET if split == "annotated" else 0)
        planned = parts.map(documents, first=first, rows=number, cap=cap, vocab_size=facts.vocab_size)
        tokens[split] = save(folder / f"{split}_tokens", planned)
        manifests[split] = save(folder / f"{split}_manifest", tokens[split].map(listed, split=split))
        first += number
    common = {"tokenizer": tokenizer, "seq_length": SEQ_LENGTH, "seed": SEED, "shuffle_memory": 1 << 28}
    compact = plan_artifact(write_compact_stream, tokens=tokens["unannotated"], shuffle_block=None, **common)
    annotated = plan_artifact(write_annotated_stream, tokens=tokens["annotated"], **common)
    streams = {
        "compact": ArtifactStore(folder / "streams/compact_stream").save(compact),
        "annotated": ArtifactStore(folder / "streams/annotated_stream").save(annotated),
    }
    write = plan_artifact(
        write_release,
        pretty_name="Benchmark",
        languages=["en"],
        homepage=None,
        licences={"web": LICENCE},
        recipe=canonical_json(recipe(tokenizer, manifests, streams)).encode(),
        upstream=canonical_json(upstream()).encode(),
        manifests=manifests,
        texts={split: Shards(()) for split in manifests},
        upstream_documents=Shards(()),
        withheld=withheld_of([]),
        classifications=ArtifactStore(folder / "classifications").save(plan_artifact(nothing)),
        tokenizer=tokenizer,
        streams=streams,
        memory=1 << 28,
    )
    ArtifactStore(folder / "release").save(write)
    for split in manifests:
        shutil.rmtree(folder / f"{split}_tokens")


def recipe(tokenizer: Artifact, manifests: dict[str, Shards], streams: dict[str, Artifact]) -> dict[str, Any]:
    """What ``recipe.json`` needs for the checks."""
    return {
        "format": RELEASE_FORMAT,
        "parameters": {
            "ingestion": {"plan": PLAN, "sources": {"web": {"upstream": UPSTREAM}}},
            "annotation": {"scorer": {"kind": "published", "upstream": UPSTREAM}},
            "subsampling": {"annotation_threshold": 3},
            "tokenization": {"seed": SEED, "seq_length": SEQ_LENGTH, "reflection_budget": BUDGET},
        },
        "versions": versions(),
        "tokenizer": asdict(tokenizer_facts(tokenizer)),
        "datasets": {
            **{f"{split}_documents": {"rows": one.rows, "root_digest": ""} for split, one in manifests.items()},
            **{f"{name}_stream": {"root_digest": stream.root_digest} for name, stream in streams.items()},
        },
        "functions": {},
    }


def upstream() -> dict[str, Any]:
    """What ``upstream.json`` needs for the checks."""
    files = [{"shard_index": i, "path": f"{i}.jsonl", "digest": f"sha256:{i:064x}"} for i in range(PARTS)]
    order = shard_order(PARTS, PlanParameters.model_validate(PLAN))
    shards = [{**files[i], "source": "web", "first_row": 0, "rows": None} for i in order]
    return {
        "sources": {"web": {"upstream": UPSTREAM, "files": files, "licence": LICENCE.model_dump(mode="json")}},
        "plan": {"parameters": PLAN, "n_total": PARTS, "order": order, "shards": shards},
    }


def verify(folder: Path, full: bool) -> str:
    """Check the release and its streams; say what is wrong."""
    streams = {name: folder / f"streams/{name}_stream" for name in ("compact", "annotated")}
    found = release_checks(folder / "release", streams, full=full, documents=32, seed=SEED)
    return "; ".join(check.text.replace("\n", "; ") for check in found if not check.ok)


def hash_files(folder: Path) -> str:
    """``sha256sum`` of every file, up to 8 at a time: code of coreutils' own, which may be far from the limit."""
    files = "find release streams -type f -print0 | xargs -0 -n 1 -P 8 sha256sum > /dev/null"
    subprocess.run(["sh", "-c", files], cwd=folder, check=True)
    return ""


def openssl_files(folder: Path) -> str:
    """SHA-256 of every file by OpenSSL, as Python calls it, up to 8 at a time: the limit."""
    files = [file for name in ("release", "streams") for file in (folder / name).rglob("*") if file.is_file()]
    with ThreadPoolExecutor(8) as pool:
        deque(pool.map(file_sha256, files), maxlen=0)
    return ""


def compare(folder: Path, memory: int) -> str:
    """Find that no document differs, and those of a split that are in another order."""
    release: Release = open_release(folder / "release")
    manifest = release.manifest("unannotated")
    turned = Shards(tuple(reversed(manifest.parts)))
    found = compare_documents(
        {"unannotated_documents": lambda: manifest},
        {"unannotated_documents": lambda: turned},
        down_in_a=lambda: iter(()),
        down_in_b=lambda: iter(()),
        ids_of_tokens=False,
        limit=20,
        memory=memory,
    )
    return f"{found.counts['order_changed']:,} of {found.rows_a:,} documents in another order"


def edit(folder: Path) -> str:
    """Change one token in the middle of the compact stream."""
    path = folder / "streams/compact_stream/compact.bin"
    tokens = np.memmap(path, "<u2", "r+")
    tokens[len(tokens) // 2] ^= 1
    tokens.flush()
    return ""


def _measured(run: Callable[[Path], str], folder: Path, queue: Any) -> None:
    begun = time.perf_counter()
    said = run(folder)
    seconds = time.perf_counter() - begun
    status = Path("/proc/self/status").read_text()  # getrusage would count what this process was forked from
    queue.put((seconds, int(status.split("VmHWM:")[1].split()[0]) / 1024, said))


def measure(name: str, run: Callable[[Path], str], folder: Path, size: int) -> None:
    """Run in a process of its own; print seconds, GB/s, peak of memory and what it said."""
    context = get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_measured, args=(run, folder, queue))
    process.start()
    seconds, memory, said = queue.get()
    process.join()
    print(f"{name:<34} {seconds:8.2f} s  {size / seconds / 1e9:6.2f} GB/s  {memory:6.0f} MB  {said}", flush=True)


def main() -> None:
    """Make the release, and print what each step takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="verify-") as place:
        folder = Path(place)
        make(folder, given.documents)
        files = [file for name in ("release", "streams") for file in (folder / name).rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        print(f"{given.documents:,} documents, {len(files)} files, {size / 1e9:.2f} GB")
        for _ in range(given.rounds):
            measure("sha256sum of all files", hash_files, folder, size)
            measure("OpenSSL's SHA-256 of all files", openssl_files, folder, size)
            measure("verify --full", partial(verify, full=True), folder, size)
            measure("verify", partial(verify, full=False), folder, size)
        edit(folder)
        measure("verify --full, one token edited", partial(verify, full=True), folder, size)
        measure("documents compared, 1 GiB", partial(compare, memory=1 << 30), folder, size)
        measure("documents compared, 128 MiB", partial(compare, memory=1 << 27), folder, size)


if __name__ == "__main__":
    importlib.import_module(Path(__file__).stem).main()  # not __main__: part functions are imported by their module
