"""The figures that people look at, as plotly figures made from counts: no figure needs the data again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from everytoken.corpus.scoring.report import ALL_SOURCES

Counts = Mapping[str, float]

_LAYOUT = {"template": "plotly_white", "font": {"size": 14}, "legend_title_text": "", "margin": {"t": 70}}


def ingestion_figure(
    histogram: Counts, by_source: Mapping[str, Counts], mixture: Sequence[Mapping[str, Any]] | None
) -> go.Figure:
    """Documents by length, and beside it the share of each source; for a mixture also the share that was intended.

    Args:
        histogram: documents by power of two of characters (entry ``b``: 2**b to 2**(b+1) - 1).
        by_source: ``characters`` of each source.
        mixture: of `everytoken.corpus.selection.mixture.mixture_table`, or None when there is none.
    """
    bins = sorted(int(name) for name in histogram if name != "none")
    names = [f"{2**b:,}-{2 ** (b + 1) - 1:,}" for b in bins]
    panels = make_subplots(cols=2, subplot_titles=("Document lengths", "Sources"), column_widths=[0.55, 0.45])
    lengths = [histogram[f"{b:02d}"] for b in bins]
    panels.add_bar(x=names, y=lengths, name="documents", showlegend=False, marker_color=_COLOURS[0], row=1, col=1)
    sources = sorted(by_source)
    if mixture is None:
        amounts = {source: by_source[source]["characters"] for source in sources}
        shares = {"share of characters": [_share(amounts, source) for source in sources]}
    else:
        sources = [row["source"] for row in mixture]
        shares = {
            "intended share of tokens": [row["weight"] for row in mixture],
            "realised": [row["realised_weight"] for row in mixture],
        }
    for colour, (name, values) in zip(("#bab0ac", _COLOURS[1])[-len(shares) :], shares.items(), strict=True):
        text = [f"{value:.2%}" for value in values]
        panels.add_bar(x=sources, y=values, name=name, text=text, marker_color=colour, row=1, col=2)
    panels.update_xaxes(title_text="characters", row=1, col=1)
    panels.update_yaxes(title_text="documents", row=1, col=1)
    panels.update_yaxes(tickformat=".0%", row=1, col=2)
    return panels.update_layout(title="Documents of the corpus", barmode="group", **_LAYOUT)


def score_figure(table: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Share of each safety class by source: over all rows (solid), and over each id once (light).

    Args:
        table: lines of `everytoken.corpus.scoring.report.score_table`.
    """
    figure = go.Figure()
    sources = sorted({line["source"] for line in table} - {ALL_SOURCES})
    for counted, opacity, which in (("rows", 1.0, "all rows"), ("once", 0.45, "each id once")):
        for i, source in enumerate(sources):
            by_class = {line["class"]: line[counted] for line in table if line["source"] == source}
            total = sum(by_class.values())
            figure.add_bar(
                x=[f"class {k}" for k in by_class],
                y=[count / total if total else 0.0 for count in by_class.values()],
                customdata=list(by_class.values()),
                hovertemplate="%{y:.2%} (%{customdata:,} documents)",
                name=f"{source}, {which}",
                marker={"color": _COLOURS[i % len(_COLOURS)], "opacity": opacity},
            )
    figure.update_yaxes(type="log", tickformat=".1%")
    return _titled(figure, "Safety scores by source", "", "share of the source's documents (log)")


def mixture_figure(strata: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Sources, safety scores and, where there are any, strata: shares before the draw and in each split, stacked.

    Args:
        strata: lines of `everytoken.corpus.sampling_report.strata_table`; a name that does not apply is empty.
    """
    titles = {"source": "Sources", "safety_score": "Safety scores", "stratum": "Strata"}
    lines = {key: [line for line in strata if _names(line) == {key}] for key in titles}
    shown = [key for key in titles if lines[key]]
    panels = make_subplots(cols=max(1, len(shown)), subplot_titles=[titles[key] for key in shown], shared_yaxes=True)
    columns = {"before": "before", "annotated": "annotated", "unannotated": "unannotated", "held out": "held_out"}
    for number, key in enumerate(shown, start=1):
        largest = sorted(lines[key], key=lambda line: -line["before_tokens"])[:_MOST_SHOWN]
        rest = [line for line in lines[key] if line not in largest]
        named = [(line[key], [line]) for line in lines[key] if line in largest]
        for i, (name, group) in enumerate([*named, *([("others", rest)] if rest else [])]):
            tokens = [sum(line[f"{column}_tokens"] for line in group) for column in columns.values()]
            totals = [sum(line[f"{column}_tokens"] for line in lines[key]) for column in columns.values()]
            shares = [part / whole if whole else 0.0 for part, whole in zip(tokens, totals, strict=True)]
            names = list(columns)
            if key == "stratum" and all(_is_given(line["intended_share"]) for line in group):
                names.append("intended")
                shares.append(sum(line["intended_share"] for line in group))
                tokens.append(sum(line["annotated_tokens"] + line["unannotated_tokens"] for line in group))
            panels.add_bar(
                x=names,
                y=shares,
                customdata=tokens,
                hovertemplate="%{y:.2%} (%{customdata:,.0f} estimated tokens)",
                name=f"score {name}" if key == "safety_score" else name,
                marker={"color": _COLOURS[i % len(_COLOURS)]},
                text=[f"{share:.1%}" for share in shares],
                legendgroup=key,
                legendgrouptitle={"text": titles[key]},
                row=1,
                col=number,
            )
    panels.update_yaxes(tickformat=".0%", range=[0, 1])
    panels.update_yaxes(title_text="share of estimated tokens", col=1)
    return panels.update_layout(title="Mixture before and after the draw", barmode="stack", **_LAYOUT)


def loss_figure(step: Sequence[int], series: Mapping[str, Sequence[float]], smooth: int = 20) -> go.Figure:
    """Training curves over optimiser steps: each series as it is, and its running mean over ``smooth`` steps."""
    figure = go.Figure()
    for i, (name, values) in enumerate(series.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        figure.add_scatter(x=step, y=values, name=name, mode="lines", line={"color": colour, "width": 1}, opacity=0.35)
        means = [sum(values[max(0, k + 1 - smooth) : k + 1]) / min(k + 1, smooth) for k in range(len(values))]
        figure.add_scatter(x=step, y=means, name=f"{name}, mean of {smooth} steps", line={"color": colour})
    return _titled(figure, "Training loss", "optimiser step", "nats per token")


def bits_per_byte_figure(by_source: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Held-out bits per byte by source, model beside unigram model: lower is better."""
    sources = sorted(by_source)
    figure = go.Figure()
    for key, name in (("unigram_bits_per_byte", "unigram model"), ("bits_per_byte", "trained model")):
        values = [by_source[source][key] for source in sources]
        figure.add_bar(x=sources, y=values, name=name, text=[f"{value:.3f}" for value in values])
    figure.update_layout(barmode="group")
    return _titled(figure, "Held-out documents", "", "bits per byte (lower is better)")


_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")


_MOST_SHOWN = 12


def _names(line: Mapping[str, Any]) -> set[str]:
    return {key for key in ("source", "safety_score", "stratum") if line[key] != ""}


def _is_given(number: float | None) -> bool:
    return number is not None and not math.isnan(number)


def _share(amounts: Mapping[str, float], source: str) -> float:
    total = sum(amounts.values())
    return amounts.get(source, 0) / total if total else 0.0


def _titled(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    figure.update_layout(title=title, xaxis_title=x, yaxis_title=y, **_LAYOUT)
    return figure
