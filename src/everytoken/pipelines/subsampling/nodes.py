"""Subsampling: estimate tokens by part, match harmful documents with harmless ones, draw each split."""

import logging
from collections.abc import Mapping
from typing import Any

import pandas as pd
from plotly.graph_objects import Figure

from everytoken.corpus import (
    NOTHING_EXPECTED,
    ClassesBySource,
    ExpectParameters,
    SamplingError,
    add_statistics,
    find_excluded,
)
from everytoken.corpus.sampling import (
    DrawnCounts,
    DrawnParts,
    DrawnSums,
    HeldOutStatistics,
    SplitStatistics,
    SubsamplingParameters,
    amounts_by_score,
    amounts_by_stratum,
    check_draw_conservation,
    estimate_part_tokens,
    limit,
    metadata,
    rows_by_score,
    select_held_out,
    select_split,
    strata_table,
    totals_of,
)
from everytoken.reports import mixture_figure
from everytoken.shards import Shards

logger = logging.getLogger(__name__)


def estimate_tokens(
    scored_documents: Shards, parameters: SubsamplingParameters, languages: Shards | None = None
) -> Shards:
    """First pass: estimated tokens at or above the threshold and below it, by part and stratum."""
    strata = _read_for_strata(parameters, languages)
    return scored_documents.zip(*strata).reduce(estimate_part_tokens, parameters=parameters.estimate)


def _read_for_strata(parameters: SubsamplingParameters, languages: Shards | None) -> tuple[Shards, ...]:
    """Return what strata are read from besides the documents."""
    if parameters.strata is None or parameters.strata.key != "language":
        return ()
    if languages is None:
        raise SamplingError(
            "subsampling.strata.key is language, and the languages of the documents were not identified: give "
            "ingestion.languages, and run the pipeline languages first (kedro run --pipelines languages)"
        )
    return (languages,)


def draw_annotated(
    scored_documents: Shards,
    token_estimates: Shards,
    parameters: SubsamplingParameters,
    languages: Shards | None = None,
) -> Shards:
    """Second pass: every part's rows above the threshold, matched with rows below it."""
    totals = totals_of(token_estimates.values, parameters)
    strata = _read_for_strata(parameters, languages)
    return scored_documents.zip(token_estimates, *strata).map(
        select_split, split="annotated", parameters=parameters, totals=totals
    )


def draw_unannotated(
    scored_documents: Shards,
    token_estimates: Shards,
    parameters: SubsamplingParameters,
    languages: Shards | None = None,
) -> Shards:
    """Second pass: rows below the threshold that were not matched."""
    totals = totals_of(token_estimates.values, parameters)
    strata = _read_for_strata(parameters, languages)
    return scored_documents.zip(token_estimates, *strata).map(
        select_split, split="unannotated", parameters=parameters, totals=totals
    )


def find_exclusions(scored_documents: Shards, parameters: SubsamplingParameters) -> Shards:
    """Documents of each part that the list of excluded documents names; mostly none."""
    listed = parameters.exclude
    path, sha256 = (None, None) if listed is None else (listed.path, listed.sha256.lower())
    return scored_documents.reduce(find_excluded, path=path, sha256=sha256)


def hold_out_documents(scored_documents: Shards, exclusions: Shards, parameters: SubsamplingParameters) -> Shards:
    """Documents that a seeded hash of their address keeps from every other split, whatever is drawn."""
    return scored_documents.zip(exclusions).map(select_held_out, parameters=parameters.held_out)


def report_subsampling(
    scored_documents: Shards,
    token_estimates: Shards,
    annotated: Shards,
    unannotated: Shards,
    held_out: Shards,
    exclusions: Shards,
    parameters: SubsamplingParameters,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> tuple[dict[str, object], dict[str, object], pd.DataFrame]:
    """Check that no row was lost and that the splits are as expected; return counts, the full metadata of the draw, and
    the strata before and after.
    """
    totals = totals_of(token_estimates.values, parameters)
    splits = DrawnParts(
        annotated=annotated.statistics_as(SplitStatistics),
        unannotated=unannotated.statistics_as(SplitStatistics),
        held_out=held_out.statistics_as(HeldOutStatistics),
    )
    sums = DrawnSums(
        annotated=add_statistics(splits["annotated"]),
        unannotated=add_statistics(splits["unannotated"]),
        held_out=add_statistics(splits["held_out"]),
    )
    amounts = amounts_by_score(sums)
    check_draw_conservation(rows_by_score(scored_documents.statistics_as(ClassesBySource)), amounts)
    expect.check(annotated_rows=annotated.rows, unannotated_rows=unannotated.rows)
    made = metadata(parameters, totals, token_estimates.values, splits)
    by_split: dict[str, DrawnCounts] = {
        "annotated": sums["annotated"],
        "unannotated": sums["unannotated"],
        "held_out": sums["held_out"],
    }
    if (short_of_target := limit(totals, parameters)) is not None:
        logger.warning("warning: %s", short_of_target)
    wanted = {} if parameters.target_tokens is None else {"wanted_tokens": parameters.target_tokens}
    metrics = {
        "rows_in": scored_documents.rows,
        "not_drawn": sums["annotated"].get("not_drawn", 0),
        **_outside(sums),
        "excluded": sum(len(excluded["addresses"]) for excluded in exclusions.values),
        "rows": {name: total.get("rows", 0) for name, total in by_split.items()},
        "estimated_tokens": {name: total.get("estimated_tokens", 0.0) for name, total in by_split.items()},
        "annotation_ratio": totals["annotation_ratio"],
        "scale": totals["scale"],
        **wanted,
        "budget_tokens": totals["budget_tokens"],
        "target_reached": int(not totals["limited_by"]),
    }
    table = strata_table(amounts, amounts_by_stratum(sums, totals, parameters), parameters)
    return metrics, made, pd.DataFrame(map(_for_reading, table))


def _outside(sums: DrawnSums) -> dict[str, int]:
    """Return how many documents of what is not drawn the bounds of second scores leave out, where there are any."""
    count = sums["annotated"].get("outside_score_bounds", 0)
    return {"outside_score_bounds": count} if count else {}


def _for_reading(line: Mapping[str, Any]) -> dict[str, object]:
    """Return the line with whole estimated tokens; the ledgers have them as they are."""
    return {name: round(value) if name.endswith("_tokens") else value for name, value in line.items()}


def plot_mixture(strata_report: pd.DataFrame) -> Figure:
    """Sources, safety scores and strata before the draw and in each split."""
    return mixture_figure(
        [{str(name): value for name, value in line.items()} for line in strata_report.to_dict("records")]
    )
