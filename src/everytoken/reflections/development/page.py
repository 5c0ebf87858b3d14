"""Versions of a prompt side by side, as one page of HTML without a script: figures, and each row with every reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everytoken.html_pages import Markup, element, static_page
from everytoken.reflections.development.candidates import JudgedItem, Trial
from everytoken.reflections.development.comparison import Ranking, VersionFigures, figures_of, rank_versions
from everytoken.reflections.development.scores import DIMENSIONS
from everytoken.reflections.replies import parse_reply

_TEMPLATE = "page.html"


def versions_page(run: str, trials: Sequence[Trial]) -> str:
    """Return the page of versions that were tried on one sample."""
    figures = [figures_of(trial) for trial in trials]
    parts = [
        element("h1", f"Prompts of the run {run}"),
        *(element("p", line) for line in ranking_lines(rank_versions(trials))),
        element("h2", "Figures"),
        _figures(figures),
        element("h2", "Prompts"),
        _side_by_side([_prompt(trial) for trial in trials]),
        element("h2", "Rows"),
        *_rows(trials),
    ]
    return static_page(__package__, _TEMPLATE, *parts)


def ranking_lines(ranking: Ranking) -> Iterator[str]:
    """Yield sentences that say which version is best, which tie, and how often the best one is better."""
    if not ranking.best:
        yield "No row has scores of all versions, so none is best."
        return
    means = dict(ranking.order)
    first = ranking.best[0]
    rows = f"{ranking.rows:,} rows that all have scores for"
    if len(ranking.best) > 1:
        yield f"Tie of {' and '.join(ranking.best)}: each has a mean of {float(means[first]):.3f} on {rows}."
    else:
        yield f"Best is {first} with a mean of {float(means[first]):.3f} on {rows}."
    for name, (better, equal, worse) in ranking.against.items():
        yield (
            f"{first} against {name} ({float(means[name]):.3f}): better on {better:,} rows, equal on {equal:,}, "
            f"worse on {worse:,}."
        )


def _figures(figures: Sequence[VersionFigures]) -> Markup:
    metrics = [one.metrics() for one in figures]
    names = list(dict.fromkeys(name for one in metrics for name in one))
    rows = [[name, *(_number(one.get(name)) for one in metrics)] for name in names]
    head = element("tr", element("th", ""), *(element("th", one.name) for one in figures))
    return element("table", head, *(element("tr", *(element("td", cell) for cell in row)) for row in rows))


def _number(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def _prompt(trial: Trial) -> Markup:
    title = element("h4", trial.candidate.name)
    return Markup(title + element("pre", Markup("\n"), trial.candidate.builder.files["prompt"].text))


def _rows(trials: Sequence[Trial]) -> Iterator[Markup]:
    for number in sorted({row for trial in trials for row in trial.items}):
        first = next(trial.items[number] for trial in trials if number in trial.items)
        row = first.request.row
        yield element("h3", f"row {number:,}, safety score {row.safety_score}, {row.key}")
        yield element("pre", Markup("\n"), row.text[: first.request.shown_characters])
        yield _side_by_side([_reply(trial, trial.items.get(number)) for trial in trials])


def _reply(trial: Trial, item: JudgedItem | None) -> Markup:
    return Markup("".join([element("h4", trial.candidate.name), *_reply_parts(trial, item)]))


def _reply_parts(trial: Trial, item: JudgedItem | None) -> Iterator[Markup]:
    if item is None or item.reply is None:
        yield element("p", "No reply.")
        return
    fields = parse_reply(item.reply, item.request.required)
    for voice in trial.candidate.voices:
        yield element("h5", voice)
        yield element("p", fields[voice])
        if item.judgement is not None:
            scores = zip(DIMENSIONS, item.judgement.scores[voice], strict=True)
            yield element("p", ", ".join(f"{name} {score}" for name, score in scores), **{"class": "told"})
            yield element("p", item.judgement.reasoning[voice], **{"class": "told"})
    if item.judgement is None:
        yield element("p", "Not judged.", **{"class": "told"})
        return
    decision = "accepted" if item.judgement.is_accepted(trial.candidate.development) else "rejected"
    yield element("p", element("b", decision), f", mean {float(item.judgement.aggregate):.3f}")


def _side_by_side(cells: Sequence[Markup]) -> Markup:
    return element("div", *(element("section", cell) for cell in cells), **{"class": "side"})
