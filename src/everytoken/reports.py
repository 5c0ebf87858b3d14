"""The figures that people look at, as plotly figures made from counts: no figure needs the data again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from everytoken.corpus import TextAmounts
from everytoken.corpus.scoring import ALL_SOURCES, class_name
from everytoken.corpus.selection import MixtureRow
from everytoken.tokens.encoding import BANDS, BOTH

Counts = Mapping[str, float]

_GREY = "rgba(128, 128, 128, 0.35)"  # seen on a white and on a black page
_AXIS = {"gridcolor": _GREY, "zerolinecolor": _GREY, "linecolor": _GREY, "automargin": True}
_CLEAR = "rgba(0, 0, 0, 0)"
_TEMPLATE = {"layout": {"paper_bgcolor": _CLEAR, "plot_bgcolor": _CLEAR, "xaxis": _AXIS, "yaxis": _AXIS}}
_LAYOUT = {"template": _TEMPLATE, "font": {"size": 14}, "legend_title_text": "", "margin": {"t": 90}}


def ingestion_figure(
    histogram: Counts, by_source: Mapping[str, TextAmounts], mixture: Sequence[MixtureRow] | None
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
    colour_of = source_colours(sources)
    if mixture is None:
        amounts = {source: by_source[source]["characters"] for source in sources}
        shares = {"share of characters": [_share(amounts, source) for source in sources]}
    else:
        sources = [row["source"] for row in mixture]
        shares = {
            "intended share of tokens": [row["weight"] for row in mixture],
            "realised": [row["realised_weight"] for row in mixture],
        }
    own = [colour_of.get(source, _OTHERS_COLOUR) for source in sources]
    for colour, (name, values) in zip((_OTHERS_COLOUR, own)[-len(shares) :], shares.items(), strict=True):
        text = [f"{value:.2%}" for value in values]
        panels.add_bar(x=sources, y=values, name=name, text=text, marker_color=colour, row=1, col=2)
    panels.update_xaxes(title_text="characters", row=1, col=1)
    panels.update_yaxes(title_text="documents", row=1, col=1)
    panels.update_yaxes(tickformat=".0%", row=1, col=2)
    title = _title("Documents of the corpus", "How long documents are, and how much each source gives.")
    return _finished(panels, title, barmode="group")


def score_figure(table: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Share of each safety class by source: over all rows (plain), and over each id once (hatched).

    Args:
        table: lines of `everytoken.corpus.scoring.report.score_table`.
    """
    figure = go.Figure()
    sources = sorted({line["source"] for line in table} - {ALL_SOURCES})
    colour_of = source_colours(sources)
    for counted, hatching, which in (("rows", "", "all rows"), ("once", "/", "each id once")):
        for source in sources:
            by_class = {line["class"]: line[counted] for line in table if line["source"] == source}
            total = sum(by_class.values())
            figure.add_bar(
                x=[class_name(k) for k in by_class],
                y=[count / total if total else 0.0 for count in by_class.values()],
                customdata=list(by_class.values()),
                hovertemplate=f"%{{y:.2%}} (%{{customdata:,}} documents)<extra>{_shown(source)}, {which}</extra>",
                name=_shown(source),
                marker={"color": colour_of[source], "pattern": {"shape": hatching}},
                legendgroup=counted,
                legendgrouptitle={"text": which},
            )
    figure.update_yaxes(type="log", tickformat=".1%")
    figure.update_layout(legend_groupclick="toggleitem")
    title = _title("Safety scores by source", "Which share of the documents of a source is in each class.")
    return _titled(figure, title, "safety class", "share of the source's documents (log)")


def mixture_figure(strata: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Sources, safety scores and, where there are any, strata: shares before the draw and of each split, stacked.

    ``drawn`` is annotated and unannotated together, whose shares are the intended ones. Scores are in their order,
    sources and strata the largest first, by their share before or of what is drawn; beyond `_MOST_SHOWN` they are one.

    Args:
        strata: lines of `everytoken.corpus.sampling.report.strata_table`.
    """
    panels = {group: lines for group in _PANELS if (lines := [line for line in strata if line["group"] == group])}
    titles = [_PANELS[group][0] for group in panels]
    figure = make_subplots(cols=max(1, len(panels)), subplot_titles=titles, shared_yaxes=True)
    colour_of = source_colours([_shown(line["source"]) for line in panels.get("source", ())])
    for number, (group, lines) in enumerate(panels.items(), start=1):
        title, key = _PANELS[group]
        totals = _tokens(lines)
        for i, (name, members) in enumerate(_by_size(lines, group, key)):
            tokens = _tokens(members)
            shares = {bar: tokens[bar] / totals[bar] if totals[bar] else 0.0 for bar in _BARS}
            if all(_is_given(line["intended_share"]) for line in members):
                shares["intended"] = sum(line["intended_share"] for line in members)
                tokens["intended"] = shares["intended"] * totals["drawn"]
            figure.add_bar(
                x=list(shares),
                y=list(shares.values()),
                customdata=list(tokens.values()),
                hovertemplate="%{y:.2%} (%{customdata:,.0f} estimated tokens)",
                name=name,
                marker={"color": _colour_of_bar(group, i, colour_of.get(name))},
                text=[f"{share:.1%}" if share >= _LEAST_WRITTEN else "" for share in shares.values()],
                textangle=0,
                legendgroup=group,
                legendgrouptitle={"text": title},
                row=1,
                col=number,
            )
    figure.update_yaxes(tickformat=".0%", range=[0, 1])
    figure.update_yaxes(title_text="share of estimated tokens", col=1)
    figure.update_layout(barmode="stack", legend={"groupclick": "toggleitem", "traceorder": "grouped"})
    title = _title("Mixture before and after the draw", "Of what the corpus is made, and each split of it.")
    return _finished(figure, title)


def training_figure(
    series: Mapping[str, Sequence[float | None]], terms: Sequence[str] = (), smooth: int = 20
) -> go.Figure:
    """Curves over optimiser steps: loss, its running mean over ``smooth`` steps, held-out bits per byte, loss terms.

    Args:
        series: columns of one length: ``step``, ``loss`` (None for a skipped step), and any of
            ``held_out_bits_per_byte.<source>`` and, of all sources, ``held_out_bits_per_byte`` (None where nothing was
            measured). Steps are numbered from 0; the figure counts those that are done.
        terms: further terms of the loss, columns of ``series``.
    """
    total = "held_out_bits_per_byte"
    curves = [name for name in series if name.startswith(total)]
    titles = ["Training loss", *["Held-out documents"] * bool(curves), *["Further terms of the loss"] * bool(terms)]
    figure = make_subplots(cols=len(titles), subplot_titles=titles)
    steps, losses = _points(series, "loss")
    means = [sum(losses[max(0, k + 1 - smooth) : k + 1]) / min(k + 1, smooth) for k in range(len(losses))]
    line = {"color": _COLOURS[0]}
    figure.add_scatter(x=steps, y=losses, name="loss", mode="lines", line={**line, "width": 1}, opacity=0.35)
    figure.add_scatter(x=steps, y=means, name=f"loss, mean of {smooth} steps", mode="lines", line=line)
    colour_of = source_colours([name.removeprefix(f"{total}.") for name in curves if name != total])
    for name in curves:
        x, y = _points(series, name)
        shown = "all sources" if name == total else name.removeprefix(f"{total}.")
        line = {"color": colour_of.get(shown, _OTHERS_COLOUR) if name != total else "#808080"}
        figure.add_scatter(x=x, y=y, name=shown, mode="lines+markers", line=line, row=1, col=2)
    for number, name in enumerate(terms, 1):
        x, y = _points(series, name)
        figure.add_scatter(x=x, y=y, name=name, mode="lines", line={"color": _colour(number)}, row=1, col=len(titles))
    figure.update_xaxes(title_text="after so many steps")
    figure.update_yaxes(title_text="nats per token", row=1, col=1)
    if curves:
        figure.update_yaxes(title_text="bits per byte", row=1, col=2)
    sentence = "How the loss falls, on what is trained on and on documents that are held out."
    return _finished(figure, _title("Training", sentence))


def tokenization_figure(table: pd.DataFrame, histograms: Mapping[str, Sequence[int]]) -> go.Figure:
    """Tokens per byte by source and by language band, and the lengths of documents; every split beside the other.

    Sources are in the order of their bytes, the largest first; beyond `_MOST_SHOWN` they are in the table alone.

    Args:
        table: of `tokenization_table`.
        histograms: of `length_histograms`.
    """
    titles = ("Sources", "Language bands", "Document lengths")
    figure = make_subplots(cols=3, subplot_titles=titles, column_widths=[0.4, 0.25, 0.35])
    both = table[table["split"] == BOTH]
    sources = both[both["group"] == "source"].sort_values("utf8_bytes", ascending=False, kind="stable")["source"]
    shown = {"source": sources[:_MOST_SHOWN].tolist(), "band": [band for band in BANDS if band in set(both["band"])]}
    bins = [
        k for k in range(max(map(len, histograms.values()), default=0)) if any(_at(h, k) for h in histograms.values())
    ]
    bins = list(range(bins[0], bins[-1] + 1)) if bins else []
    for colour, (split, histogram) in zip(_COLOURS, histograms.items(), strict=False):
        style = {"name": split, "marker_color": colour, "legendgroup": split}
        for column, (group, names) in enumerate(shown.items(), start=1):
            lines = table[(table["split"] == split) & (table["group"] == group)].set_index(group)
            lines = lines.reindex(names)
            figure.add_bar(
                x=[name or "(empty name)" for name in names],
                y=lines["tokens_per_byte"].tolist(),
                customdata=lines[["documents", "chars_per_token", "share_at_cap"]].to_numpy().tolist(),
                hovertemplate="%{y:.4f} tokens a byte, %{customdata[1]:.3f} characters a token<br>"
                "%{customdata[0]:,} documents, %{customdata[2]:.1%} at the cap",
                showlegend=column == 1,
                row=1,
                col=column,
                **style,
            )
        lengths = {f"{2**k:,}-{2 ** (k + 1) - 1:,}" if k else "1": _at(histogram, k) for k in bins}
        figure.add_bar(x=list(lengths), y=list(lengths.values()), showlegend=False, row=1, col=3, **style)
    figure.update_yaxes(title_text="tokens per byte (fewer is better)", col=1)
    figure.update_yaxes(matches="y", col=2)
    figure.update_xaxes(type="category")  # a source may be named by a number
    figure.update_yaxes(title_text="documents", col=3)
    figure.update_xaxes(title_text="content tokens before the cut", col=3)
    title = _title("Tokens of the drawn documents", "How many tokens a byte of text takes, and how long documents are.")
    return _finished(figure, title, barmode="group")


def _at(histogram: Sequence[int], k: int) -> int:
    return histogram[k] if k < len(histogram) else 0


def _points(series: Mapping[str, Sequence[float | None]], name: str) -> tuple[list[float], list[float]]:
    """Return after how many steps something was measured, and what."""
    points = [
        (step + 1, y)
        for step, y in zip(series["step"], series[name], strict=True)
        if step is not None and y is not None
    ]
    return [step for step, _ in points], [y for _, y in points]


def bits_per_byte_figure(
    by_source: Mapping[str, Mapping[str, object]], loops: Mapping[str, Any] | None = None
) -> go.Figure:
    """Held-out bits per byte by source, model beside unigram model: lower is better.

    ``loops``: `everytoken.training.evaluation.LoopFigures` of a model that loops a block, shown in panels below.
    """
    sources = sorted(by_source)
    figure = go.Figure() if loops is None else _loop_panels(loops)
    place = {} if loops is None else {"row": 1, "col": 1}
    for key, name in (("unigram_bits_per_byte", "unigram model"), ("bits_per_byte", "trained model")):
        values = [by_source[source][key] for source in sources]
        figure.add_bar(x=sources, y=values, name=name, text=[f"{value:.3f}" for value in values], **place)
    figure.update_layout(barmode="group")
    title = _title("Held-out documents", "What a byte of documents costs that the model was not trained on.")
    return _titled(figure, title, "source", "bits per byte (lower is better)")


def memorisation_figure(figures: Mapping[str, Any]) -> go.Figure:
    """Exposure of triggers and continuations by condition, with the controls' 95th percentile; recall of facts.

    Args:
        figures: `everytoken.training.memorisation.MemorisationFigures`.
    """
    facts, conditions = figures["facts"], figures["conditions"]
    titles = ["Exposure by condition", *["Recall of facts by coverage"] * bool(facts)]
    panels = make_subplots(cols=len(titles), subplot_titles=titles)
    names = [one["condition"] for one in conditions]
    exposures = {
        "trigger": [None if one["trigger"] is None else one["trigger"]["exposure"] for one in conditions],
        "continuation": [one["continuation"]["exposure"] for one in conditions],
    }
    for number, (name, values) in enumerate(exposures.items()):
        panels.add_bar(x=names, y=values, name=name, marker_color=_colour(number), row=1, col=1)
    bound = figures["controls"]["trigger_exposure_quantile"]
    line = {"color": _OTHERS_COLOUR, "dash": "dash"}
    panels.add_scatter(
        x=names, y=[bound] * len(names), name="random triggers, 95th percentile", mode="lines", line=line, row=1, col=1
    )
    panels.update_yaxes(title_text="bits", row=1, col=1)
    if facts:
        places = sorted({one["fraction"] for one in facts if one["fraction"] is not None})
        for number, (injected, name) in enumerate(((True, "facts in the data"), (False, "facts in no data")), 2):
            asked = [one for one in facts if one["injected"] is injected]
            groups = [[one["recalled"] for one in asked if one["fraction"] == place] for place in (None, *places)]
            values = [sum(group) / len(group) if group else None for group in groups]
            labels = ["no trigger", *map(str, places)]
            panels.add_bar(x=labels, y=values, name=name, marker_color=_colour(number), row=1, col=2)
        panels.update_yaxes(title_text="share of prompts", tickformat=".0%", row=1, col=2)
        panels.update_xaxes(title_text="coverage behind the trigger of which is asked", type="category", row=1, col=2)
    title = _title("Memorisation", "How much better than chance the model knows what few documents say.")
    return _finished(panels, title, barmode="group")


def _loop_panels(loops: Mapping[str, Any]) -> go.Figure:
    """Return panels of what the loops of a model do, below an empty row."""
    titles = (
        *("", "Loss by number of loops", "Loops that positions take"),
        *("Load of experts by loop", "Largest load over the mean", "Loops by token"),
    )
    whole_row = [{"colspan": 2}, None]
    figure = make_subplots(rows=4, cols=2, specs=[whole_row, [{}, {}], [{}, {}], whole_row], subplot_titles=titles)
    figure.add_scatter(x=[*loops["loss"]], y=[*loops["loss"].values()], name="nats a token", row=2, col=1)
    figure.add_bar(x=[*loops["halted_after"]], y=[*loops["halted_after"].values()], name="positions", row=2, col=2)
    for expert in next(iter(loops["load"].values())):
        shares = [load[expert] for load in loops["load"].values()]
        figure.add_bar(x=[*loops["load"]], y=shares, name=f"expert {expert}", row=3, col=1)
    figure.add_scatter(x=[*loops["load_ratio"]], y=[*loops["load_ratio"].values()], name="max / mean", row=3, col=2)
    tokens = loops["by_token"]
    labels, means = [repr(token["token"]) for token in tokens], [token["loops"] for token in tokens]
    figure.add_bar(x=labels, y=means, name="mean loops", row=4, col=1)
    return figure.update_layout(height=1200)


_COLOURS = (  # as many as `_MOST_SHOWN`
    *("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d"),
    *("#ff9da6", "#1f3b5c", "#a6d96a", "#6a3d9a"),
)
_OTHERS_COLOUR = "#bab0ac"
_SCORE_COLOURS = ("#fee5d9", "#fcbba1", "#fc9272", "#fb6a4a", "#de2d26", "#a50f15")  # in order, and of no source

_MOST_SHOWN = 12
_OTHERS = "all others"
_LEAST_WRITTEN = 0.03  # share of a bar in which its number has room

# group of lines: title of its panel, and the column of its names
_PANELS = {
    "source": ("Sources", "source"),
    "score": ("Safety scores", "safety_score"),
    "stratum": ("Strata", "stratum"),
}
_BARS = {
    "before": ("before",),
    "annotated": ("annotated",),
    "unannotated": ("unannotated",),
    "held out": ("held_out",),
    "drawn": ("annotated", "unannotated"),
}


def _by_size(lines: Sequence[Mapping[str, Any]], group: str, key: str) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return names and lines as they are shown: in the order of `mixture_figure`, the small ones together."""
    if group == "score":
        return [(f"score {line[key]}", [line]) for line in lines]
    ordered = sorted(lines, key=lambda line: -max(line["share_before"], line["share_after"]))
    shown = [(_shown(line[key]), [line]) for line in ordered[:_MOST_SHOWN]]
    rest = ordered[_MOST_SHOWN:]
    return [*shown, (_OTHERS, rest)] if rest else shown


def _tokens(lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the estimated tokens of each of `_BARS`."""
    return {bar: sum(line[f"{split}_tokens"] for line in lines for split in splits) for bar, splits in _BARS.items()}


def _shown(name: str) -> str:
    return name or "(empty name)"


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _colour_of_bar(group: str, number: int, of_source: str | None) -> str:
    if group == "score":
        return _SCORE_COLOURS[min(number, len(_SCORE_COLOURS) - 1)]
    return _OTHERS_COLOUR if number == _MOST_SHOWN else of_source or _colour(number)


def _is_given(number: float | None) -> bool:
    return number is not None and not math.isnan(number)


def _share(amounts: Mapping[str, float], source: str) -> float:
    total = sum(amounts.values())
    return amounts.get(source, 0) / total if total else 0.0


def source_colours(sources: Sequence[str]) -> dict[str, str]:
    """Return the colour of each source: the same in all figures of one corpus."""
    return {source: _colour(number) for number, source in enumerate(sorted(set(sources)))}


def _title(title: str, sentence: str) -> str:
    return f"{title}<br><sub>{sentence}</sub>"


def _titled(figure: go.Figure, title: str, x: str, y: str) -> go.Figure:
    return _finished(figure, title, xaxis_title=x, yaxis_title=y)


def _finished(figure: go.Figure, title: str, **layout: Any) -> go.Figure:
    """Return a figure with its title, and the titles of its panels below that: kedro-viz has its own margins."""
    figure.for_each_yaxis(lambda axis: axis.update(domain=[_PANELS_HEIGHT * y for y in axis.domain or (0, 1)]))
    figure.for_each_annotation(lambda panel: panel.update(y=_PANELS_HEIGHT * panel.y, yanchor="bottom"))
    return figure.update_layout(title=title, **layout, **_LAYOUT)


_PANELS_HEIGHT = 0.92
