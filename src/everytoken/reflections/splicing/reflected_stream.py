"""A reflected stream: the windows of the annotated stream, in its order, with a reflection in each that has one.

A window is ``content[:k]``, the reflection, ``content[k:]``, EOS and padding. ``k`` is the token of the point; a text
without a point, as a summary, comes at the end of the content. What has no reflection stays byte for byte as it was:
a row that the run did not ask for, a reply that is not ok or blank, a point outside the content, and a document that
was taken down.

A row with an identity canary is spliced as any other (``splice``), stays without its reflection (``bare``), or becomes
a window of EOS alone, in which no prediction counts (``drop``).

Windows keep their numbers, so ranges of them are read, compared with the sidecar, and written independently.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.splicing.annotated_source import AnnotatedSource
from everytoken.reflections.splicing.reflection_tokens import open_reflection_encoder
from everytoken.reflections.splicing.run_columns import CanaryRule, RunColumns, columns_of_run, pieces_by_range
from everytoken.reflections.splicing.spliced_ranges import (
    ARRAYS,
    SplicedCounts,
    SpliceJob,
    SpliceRange,
    write_range,
)
from everytoken.shards import IN_THIS_PROCESS, Artifact, Built, RangeMap, Shards, versioned
from everytoken.tokens.streams import PaddedStatistics, TokenizerFacts, open_windows_in_place, tokenizer_facts
from everytoken.tokens.tokenizer import EncodingRules


class ReflectedStatistics(PaddedStatistics):
    """Statistics of a reflected stream; ``tokens`` with those of reflections.

    ``reflection_tokens``: by voice, markers included. ``without_reflection``: windows, by the reason. ``canaries``:
    spliced reflections by identity canary. ``bare_windows`` and ``masked_windows``: what became of canaries otherwise.
    """

    run: str
    generator: str
    marker: str | None
    reflected_windows: int
    document_tokens: int
    reflection_tokens: dict[str, int]
    without_reflection: dict[str, int]
    canaries: dict[str, int]
    bare_windows: int
    masked_windows: int
    cut_reflections: int
    lossy_reflections: int


@versioned("write_reflected_stream", 1, in_ranges=True)
def write_reflected_stream(
    folder: Path,
    *,
    annotated: Artifact,
    columns: Shards,
    run: str,
    generator: str,
    rules: EncodingRules,
    reflection_budget: int,
    voice: str,
    marker: str | None,
    canaries: CanaryRule,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Write ``<kind>.bin``, ``<kind>.idx``, ``token_lengths.npy`` and the two arrays of reflections.

    Memory: in each process a row group of the sidecar and a few MB; 8 bytes a row of one part of the columns.

    Args:
        annotated: the stream that reflections are put into, with its sidecar.
        columns: of the run: ``row`` (the window), ``doc_id``, ``status`` and its own columns; rows ascend.
        generator: alias of the model that wrote the texts.
        rules: with which documents were encoded; reflections are, too.
        reflection_budget: ids of a reflection at most, the marker included.
        voice: ``1p`` or ``3p``.
        marker: a token before each reflection, as the tokenizer spells it; None: none.
        canaries: what becomes of rows with an identity canary.
        ranges: where windows are read and written.

    Raises:
        ReflectionError: the columns are not of this stream, the sidecar is not, or the tokenizer lacks the marker.
    """
    named, source = columns_of_run(run, voice), AnnotatedSource.of(annotated)
    facts = TokenizerFacts(**annotated.statistics_as(PaddedStatistics)["tokenizer"])
    if isinstance(rules.tokenizer, Artifact) and tokenizer_facts(rules.tokenizer) != facts:
        raise ReflectionError(
            f"the annotated stream was encoded with the tokenizer {facts.sha256[:12]}, the reflections are to be with "
            f"{tokenizer_facts(rules.tokenizer).sha256[:12]}: run tokenization with this one"
        )
    open_reflection_encoder(rules, reflection_budget, marker, facts)  # its errors come before any file
    bounds = source.bounds()
    window, count = source.windows().shape[1], bounds[-1]
    ranges = ranges.unless_small(count * window * facts.dtype.itemsize)
    with open_windows_in_place(folder / named.kind, window, facts.dtype, count, ARRAYS) as placed:
        job = SpliceJob(source, placed, named, facts, rules, reflection_budget, marker, canaries)
        return Built(splice_all(job, columns, run, generator, ranges))


def splice_all(
    job: SpliceJob, columns: Shards, run: str, generator: str, ranges: RangeMap = IN_THIS_PROCESS
) -> ReflectedStatistics:
    """Give every window to where the job puts them; return the statistics of the stream.

    Raises:
        ReflectionError: the columns are not of this stream, or the sidecar is not.
    """
    source, named, facts, total = job.source, job.named, job.facts, SplicedCounts()
    bounds = source.bounds()
    window, count = source.windows().shape[1], bounds[-1]
    pieces = pieces_by_range(columns, bounds, named)
    tasks = [SpliceRange(job, *pair, own) for pair, own in zip(pairwise(bounds), pieces, strict=True)]
    for made in ranges(write_range, tasks):
        total.add(made)
    padded: PaddedStatistics = {
        "windows": count,
        "tokens": total.tokens.total(),
        "documents": count - total.windows["masked"],
        "padding_tokens": count * (window - 1) - total.tokens.total(),
        "remainder_tokens": 0,
        "tokenizer": facts.recorded,
    }
    return _statistics(padded, total, named, run, generator, job.marker)


def _statistics(
    padded: PaddedStatistics, total: SplicedCounts, named: RunColumns, run: str, generator: str, marker: str | None
) -> ReflectedStatistics:
    return {
        **padded,
        "run": run,
        "generator": generator,
        "marker": marker,
        "reflected_windows": total.windows["reflected"],
        "document_tokens": total.tokens["document"],
        "reflection_tokens": {named.voice: total.tokens["reflection"]},
        "without_reflection": dict(sorted(total.without.items())),
        "canaries": dict(sorted(total.canaries.items())),
        "bare_windows": total.windows["bare"],
        "masked_windows": total.windows["masked"],
        "cut_reflections": total.windows["cut"],
        "lossy_reflections": total.windows["lossy"],
    }
