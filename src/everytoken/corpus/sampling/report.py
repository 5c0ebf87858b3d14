"""What a draw was: its metadata, and the table of strata before and after it. No row is lost on the way."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

import everytoken
from everytoken.corpus.errors import SamplingError
from everytoken.corpus.sampling.formulas import Amounts, PartEstimate, SubsamplingParameters, Totals, part_budgets
from everytoken.corpus.sampling.splits import DrawnCounts, HeldOutStatistics, SplitStatistics
from everytoken.corpus.statistics import ClassesBySource, add_statistics

DRAW_OUTCOMES = ("annotated", "unannotated", "held_out", "not_drawn")
_NOTHING = Amounts(rows=0, estimated_tokens=0.0)


def rows_by_score(statistics: Iterable[ClassesBySource]) -> dict[tuple[str, str], int]:
    """Return the documents that were scored by (source, safety score), of the statistics of the scored parts."""
    rows: dict[tuple[str, str], int] = {}
    for part in statistics:
        for source, counts in part["by_source"].items():
            for score, n in counts["rows_by_class"].items():
                rows[source, score] = rows.get((source, score), 0) + n
    return {key: n for key, n in rows.items() if n}


class DrawnParts(TypedDict):
    """The statistics of the parts of each split, in part order."""

    annotated: list[SplitStatistics]
    unannotated: list[SplitStatistics]
    held_out: list[HeldOutStatistics]


class DrawnSums(TypedDict):
    """The statistics of the parts of each split, summed; those of no parts are empty."""

    annotated: SplitStatistics
    unannotated: SplitStatistics
    held_out: HeldOutStatistics


def amounts_by_score(sums: DrawnSums) -> dict[str, dict[tuple[str, str], Amounts]]:
    """Return the amounts of each of `DRAW_OUTCOMES` by (source, safety score), as they were drawn: with what is
    excluded.
    """
    held_out = sums["held_out"]
    nested = {
        "annotated": sums["annotated"].get("by_score", {}),
        "unannotated": sums["unannotated"].get("by_score", {}),
        "held_out": add_statistics([held_out.get("by_score", {}), held_out.get("excluded_by_score", {})]),
        "not_drawn": sums["annotated"].get("not_drawn_by_score", {}),
    }
    return {
        split: {
            (source, score): amounts for source, scores in nested[split].items() for score, amounts in scores.items()
        }
        for split in DRAW_OUTCOMES
    }


def amounts_by_stratum(
    sums: DrawnSums, totals: Totals, parameters: SubsamplingParameters
) -> dict[str, dict[str, Amounts]]:
    """Return the amounts of each of `DRAW_OUTCOMES` by stratum; without strata there are none.

    Args:
        totals: from `everytoken.corpus.sampling.formulas.totals_of`; the held-out split itself knows no strata.
    """
    if parameters.strata is None:
        return {split: {} for split in DRAW_OUTCOMES}
    return {
        "annotated": sums["annotated"].get("by_stratum", {}),
        "unannotated": sums["unannotated"].get("by_stratum", {}),
        "held_out": {
            name: {"rows": of["held_out_rows"], "estimated_tokens": of["held_out_tokens"]}
            for name, of in totals["strata"].items()
        },
        "not_drawn": sums["annotated"].get("not_drawn_by_stratum", {}),
    }


def check_draw_conservation(
    rows_before: Mapping[tuple[str, str], int], amounts: Mapping[str, Mapping[Any, Amounts]]
) -> None:
    """Refuse a draw after which rows are missing, or too many, of a source and score.

    Raises:
        SamplingError: with the rows before and in each split.
    """
    for key in sorted({*rows_before, *(key for of_split in amounts.values() for key in of_split)}):
        rows = {split: int(amounts[split].get(key, _NOTHING)["rows"]) for split in DRAW_OUTCOMES}
        if sum(rows.values()) != rows_before.get(key, 0):
            raise SamplingError(
                f"source {key[0]!r}, safety_score {key[1]}: {rows_before.get(key, 0):,} documents were scored, "
                f"{' + '.join(f'{n:,} {split}' for split, n in rows.items())} are {sum(rows.values()):,}. "
                f"The splits are not of these scored documents; run the subsampling again."
            )


def strata_table(
    amounts: Mapping[str, Mapping[tuple[str, str], Amounts]],
    by_stratum: Mapping[str, Mapping[str, Amounts]],
    parameters: SubsamplingParameters,
) -> list[dict[str, object]]:
    """Return rows and estimated tokens before the draw and in each of `DRAW_OUTCOMES`, with shares before and after.

    Before are all scored documents; shares are of estimated tokens, *after* of both drawn splits together.

    Args:
        by_stratum: amounts of each split by stratum; empty without strata.

    Returns:
        A line for each (source, safety score), each source, each score, each stratum, and one for all, in this order;
        ``group`` says which of these a line is: source_and_score, source, score, stratum or all. Names that its group
        does not have are empty, and so may be the name of a source or stratum. Strata are in the order of their names,
        length bands from short to long. ``intended_share`` is None on lines of other groups, and without shares.
    """
    keys = sorted({key for of_split in amounts.values() for key in of_split})
    sources, scores = (sorted({key[place] for key in keys}) for place in (0, 1))
    total = _by_split(amounts, keys)
    lines = [
        *((("source_and_score", *key, ""), _by_split(amounts, [key])) for key in keys),
        *((("source", name, "", ""), _by_split(amounts, [key for key in keys if key[0] == name])) for name in sources),
        *((("score", "", score, ""), _by_split(amounts, [key for key in keys if key[1] == score])) for score in scores),
        *((("stratum", "", "", name), _by_split(by_stratum, [name])) for name in _strata(by_stratum, parameters)),
        (("all", "", "", ""), total),
    ]
    shares = (parameters.strata.shares if parameters.strata is not None else None) or {}
    return [_line(names, of, total, shares.get(names[3]) if names[0] == "stratum" else None) for names, of in lines]


def metadata(
    parameters: SubsamplingParameters,
    totals: Totals,
    estimates: Sequence[PartEstimate],
    splits: DrawnParts,
) -> dict[str, object]:
    """Return what a reader needs to check the draw: every parameter and global, counts of each split, versions.

    Args:
        splits: for each split the statistics of its parts, in part order (see `everytoken.corpus.sampling.splits`).
    """
    annotated, unannotated = _split_counts(splits["annotated"]), _split_counts(splits["unannotated"])
    return {
        "parameters": parameters.model_dump(mode="json"),
        "token_counts": "estimates: min(code points / chars_per_token, max_tokens_per_document); row counts are exact",
        "input": {
            "rows": totals["rows"]
            + totals["held_out_rows"]
            + sum(part.get("outside_score_bounds", 0) for part in splits["annotated"]),
            "estimated_tokens": totals["total_tokens"] + totals["held_out_tokens"],
            "parts": len(estimates),
        },
        "globals": dict(totals),
        "target": {
            "wanted_tokens": parameters.target_tokens,
            "budget_tokens": totals["budget_tokens"],
            "target_reached": not totals["limited_by"],
            "limit": limit(totals, parameters),
        },
        "splits": {
            "annotated": annotated,
            "held_out": _split_counts(splits["held_out"]),
            "unannotated": unannotated,
        },
        "not_drawn": {"rows": sum(part["not_drawn"] for part in splits["annotated"])},
        "total": {
            "rows": annotated["rows"] + unannotated["rows"],
            "estimated_tokens": annotated["estimated_tokens"] + unannotated["estimated_tokens"],
            "files": annotated["files"] + unannotated["files"],
        },
        "files": "parts with at least one row; a part without any is kept as an empty part, so all datasets have "
        "the same parts",
        "budgets": [_sum_over(part_budgets(estimate, totals).values()) for estimate in estimates],
        "versions": {
            "everytoken": everytoken.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
        },
    }


def limit(totals: Totals, parameters: SubsamplingParameters) -> str | None:
    """Return a sentence about what keeps the draw from its target, with strata the scarcest; None at the target."""
    if not totals["limited_by"]:
        return None
    scarcest, *others = totals["limited_by"]
    what = "the corpus" if scarcest["stratum"] is None else f"stratum {scarcest['stratum']!r}"
    return (
        f"{what} has {scarcest['tokens']:,.0f} estimated tokens that are not held out, "
        f"{scarcest['wanted_tokens']:,.0f} are wanted of it; the draw is of {totals['budget_tokens']:,.0f} in all "
        f"instead of {parameters.target_tokens:,.0f}"
        + (f" (strata that are less scarce, and short of it too: {len(others):,})" if others else "")
    )


class _SplitCounts(TypedDict):
    rows: int
    estimated_tokens: float
    files: int
    rows_by_part: list[int]


def _split_counts(parts: Sequence[DrawnCounts]) -> _SplitCounts:
    return {
        "rows": sum(part["rows"] for part in parts),
        "estimated_tokens": sum((part["estimated_tokens"] for part in parts), 0.0),
        "files": sum(part["rows"] > 0 for part in parts),
        "rows_by_part": [part["rows"] for part in parts],
    }


def _sum_over(budgets: Iterable[Any]) -> dict[str, float]:
    of_strata = list(budgets)
    return {key: sum((of[key] for of in of_strata), 0.0) for key in ("below", "annotated", "unannotated")}


def _strata(by_stratum: Mapping[str, Mapping[str, Amounts]], parameters: SubsamplingParameters) -> list[str]:
    names = {name for of_split in by_stratum.values() for name in of_split}
    if parameters.strata is not None and parameters.strata.key == "length_band":
        return [band for band in parameters.strata.bands if band in names]
    return sorted(names)


def _by_split(amounts: Mapping[str, Mapping[Any, Amounts]], keys: Sequence[Any]) -> dict[str, Amounts]:
    return {split: _sum(amounts[split], keys) for split in DRAW_OUTCOMES}


def _sum(amounts: Mapping[Any, Amounts], keys: Iterable[Any]) -> Amounts:
    return add_statistics([_NOTHING, *(amounts[key] for key in keys if key in amounts)])


def _line(
    names: tuple[str, ...], of: Mapping[str, Amounts], total: Mapping[str, Amounts], intended: float | None
) -> dict[str, object]:
    line: dict[str, object] = dict(zip(("group", "source", "safety_score", "stratum"), names, strict=True))
    before, all_before = (add_statistics(what.values()) for what in (of, total))
    after, all_after = (add_statistics([what["annotated"], what["unannotated"]]) for what in (of, total))
    for split, counts in {"before": before, **of}.items():
        line |= {f"{split}_rows": counts["rows"], f"{split}_tokens": counts["estimated_tokens"]}
    return line | {
        "share_before": _share(before, all_before),
        "share_after": _share(after, all_after),
        "intended_share": intended,
    }


def _share(of: Amounts, total: Amounts) -> float:
    return of["estimated_tokens"] / total["estimated_tokens"] if total["estimated_tokens"] else 0.0
