"""The results of a sweep: one table, as CSV and printed, and one plot."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from everytoken.cli.report import DataTable, Paragraph, Picture, Section, dot_chart, html_elements
from everytoken.cli.sweep.grid import GridPoint
from everytoken.cli.sweep.points import PointResult
from everytoken.html_pages import element, static_page
from everytoken.tokens.streams import kinds_by_name

Results = Sequence[tuple[GridPoint, PointResult]]
_MEASURES = {
    "bits_per_byte": "held-out bits per byte",
    "training.mean_loss_last_tenth": "nats a token, last tenth of the training",
    "pretraining.mean_loss_last_tenth": "nats a token, last tenth of the training",
}
_DIGESTS = ("documents", "tokenizer", *(kind.dataset for kind in kinds_by_name()), "checkpoint")
_SHOWN_DIGITS = 8


def table_csv(results: Results) -> str:
    """Return a row for each point: its name, values, figures, stages and seconds that it made itself, digests."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    parameters, figures = _columns(results)
    made = [name for name in _DIGESTS if any(name in result.digests for _, result in results)]
    table.writerow(["point", *parameters, *figures, "stages_made", "seconds", *(f"digest.{one}" for one in made)])
    for point, result in results:
        values = [point.shown[name] for name in parameters]
        numbers = [result.metrics.get(name, "") for name in figures]
        costs = [len(result.made), round(sum(result.made.values()), 2)]
        table.writerow([point.name, *values, *numbers, *costs, *(result.digests.get(one, "") for one in made)])
    return text.getvalue()


def table_section(results: Results, title: str) -> Section:
    """Return the table as it is printed: values, figures of all sources, stages made, seconds, checkpoint."""
    parameters, figures = _columns(results)
    shown = [name for name in figures if not name.startswith("bits_per_byte.")]
    head = ("point", *parameters, *shown, "stages made", "seconds", "checkpoint")
    rows = []
    for point, result in results:
        numbers = [_number(result.metrics.get(name)) for name in shown]
        costs = (str(len(result.made)), f"{sum(result.made.values()):.1f}")
        digest = result.digests.get("checkpoint", "")[:16]
        values = [_short(point.shown[name]) for name in parameters]
        rows.append((point.name[:_SHOWN_DIGITS], *values, *numbers, *costs, digest))
    return Section(title, [DataTable(head, rows, texts=1 + len(parameters))])


def sweep_page(results: Results, title: str) -> str:
    """Return the table and the plot as one page of HTML."""
    elements = html_elements([table_section(results, "Points"), Section("Plot", [_plot(results)])])
    return static_page("everytoken.cli.report", "page.html", element("h1", title), *elements)


def _plot(results: Results) -> Picture | Paragraph:
    """Return the first figure that all points have, over the first parameter whose values are numbers."""
    measure = next((one for one in _MEASURES if all(one in result.metrics for _, result in results)), None)
    if measure is None:
        return Paragraph("No figure to plot: the job of the environment evaluates and trains no model.")
    parameters, _ = _columns(results)
    across = next((one for one in parameters if all(_is_number(point.values[one]) for point, _ in results)), None)
    others = [one for one in parameters if one != across]
    curves: dict[str, list[tuple[float, float]]] = {}
    for number, (point, result) in enumerate(results, start=1):
        name = ", ".join(f"{one.rpartition('.')[2]} {_short(point.shown[one])}" for one in others) or "all points"
        place = float(number) if across is None else float(point.values[across])
        curves.setdefault(name, []).append((place, result.metrics[measure]))
    x = across or "number of the point"
    return Picture(dot_chart(curves, x, _MEASURES[measure]), f"{_MEASURES[measure]} of each point, over {x}.")


def _columns(results: Results) -> tuple[list[str], list[str]]:
    parameters = list(dict.fromkeys(name for point, _ in results for name in point.values))
    figures = list(dict.fromkeys(name for _, result in results for name in result.metrics))
    return parameters, figures


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4f}"


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
