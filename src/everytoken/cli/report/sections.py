"""The sections of a report, each from what a stage left; a section whose stage was not made says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from everytoken.cli.report.blocks import DataTable, Paragraph, Picture, Quotation, ReportBlock, Section
from everytoken.cli.report.card import NOT_MEASURED, card_sections, spent
from everytoken.cli.report.charts import bar_chart, line_chart
from everytoken.cli.report.left import RunLeft, UnreadableReport, without_paths
from everytoken.corpus import ExpectParameters
from everytoken.corpus.scoring import ALL_SOURCES, ClassificationStatistics
from everytoken.datasets import amounts_set_aside
from everytoken.tokens.encoding import share_at_cap
from everytoken.tokens.tokenizer import TokenizerIds

_MOST_SOURCES = 40  # rows of a table; the files of a run have all
_MOST_SAMPLES = 8
_MOST_CHARACTERS = 1_000
_HISTORIES = {
    "training_history": "Training",
    "pretraining_history": "Pretraining",
    "finetuning_history": "Finetuning",
}


def report_sections(left: RunLeft) -> list[Section]:
    """Return all sections: first those of the card."""
    told: dict[str, Callable[[RunLeft], Iterator[ReportBlock]]] = {
        "Contract": _contract,
        "Stages": _stages,
        "Published figures": _published,
        "Mixture": _mixture,
        **({"Languages": _languages} if "language_report" in left.reports else {}),
        "Scores": _scores,
        "Cuts": _cuts,
        "Curves": _curves,
        "Samples": _samples,
        **({"Memorisation": _memorisation} if "memorisation_metrics" in left.reports else {}),
        "Costs by stage": _costs,
        "All digests": _digests,
    }
    return [*card_sections(left), *(Section(title, [*blocks(left)]) for title, blocks in told.items())]


def _contract(left: RunLeft) -> Iterator[ReportBlock]:
    yield Paragraph("What the parameters say that the job makes, as everytoken plan prints it.")
    yield DataTable(("", ""), left.contract, texts=2)


def _stages(left: RunLeft) -> Iterator[ReportBlock]:
    rows = []
    for row in left.stages.rows:
        amount = "" if row.tokens is None else f"{row.tokens:,.0f} {row.counted}"
        count = f"{row.rows:,} {row.unit}" if row.unit else ""
        rows.append((row.name, row.outdated or "made", count, amount))
    rows += [(name, "missing", "", "") for name in left.stages.unmade]
    rows += [(name, f"cannot be read: {without_paths(why)}", "", "") for name, why in left.stages.unreadable.items()]
    yield DataTable(("stage", "state", "rows", "tokens"), rows, texts=2)
    if missing := left.missing(*left.stages.unmade):
        yield Paragraph(missing)


def _published(left: RunLeft) -> Iterator[ReportBlock]:
    expect = left.groups.get("expect")
    compared = expect.compared(_found(left)) if isinstance(expect, ExpectParameters) else []
    if not compared:
        yield Paragraph("The environment names no published figures (parameters_expect.yml).")
        return
    rows = [(one.name, one.expected, one.found, one.verdict) for one in compared]
    yield DataTable(("figure", "published", "here", "verdict"), rows, texts=4)
    if isinstance(expect, ExpectParameters) and expect.because:
        yield Paragraph(f"{expect.because}.")


def _found(left: RunLeft) -> dict[str, Any]:
    """Return the values that `ExpectParameters` may name, of those stages that are made."""
    rows = {row.name: row for row in left.stages.rows}
    found: dict[str, Any] = {}
    for split in ("annotated", "unannotated"):
        if f"{split}_documents" in rows:
            found[f"{split}_rows"] = rows[f"{split}_documents"].rows
    if "tokenizer" in left.stages.read:
        found["tokenizer_sha256"] = left.stages.read["tokenizer"].statistics_as(TokenizerIds)["sha256"]
    if "classifications" in left.stages.read:
        stored = left.stages.read["classifications"]
        found["scored_ids"] = stored.statistics_as(ClassificationStatistics)["classifications"]
    if isinstance(metrics := left.reports.get("annotation_metrics"), Mapping):
        found["scored_rows"] = metrics["counts"]["rows_scored"]
    if isinstance(plan := left.reports.get("shard_plan"), Mapping):
        found["shards"], order = plan["n_total"], plan["order"]
        if plan["parameters"]["offset"] == 0:  # the plan begins with the first of the order of all shards
            found["first_shards"] = order
    table = _table(left, "tokenization_report")
    if table is not None and "annotated" in set(table["split"]):
        found["share_at_cap"] = share_at_cap(table, "annotated")
    sources = left.groups["ingestion"].active_sources if "ingestion" in left.groups else {}
    revisions = {name: one.upstream.revision for name, one in sources.items() if one.upstream.kind == "hub"}
    if revisions and "shard_plan" in left.reports:
        found["revisions"] = revisions
    return found


def _table(left: RunLeft, name: str) -> Any:
    """Return a table of a report, or None."""
    table = left.reports.get(name)
    return None if isinstance(table, UnreadableReport) else table


def _unavailable(left: RunLeft, name: str, otherwise: str) -> Paragraph:
    report = left.reports.get(name)
    if isinstance(report, UnreadableReport):
        return Paragraph(f"{name} cannot be read: {report.reason}")
    return Paragraph(left.missing(name) or otherwise)


def _mixture(left: RunLeft) -> Iterator[ReportBlock]:
    table = _table(left, "strata_report")
    if table is None:
        yield _unavailable(left, "strata_report", "This job draws no splits by score.")
        return
    lines = [line for line in table.to_dict("records") if line["group"] == "source"]
    lines.sort(key=lambda line: (-line["share_before"], line["source"]))
    intended = any(line["intended_share"] == line["intended_share"] for line in lines)  # NaN: none was named
    head = ("source", "documents", "annotated", "unannotated", "held out", "share before", "share after")
    rows = []
    for line in lines[:_MOST_SOURCES]:
        counts = [f"{int(line[f'{kind}_rows']):,}" for kind in ("before", "annotated", "unannotated", "held_out")]
        shares = [f"{line[name]:.2%}" for name in ("share_before", "share_after")]
        rows.append((str(line["source"]), *counts, *shares, *([_share(line["intended_share"])] if intended else [])))
    yield DataTable((*head, *(["intended"] if intended else [])), rows)
    yield from _more(len(lines), "strata_report.csv")
    groups = {
        str(line["source"]): {"before the draw": line["share_before"], "drawn": line["share_after"]}
        for line in lines[:8]
    }
    yield Picture(
        bar_chart(groups, "share of estimated tokens"), "Share of each source before and after the draw, in tokens."
    )


def _share(value: float) -> str:
    return f"{value:.2%}" if value == value else ""


def _more(count: int, file: str) -> Iterator[ReportBlock]:
    if count > _MOST_SOURCES:
        yield Paragraph(f"{count - _MOST_SOURCES:,} more are in {file}.")


def _languages(left: RunLeft) -> Iterator[ReportBlock]:
    table = _table(left, "language_report")
    if table is None:
        yield _unavailable(left, "language_report", "")
        return
    lines = table.to_dict("records")
    rows = [
        (
            *(line["source"] if line["group"] == "source" else ALL_SOURCES, line["language"]),
            *(f"{int(line['documents']):,}", f"{int(line['characters']):,}", f"{line['share']:.2%}"),
        )
        for line in [*(line for line in lines if line["group"] == "all"), *lines]
    ]
    yield DataTable(("source", "language", "documents", "characters", "share of characters"), rows[:_MOST_SOURCES], 2)
    yield from _more(len(rows), "language_report.csv")


def _scores(left: RunLeft) -> Iterator[ReportBlock]:
    table = _table(left, "score_report")
    if table is None:
        yield _unavailable(left, "score_report", "Nothing is scored in this job.")
        return
    lines = table.to_dict("records")
    classes = sorted({(int(line["class"]), str(line["class_name"])) for line in lines})
    sources = [*sorted({line["source"] for line in lines} - {ALL_SOURCES}), ALL_SOURCES]
    counts = {(line["source"], int(line["class"])): int(line["rows"]) for line in lines}
    rows = [(one, *(f"{counts.get((one, number), 0):,}" for number, _ in classes)) for one in sources[-_MOST_SOURCES:]]
    yield DataTable(("documents by class", *(name for _, name in classes)), rows)


def _cuts(left: RunLeft) -> Iterator[ReportBlock]:
    rows = [(words, f"{count:,.0f}") for count, words in amounts_set_aside(left.stages.read)]
    if rows:
        yield Paragraph("What is in no later stage, and why.")
        yield DataTable(("set aside or cut", "amount"), rows)
    else:
        yield Paragraph("Nothing was set aside or cut in the stages that are made.")
    table = _table(left, "tokenization_report")
    if table is None:
        yield _unavailable(left, "tokenization_report", "This job writes no report of its tokens.")
        return
    lines = [line for line in table.to_dict("records") if line["group"] == "source"]
    shown = [
        (line["split"], line["source"], f"{int(line['tokens']):,}", f"{int(line['cut_tokens']):,}", _cut_share(line))
        for line in lines[:_MOST_SOURCES]
    ]
    yield DataTable(("split", "source", "tokens kept", "tokens cut", "share cut"), shown, texts=2)
    yield from _more(len(lines), "tokenization_report.csv")


def _cut_share(line: Mapping[str, Any]) -> str:
    full = int(line["full_tokens"])
    return f"{int(line['cut_tokens']) / full:.1%}" if full else ""


_STEPS_DONE = "after so many steps"


def _curves(left: RunLeft) -> Iterator[ReportBlock]:
    for name, title in _HISTORIES.items():
        history = left.reports.get(name)
        if not isinstance(history, Mapping):
            if missing := left.missing(name):
                yield Paragraph(missing)
            continue
        loss = _points(history, "loss")
        yield Picture(
            line_chart({"loss": loss}, _STEPS_DONE, "nats a token"),
            f"{title}: the loss of each step that is done, as the log counts them.",
        )
        measured = sorted(column for column in history if column.startswith("held_out_bits_per_byte."))
        curves = {column.partition(".")[2]: _points(history, column) for column in measured}
        if any(curves.values()):
            says = f"{title}: bits per byte of held-out documents by source; lower is better."
            yield Picture(line_chart(curves, _STEPS_DONE, "bits per byte"), says)
            steps = sorted({step for points in curves.values() for step, _ in points})
            rows = [
                (f"{step:,.0f}", *(f"{dict(points).get(step, float('nan')):.3f}" for points in curves.values()))
                for step in steps[-_MOST_SOURCES:]
            ]
            yield DataTable((_STEPS_DONE, *curves), rows, texts=0)
    if not any(name in left.reports or name in left.makers for name in _HISTORIES):
        yield Paragraph("This job trains no model.")


def _points(history: Mapping[str, Sequence[Any]], name: str) -> list[tuple[float, float]]:
    pairs = zip(history["step"], history[name], strict=True) if name in history else ()
    return [(float(step + 1), float(value)) for step, value in pairs if value is not None and value == value]


def _samples(left: RunLeft) -> Iterator[ReportBlock]:
    generated, replies = left.reports.get("generated_samples"), left.reports.get("finetuned_samples")
    for sample in generated[:_MOST_SAMPLES] if isinstance(generated, list) else ():
        prompt = sample.get("prompt") or "(an empty prompt)"
        yield Quotation(f"After {prompt[:120]!r}, ended by {sample.get('finish')}", _cut(str(sample.get("text", ""))))
    for sample in replies[:_MOST_SAMPLES] if isinstance(replies, list) else ():
        prompt = str(sample.get("prompt", ""))[:120]
        yield Quotation(f"To {prompt!r}, before the finetuning", _cut(str(sample.get("before", ""))))
        yield Quotation(f"To {prompt!r}, after it", _cut(str(sample.get("after", ""))))
    if not isinstance(generated, list) and not isinstance(replies, list):
        yield _unavailable(left, "generated_samples", "This job generates no texts.")


def _memorisation(left: RunLeft) -> Iterator[ReportBlock]:
    figures = left.reports["memorisation_metrics"]
    if not isinstance(figures, Mapping):
        yield _unavailable(left, "memorisation_metrics", "")
        return
    controls = figures["controls"]
    yield Paragraph(
        f"Exposure in bits among {controls['triggers']:,} random triggers and {controls['texts']:,} texts that "
        f"were not trained on. The 95th percentile of random triggers is {controls['trigger_exposure_quantile']:.2f}."
    )
    rows = []
    for name, one in figures["conditions"].items():
        trigger, continuation = one.get("trigger", {}), one["continuation"]
        numbers = (
            *(one.get("fraction"), trigger.get("rank"), trigger.get("exposure")),
            *(continuation["exposure"], continuation.get("gain")),
        )
        rows.append((name, *("" if number is None else f"{number:.4g}" for number in numbers)))
    head = ("condition", "coverage", "rank of the trigger", "exposure", "of continuations", "gain, nats a token")
    yield DataTable(head, rows[:_MOST_SOURCES], 1)
    asked = [(fact, place, one) for fact, places in figures["facts"].items() for place, one in places.items()]
    if asked:
        lines = [(fact, place, f"{one['recalled']:.0%}", f"{one['exposure']:.2f}") for fact, place, one in asked]
        yield DataTable(("fact", "asked", "recalled", "exposure of the value"), lines[:_MOST_SOURCES], 2)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _costs(left: RunLeft) -> Iterator[ReportBlock]:
    if not left.costs:
        yield Paragraph(NOT_MEASURED)
        return
    yield Paragraph(
        "What each stage took when it last made something. A stage that a later run found made keeps its row; of one "
        "that was killed and resumed, the row covers the run that resumed it."
    )
    rows = [
        (
            *(one.stage, spent(one.seconds)),
            "not measured" if one.cpu_seconds is None else f"{one.cpu_seconds / 3600:.4f}",
            f"{one.gpu_seconds / 3600:.4f}",
            "not measured" if one.peak_bytes is None else f"{one.peak_bytes / 1e6:,.0f}",
        )
        for one in left.costs
    ]
    yield DataTable(("stage", "clock", "CPU-hours", "GPU-hours", "MB of memory"), rows)


def _digests(left: RunLeft) -> Iterator[ReportBlock]:
    rows = [(row.name, row.digest) for row in left.stages.rows]
    yield DataTable(("stage", "root digest"), rows, texts=2) if rows else Paragraph("Nothing has been made.")
