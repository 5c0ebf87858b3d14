"""How fast documents are scored and drawn, beside the bare library calls that each cannot do without.

Text: the documents that ``make run`` left. ``python benchmarks/corpus.py [data]`` prints a table. Times
are of the processor, medians of three runs in one process, so that ratios can be compared between machines.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from everytoken.corpus.sampling import SubsamplingParameters, estimate_part_tokens, select_split, totals_of
from everytoken.corpus.scoring import EmbeddedScorer, score_part
from everytoken.shards import Part, Rows, Store, ValuePart

DATA = Path(__file__).resolve().parents[1] / "data"
SCORER = EmbeddedScorer(
    kind="embedded", version="1.9.1", max_chars=100_000, slope=3.0, thresholds=(-3.5, -2.7, -1.9, -0.9, 0.5)
)
SUBSAMPLING = SubsamplingParameters(
    seed=42,
    annotation_threshold=3,
    chars_per_token=4.068,
    target_tokens=None,
    max_tokens_per_document=2048,
    held_out_seed=7,
    held_out_share=0.05,
    strata=None,
    exclude=None,
)


def seconds(work: Callable[[], Any]) -> float:
    """Return the median of three runs after one that warms up; a generator is run to its end."""
    taken = []
    for _ in range(4):
        start = time.process_time()
        made = work()
        if isinstance(made, Rows):
            deque(made.batches, maxlen=0)
        taken.append(time.process_time() - start)
    return statistics.median(taken[1:])


def of_source(shards: Any, source: str) -> Part:
    """Return the first part of a source."""
    return next(part for part in shards if part.table(["source"])["source"][0].as_py() == source)


def row(name: str, ours: float, bare: float, peer: str, text_bytes: int) -> None:
    """Print one line of the table."""
    print(f"{name:<28}{text_bytes / 1e6 / ours:>10.1f} MB/s{ours / bare:>8.2f} x  {peer}")


def main() -> None:
    """Print the table."""
    from profanity_check import predict_prob

    data = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    documents = Store(data / "02_intermediate/documents").load()
    scored = Store(data / "03_primary/scored_documents").load()
    chats, scored_chats = of_source(documents, "chats"), of_source(scored, "chats")
    texts = chats.table(["text"])["text"].to_pylist()
    size = sum(len(text.encode()) for text in texts)
    estimate = estimate_part_tokens(scored_chats, parameters=SUBSAMPLING.estimate)
    estimates = ValuePart(scored_chats.name, scored_chats.index, estimate, "benchmark")
    totals = totals_of([estimate], SUBSAMPLING)

    def read_all() -> None:
        deque(scored_chats.batches(), maxlen=0)

    def lengths() -> None:
        for batch in scored_chats.batches(["text"]):
            pc.utf8_length(batch.column(0))

    print(
        f"one part of chats, {len(texts)} documents, {size / 1e6:.1f} MB of text; time as a multiple of the bare call"
    )
    scoring = seconds(lambda: predict_prob(texts))
    row(
        "score_part",
        seconds(lambda: score_part(chats, scorer=SCORER, model=None)),
        scoring,
        "predict_prob of the texts",
        size,
    )
    estimating = seconds(lambda: estimate_part_tokens(scored_chats, parameters=SUBSAMPLING.estimate))
    row("estimate_part_tokens", estimating, seconds(lengths), "reading the texts, utf8_length", size)
    drawing = seconds(
        lambda: select_split(scored_chats, estimates, split="unannotated", parameters=SUBSAMPLING, totals=totals)
    )
    row("select_split", drawing, seconds(read_all), "reading all columns", size)


if __name__ == "__main__":
    main()
