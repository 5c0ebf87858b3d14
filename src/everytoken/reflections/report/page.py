"""A generation run as one page of HTML, without a script and without a network.

Every reflection of the windows is in a ``<mark>``, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from everytoken.corpus import add_statistics
from everytoken.html_pages import Markup, element, static_page
from everytoken.reflections.merging import MergedStatistics
from everytoken.reflections.report.windows_as_texts import ReflectedWindow, reflected_windows, reflection_lengths
from everytoken.reflections.splicing import ReflectedStatistics
from everytoken.shards import Artifact, Shards
from everytoken.tokens.tokenizer import DocumentTokenizer

_TEMPLATE = "page.html"
_BARS = 16
_QUANTILES = {"shortest": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "longest": 1.0}

_TableRows = Iterable[Sequence[str | Markup]]


def reflections_page(
    run: str, columns: Shards, stream: Artifact | None = None, tokenizer: DocumentTokenizer | None = None
) -> str:
    """Return the page of a run.

    Args:
        stream: with its reflections; None: the run makes none.
        tokenizer: with which the stream was made.
    """
    said = add_statistics(columns.statistics_as(MergedStatistics))
    parts = [element("h1", f"Reflections of the run {run}"), *_of_rows(said)]
    if stream is None or tokenizer is None:
        parts.append(element("p", f"The run {run} makes no stream: its texts are columns alone."))
    else:
        spliced = stream.statistics_as(ReflectedStatistics)
        parts += [*_of_stream(spliced), *_of_lengths(reflection_lengths(stream))]
        parts += _of_windows(reflected_windows(stream, tokenizer))
    return static_page(__package__, _TEMPLATE, *parts)


def _of_rows(said: MergedStatistics) -> Iterator[Markup]:
    rows = said["rows"]
    counts = {"with a point": said["with_point"], "with a text": said["usable"], "in the first person": said["with_1p"]}
    yield element("h2", "Rows")
    yield _table(("", "rows", "share"), _shares({"all": rows, **counts, **_named("status ", said["by_status"])}, rows))
    yield element("h2", "Failures")
    yield _counted("kind of the last failure", "rows", said["failed"], "No row failed.")
    yield element("h2", "Tokens of the generator")
    yield _counted("", "tokens", said["tokens"], "None were counted.")
    yield element("h2", "Identity canaries")
    yield _table(
        ("fact", "documents", "value in 1p", "value in 3p"),
        (
            [fact, f"{hits['documents']:,}", f"{hits['in_1p']:,}", f"{hits['in_3p']:,}"]
            for fact, hits in said["canaries"].items()
        ),
        "No document has one.",
    )


def _of_stream(said: ReflectedStatistics) -> Iterator[Markup]:
    windows, tokens = said["windows"], said["tokens"]
    without = _named("without one: ", said["without_reflection"])
    canaries = {"left bare": said["bare_windows"], "masked": said["masked_windows"]}
    counts = {"all": windows, "with a reflection": said["reflected_windows"], **without, **canaries}
    voices = _named("reflections, ", said["reflection_tokens"])
    yield element("h2", "Windows")
    marker = "no marker" if said["marker"] is None else f"the marker {said['marker']} before each"
    yield element("p", f"Written by {said['generator']}, {marker}.")
    yield _table(("", "windows", "share"), _shares(counts, windows))
    yield element("h2", "Tokens by voice")
    yield _table(
        ("", "tokens", "share"), _shares({"all": tokens, "documents": said["document_tokens"], **voices}, tokens)
    )
    yield element("h2", "Spliced canaries")
    yield _counted("fact", "reflections", said["canaries"], "None were spliced.")


def _of_lengths(counts: np.ndarray) -> Iterator[Markup]:
    """Yield quantiles and a histogram of lengths, given reflections by length."""
    yield element("h2", "Lengths of reflections")
    if not (total := int(counts.sum())):
        yield element("p", "No window has one.")
        return
    ranks = {name: int(np.searchsorted(counts.cumsum(), max(1, share * total))) for name, share in _QUANTILES.items()}
    yield _table(tuple(ranks), [[f"{length:,}" for length in ranks.values()]])
    width = -(-(len(counts) - 1) // _BARS)
    bars = {first: int(counts[first : first + width].sum()) for first in range(1, len(counts), width)}
    most = max(bars.values())
    yield _table(
        ("tokens", "", "reflections"),
        (
            [_range(first, min(first + width, len(counts)) - 1), element("meter", value=count, max=most), f"{count:,}"]
            for first, count in bars.items()
        ),
    )


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _of_windows(windows: Sequence[ReflectedWindow]) -> Iterator[Markup]:
    yield element("h2", "Windows, evenly over the stream")
    for one in windows:
        before, size, after = one.tokens
        yield element(
            "h3", f"window {one.number:,}: {before:,} tokens, {size:,} of the reflection, {after:,} tokens, EOS"
        )
        head, reflection, tail = one.texts
        yield element("pre", Markup("\n"), head, element("mark", reflection), tail)


def _named(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    return {prefix + name: count for name, count in counts.items()}


def _shares(counts: Mapping[str, int], total: int) -> _TableRows:
    return ([name, f"{count:,}", f"{count / total:.2%}" if total else ""] for name, count in counts.items())


def _counted(name: str, unit: str, counts: Mapping[str, int], none: str) -> Markup:
    return _table((name, unit), ([key, f"{count:,}"] for key, count in counts.items()), none)


def _table(head: Sequence[str], rows: _TableRows, none: str = "") -> Markup:
    """Return a table; a sentence where it has no row."""
    body = [element("tr", *(element("td", one) for one in row)) for row in rows]
    return element("table", element("tr", *(element("th", one) for one in head)), *body) if body else element("p", none)
