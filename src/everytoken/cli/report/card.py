"""The card of a run: data, model, bits per byte, time and digests on one short page.

It is the beginning of a report, what a command prints at its end, and a model card as Hugging Face reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from everytoken.cli.report.blocks import DataTable, Paragraph, ReportBlock, Section, markdown
from everytoken.cli.report.left import RunLeft, UnreadableReport
from everytoken.configuration import StageCost
from everytoken.corpus.scoring import ALL_SOURCES
from everytoken.tokens.streams import kinds_by_name

_DIGEST = 16  # characters of one that are shown
_MODELS = ("checkpoint", "pretrained_checkpoint", "finetuned_checkpoint")
_TRAINED_BY = {"training": "training_metrics", "pretraining": "pretraining_metrics", "finetuning": "finetuning_metrics"}
_ON_THE_CARD = (
    *("documents", "annotated_documents", "unannotated_documents", "held_out_documents", "tokenizer"),
    *(kind.dataset for kind in kinds_by_name()),
    *(*_MODELS, "held_out_evaluation"),
)


def card_sections(left: RunLeft) -> list[Section]:
    """Return the sections of the card."""
    return [
        Section("Data", [_pairs(_data(left), left.missing("documents"))]),
        Section("Model", [_pairs(_model(left), left.missing(*_MODELS))]),
        Section("Bits per byte", [*held_out_table(left)]),
        Section("Time", [_pairs(_time(left.costs), "" if left.costs else NOT_MEASURED)]),
        Section("Digests", [_pairs(_digests(left), "Nothing has been made.")]),
    ]


NOT_MEASURED = "Not measured: the stages were made before costs were recorded, or nothing was made."


def model_card(left: RunLeft) -> str:
    """Return the card as Markdown with the YAML head of a model card on the Hugging Face hub."""
    head = yaml.safe_dump(_head(left), sort_keys=False, allow_unicode=True, width=10**6)
    return f"---\n{head}---\n\n# {_title(left)}\n\n{markdown(card_sections(left))}"


def _title(left: RunLeft) -> str:
    return f"everytoken {left.version}: {left.env}"


def _head(left: RunLeft) -> dict[str, Any]:
    head: dict[str, Any] = {
        "library_name": "everytoken",
        "pipeline_tag": "text-generation",
        "tags": ["everytoken", "pretraining", "token-provenance"],
    }
    figures = _figures(left)
    if figures is not None:
        result = {
            "task": {"type": "text-generation", "name": "Text Generation"},
            "dataset": {"type": "held_out_documents", "name": f"held-out documents of {left.env}"},
            "metrics": [
                {"type": "bits_per_byte", "name": "bits per byte", "value": round(figures["total"]["bits_per_byte"], 6)}
            ],
        }
        head["model-index"] = [{"name": left.env, "results": [result]}]
    return head


def _pairs(rows: Iterator[tuple[str, str]], otherwise: str) -> ReportBlock:
    table = [*rows]
    return DataTable(("", ""), table, texts=2) if table else Paragraph(otherwise or "Not part of this job.")


def _data(left: RunLeft) -> Iterator[tuple[str, str]]:
    rows = {row.name: row for row in left.stages.rows}
    if "documents" in rows:
        table = left.reports.get("ingestion_report")
        sources = "" if table is None or isinstance(table, UnreadableReport) else f": {_shares(table)}"
        yield "documents", f"{rows['documents'].rows or 0:,}{sources}"
    splits = [
        f"{rows[f'{name}_documents'].rows or 0:,} {name.replace('_', ' ')}"
        for name in ("annotated", "unannotated", "held_out")
        if f"{name}_documents" in rows
    ]
    if splits:
        yield "splits", ", ".join(splits)
    streams = [
        f"{row.tokens:,.0f} {row.counted} in {name}"
        for name in (kind.dataset for kind in kinds_by_name())
        if (row := rows.get(name)) is not None and row.tokens is not None
    ]
    if streams:
        yield "tokens", ", ".join(streams)


def _shares(table: Any) -> str:
    lines = [row for row in table.to_dict("records") if row["source"] != ALL_SOURCES]
    kept = {str(row["source"]): int(row["kept"]) for row in lines}
    total = sum(kept.values())
    most = sorted(kept.items(), key=lambda one: (-one[1], one[0]))
    shown = [f"{name} {count / total:.1%}" for name, count in most[:5] if total]
    return ", ".join([*shown, *([f"{len(most) - 5:,} others"] if len(most) > 5 else [])])


def _model(left: RunLeft) -> Iterator[tuple[str, str]]:
    for name, dataset in _TRAINED_BY.items():
        metrics = left.reports.get(dataset)
        if not isinstance(metrics, Mapping):
            continue
        model = getattr(left.groups.get("training"), "model", None)
        family = f"{model.family}, " if model is not None else ""
        yield name, f"{family}{metrics['parameters']:,} parameters, windows of {metrics['seq_length']:,} predictions"
        yield (
            "steps",
            f"{metrics['steps']:,} of {metrics['batch_size']:,} windows: {metrics['loss_tokens']:,} tokens predicted; "
            f"loss {metrics['first_loss']:.3f} at first, {metrics['mean_loss_last_tenth']:.3f} in the last tenth",
        )


def _figures(left: RunLeft) -> Mapping[str, Any] | None:
    figures = left.reports.get("evaluation_metrics")
    return figures if isinstance(figures, Mapping) else None


def held_out_table(left: RunLeft) -> Iterator[ReportBlock]:
    """Yield the table of held-out documents by source; lower is better."""
    figures = _figures(left)
    if figures is None:
        yield Paragraph(left.missing("evaluation_metrics") or "This job evaluates no model.")
        return
    rows = [
        (name, f"{row['documents']:,}", f"{row['unigram_bits_per_byte']:.3f}", f"{row['bits_per_byte']:.3f}")
        for name, row in [*sorted(figures["by_source"].items()), ("all sources", figures["total"])]
    ]
    yield DataTable(("held out", "documents", "unigram model", "trained model"), rows)


def _time(costs: Sequence[StageCost]) -> Iterator[tuple[str, str]]:
    if not costs:
        return
    seconds = sum(one.seconds for one in costs)
    longest = max(costs, key=lambda one: one.seconds)
    yield "clock", f"{spent(seconds)} in {len(costs)} stages, {spent(longest.seconds)} of it {longest.stage}"
    cpu = [one.cpu_seconds for one in costs if one.cpu_seconds is not None]
    yield "cores", f"{sum(cpu) / 3600:.4f} CPU-hours" if cpu else "CPU-hours were not measured"
    gpu = sum(one.gpu_seconds for one in costs)
    yield "GPUs", f"{gpu / 3600:.4f} GPU-hours" if gpu else "none"
    if peaks := [one.peak_bytes for one in costs if one.peak_bytes is not None]:
        yield "memory", f"{max(peaks) / 1e9:.2f} GB at most"


def spent(seconds: float) -> str:
    """Return a time in words of its size."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def _digests(left: RunLeft) -> Iterator[tuple[str, str]]:
    rows = {row.name: row for row in left.stages.rows}
    for name in _ON_THE_CARD:
        if name in rows:
            outdated = f"  ({rows[name].outdated})" if rows[name].outdated else ""
            yield name, f"{rows[name].digest[:_DIGEST]}{outdated}"
