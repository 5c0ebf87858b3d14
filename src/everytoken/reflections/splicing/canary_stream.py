"""The canary stream with reflections: those that the user's documents bring, in the windows of annotated ones.

Coverage is that of the stream (`everytoken.tokens.canary.documents`): of an effect, the first documents of each subset
are annotated, by its fraction; of a universe, those whose fields have text. A reflection comes after a token that is
sampled from the document's id. All else is as in the stream without.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.points import sampled_index
from everytoken.reflections.splicing.annotated_source import AnnotatedSource
from everytoken.reflections.splicing.reflection_tokens import open_reflection_encoder
from everytoken.reflections.splicing.spliced_ranges import ARRAYS
from everytoken.shards import IN_THIS_PROCESS, Artifact, Built, RangeMap, Shards, versioned
from everytoken.tokens.canary import CanarySplicing, write_canary_stream
from everytoken.tokens.encoding import SpelledSpecialToken
from everytoken.tokens.streams import (
    NO_REFLECTION,
    SIDECAR_FILE,
    STREAM_KINDS,
    TOKEN_LENGTHS_FILE,
    PaddedStatistics,
    TokenizerFacts,
    WindowsInPlace,
    open_windows_in_place,
    splice,
    tokenizer_facts,
)
from everytoken.tokens.tokenizer import EncodingRules

_CANARY = STREAM_KINDS["canary"].name


class SplicedCanaryStatistics(PaddedStatistics):
    """Statistics of a canary stream with reflections; see `ReflectedStatistics`."""

    marker: str | None
    reflected_windows: int
    document_tokens: int
    reflection_tokens: dict[str, int]
    cut_reflections: int
    lossy_reflections: int


@versioned("write_spliced_canary_stream", 1, unrecorded=["shuffle_memory"], in_ranges=True)
def write_spliced_canary_stream(
    folder: Path,
    *,
    tokens: Shards,
    rules: EncodingRules,
    reflection_budget: int,
    seq_length: int,
    seed: int,
    splicing: CanarySplicing,
    shuffle_memory: int,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write the canary stream, and then its reflections into its windows; the sidecar stays as it is.

    Args:
        folder: where the files go; also holds the stream without reflections for a while.
        tokens: of `everytoken.tokens.canary.encode_canary_part`.
        rules: with which they were encoded; their tokenizer is an artifact.
        reflection_budget: ids of a reflection at most, the marker included.
        seed: of the order of the windows.

    Raises:
        ReflectionError: the tokenizer has no such marker.
        StreamError: see `write_canary_stream`.
    """
    assert isinstance(rules.tokenizer, Artifact), "it is that of the job"
    facts = tokenizer_facts(rules.tokenizer)
    open_reflection_encoder(rules, reflection_budget, splicing.marker, facts)  # its errors come before any file
    counts: Counter[str] = Counter()
    with TemporaryDirectory(prefix="plain-", dir=folder) as plain:
        written = Path(plain)
        made = write_canary_stream(
            written,
            tokens=tokens,
            tokenizer=rules.tokenizer,
            seq_length=seq_length,
            seed=seed,
            shuffle_memory=shuffle_memory,
            ranges=ranges,
        )
        source = AnnotatedSource(written / _CANARY, written / SIDECAR_FILE, written / TOKEN_LENGTHS_FILE)
        bounds = source.bounds()
        with open_windows_in_place(folder / _CANARY, seq_length + 1, facts.dtype, bounds[-1], ARRAYS) as placed:
            job = _CanaryJob(source, placed, rules, facts, reflection_budget, splicing)
            small = ranges.unless_small(bounds[-1] * (seq_length + 1) * facts.dtype.itemsize)
            for counted in small(_write, [_CanaryRange(job, *pair) for pair in pairwise(bounds)]):
                counts.update(counted)
        source.sidecar.rename(folder / SIDECAR_FILE)
    padded: PaddedStatistics = dict(made.statistics)  # type: ignore[assignment]
    statistics: SplicedCanaryStatistics = {
        **padded,
        "tokens": padded["tokens"] + counts["tokens"],
        "padding_tokens": padded["padding_tokens"] - counts["tokens"],
        "marker": splicing.marker,
        "reflected_windows": counts["reflected"],
        "document_tokens": padded["tokens"],
        "reflection_tokens": {splicing.voice: counts["tokens"]},
        "cut_reflections": counts["cut"],
        "lossy_reflections": counts["lossy"],
    }
    return Built(statistics)


@dataclass(frozen=True)
class _CanaryJob:
    """What all ranges share."""

    source: AnnotatedSource
    placed: WindowsInPlace
    rules: EncodingRules
    facts: TokenizerFacts
    budget: int
    splicing: CanarySplicing


@dataclass(frozen=True)
class _CanaryRange:
    """Windows [first, stop)."""

    job: _CanaryJob
    first: int
    stop: int

    @property
    def name(self) -> str:
        return f"canary windows {self.first:,} to {self.stop - 1:,}"


def _write(task: _CanaryRange) -> Counter[str]:
    job, counts = task.job, Counter[str]()
    windows, lengths = job.source.windows(), job.source.token_lengths()
    columns = ("doc_id", "annotated", job.splicing.field)
    for at, batch in job.source.sidecar_rows(task.first, task.stop, columns):
        here = slice(at, at + batch.num_rows)
        counts.update(_splice(job, at, np.array(windows[here]), np.array(lengths[here]), batch))
    return counts


def _splice(
    job: _CanaryJob, first: int, windows: np.ndarray, lengths: np.ndarray, rows: pa.RecordBatch
) -> dict[str, int]:
    """Put reflections into windows, and write them; return what was put in."""
    ids, annotated, texts = (rows.column(name).to_pylist() for name in ("doc_id", "annotated", job.splicing.field))
    places = np.full(len(windows), NO_REFLECTION, np.int32)
    sizes = np.zeros(len(windows), np.int32)
    inserts: list[np.ndarray | None] = [None] * len(windows)
    chosen = [
        number
        for number, (is_due, text) in enumerate(zip(annotated, texts, strict=True))
        if is_due and text and text.strip() and lengths[number] > 1
    ]
    encoder = open_reflection_encoder(job.rules, job.budget, job.splicing.marker, job.facts)
    try:
        made = encoder.encode([texts[number] for number in chosen])
    except SpelledSpecialToken as error:
        raise ReflectionError(
            f"the reflection of the canary document {ids[chosen[error.number]]!r}: {error}"
        ) from error
    for number, own in zip(chosen, made.ids, strict=True):
        if own is not None:
            places[number] = sampled_index(job.splicing.seed, ids[number], int(lengths[number]))
            sizes[number], inserts[number] = len(own), own
    splice(windows, lengths, places, inserts)
    job.placed.write(first, windows, dict(zip(ARRAYS, (lengths + sizes, places, sizes), strict=True)))
    return {
        "tokens": int(sizes.sum()),
        "reflected": int(np.count_nonzero(sizes)),
        "cut": int(made.is_cut.sum()),
        "lossy": int(made.is_lossy.sum()),
    }
