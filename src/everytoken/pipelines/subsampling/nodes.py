"""Subsampling: estimate tokens by part, match harmful documents with harmless ones, draw each split."""

from typing import Any

from plotly.graph_objects import Figure

from everytoken.corpus.sampling import metadata, totals_of
from everytoken.corpus.splits import estimate_part_tokens, select_held_out, select_split
from everytoken.corpus.statistics import add_statistics
from everytoken.parameters import SubsamplingParameters
from everytoken.reports import mixture_figure
from everytoken.shards import Shards


def estimate_tokens(scored_documents: Shards, parameters: SubsamplingParameters) -> Shards:
    """First pass: estimated tokens at or above the threshold and below it, by part."""
    return scored_documents.reduce(estimate_part_tokens, parameters=parameters.estimate)


def draw_annotated(scored_documents: Shards, token_estimates: Shards, parameters: SubsamplingParameters) -> Shards:
    """Second pass: every part's rows above the threshold, matched with rows below it."""
    totals = totals_of(token_estimates.values, parameters)
    return scored_documents.zip(token_estimates).map(
        select_split, split="annotated", parameters=parameters, totals=totals
    )


def draw_unannotated(scored_documents: Shards, token_estimates: Shards, parameters: SubsamplingParameters) -> Shards:
    """Second pass: rows below the threshold that were not matched."""
    totals = totals_of(token_estimates.values, parameters)
    return scored_documents.zip(token_estimates).map(
        select_split, split="unannotated", parameters=parameters, totals=totals
    )


def hold_out_documents(scored_documents: Shards, parameters: SubsamplingParameters) -> Shards:
    """Documents that a seeded hash of their address keeps from every other split, whatever is drawn."""
    return scored_documents.map(select_held_out, parameters=parameters.estimate)


def report_subsampling(
    documents: Shards,
    token_estimates: Shards,
    annotated: Shards,
    unannotated: Shards,
    held_out: Shards,
    parameters: SubsamplingParameters,
) -> tuple[dict[str, Any], dict[str, Any], Figure]:
    """Return counts, the full metadata of the draw, and the mixture by source before and after."""
    splits = {"annotated": annotated, "unannotated": unannotated, "held_out": held_out}
    totals = totals_of(token_estimates.values, parameters)
    sums = {name: add_statistics(split.statistics) for name, split in splits.items()}
    metrics = {
        "rows_in": sums["annotated"]["rows_in"],
        "not_drawn": sums["annotated"]["not_drawn"],
        "rows": {name: total["rows"] for name, total in sums.items()},
        "estimated_tokens": {name: total["estimated_tokens"] for name, total in sums.items()},
        "annotation_ratio": totals["annotation_ratio"],
        "scale": totals["scale"],
    }
    before = _characters(add_statistics(documents.statistics))
    after = {name: _characters(total) for name, total in sums.items()}
    statistics = {name: split.statistics for name, split in splits.items()}
    return (
        metrics,
        metadata(parameters, totals, token_estimates.values, statistics),
        mixture_figure(before, after, "characters"),
    )


def _characters(total: dict[str, Any]) -> dict[str, int]:
    return {
        source: sum(counts["characters"] for counts in strata.values()) for source, strata in total["by_source"].items()
    }
