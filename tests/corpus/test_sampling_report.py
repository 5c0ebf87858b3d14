from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from everytoken.corpus.errors import SamplingError
from everytoken.corpus.sampling import SubsamplingParameters, totals_of
from everytoken.corpus.sampling_report import (
    SPLITS,
    amounts_by_score,
    amounts_by_stratum,
    check_conservation,
    limits,
    metadata,
    strata_table,
)
from everytoken.corpus.splits import estimate_part_tokens
from everytoken.corpus.statistics import add_statistics
from everytoken.reports import mixture_figure
from tests.corpus.test_sampling import subsampling
from tests.corpus.test_splits import split_all
from tests.corpus.test_strata import SOURCES, Row, parts_of, strata

ROWS: list[list[Row]] = [
    [(SOURCES[i % 3], "x", 40 + i, i % 6 if i % 5 == 0 else 0) for i in range(90)],
    [],
    [("web", "x", 4068, 5)],
]


class Draw:
    """A draw of `ROWS` and what is reported of it."""

    def __init__(self, **changes: Any) -> None:
        self.parameters: SubsamplingParameters = subsampling(**changes)
        parts = parts_of(ROWS)
        self.estimates = [estimate_part_tokens(part, parameters=self.parameters.estimate) for part in parts]
        self.totals = totals_of(self.estimates, self.parameters)
        made = split_all(parts, self.parameters)
        self.statistics = {split: [statistics for _, statistics in made[split]] for split in made}
        sums = {split: add_statistics(parts) for split, parts in self.statistics.items()}
        self.by_score = amounts_by_score(sums)
        self.by_stratum = amounts_by_stratum(sums, self.totals, self.parameters)

    @property
    def table(self) -> list[dict[str, Any]]:
        return strata_table(self.by_score, self.by_stratum, self.parameters)

    @property
    def metadata(self) -> dict[str, Any]:
        return metadata(self.parameters, self.totals, self.estimates, self.statistics)


def rows_before() -> dict[tuple[str, str], int]:
    keys = [(row[0], str(row[3])) for part in ROWS for row in part]
    return {key: keys.count(key) for key in keys}


SHARES = {"web": 0.5, "chats": 0.25, "wikipedia": 0.25}


@pytest.mark.parametrize("given", [None, strata(shares=SHARES), strata("length_band", [60])])
def test_no_row_is_lost_in_the_table_of_strata(given: Any) -> None:
    draw = Draw(held_out_share=0.2, target_tokens=600, strata=given)
    check_conservation(rows_before(), draw.by_score)
    table = pd.DataFrame(draw.table).fillna({"intended_share": -1})
    all_rows = table.iloc[-1]
    assert all_rows["before_rows"] == 91
    assert all(all_rows[f"{split}_rows"] > 0 for split in SPLITS)
    assert (table["before_rows"] == sum(table[f"{split}_rows"] for split in SPLITS)).all()
    by_key = table[(table["source"] != "") & (table["safety_score"] != "")]
    by_source = table[(table["source"] != "") & (table["safety_score"] == "")]
    by_score = table[(table["source"] == "") & (table["safety_score"] != "")]
    by_stratum = table[table["stratum"] != ""]
    for group in (by_key, by_source, by_score, *([by_stratum] if given else [])):
        assert group["before_rows"].sum() == 91
        for split in SPLITS:
            assert group[f"{split}_tokens"].sum() == pytest.approx(all_rows[f"{split}_tokens"])
        assert group["share_before"].sum() == pytest.approx(1)
        assert group["share_after"].sum() == pytest.approx(1)
    if given and given["shares"]:
        assert dict(zip(by_stratum["stratum"], by_stratum["intended_share"], strict=True)) == SHARES
    else:
        assert (table["intended_share"] == -1).all()


def test_a_lost_row_is_an_error() -> None:
    draw = Draw()
    before = rows_before() | {("web", "5"): 12}
    with pytest.raises(SamplingError, match=r"source 'web', safety_score 5: 12 documents were scored, .* are 1\."):
        check_conservation(before, draw.by_score)


def test_metadata_holds_every_parameter_and_global() -> None:
    draw = Draw(held_out_share=0.2, target_tokens=600)
    made = draw.metadata
    assert json.loads(json.dumps(made)) == made
    assert made["parameters"] == draw.parameters.model_dump()
    assert made["globals"] == draw.totals
    assert made["input"]["rows"] == 91
    assert made["input"]["parts"] == 3
    annotated, unannotated = made["splits"]["annotated"], made["splits"]["unannotated"]
    assert annotated["rows_by_part"][1:] == [0, 1]
    assert annotated["files"] == 2  # one part is empty
    assert unannotated["files"] == 1
    assert made["total"]["rows"] == annotated["rows"] + unannotated["rows"]
    rows = made["total"]["rows"] + made["not_drawn"]["rows"] + made["splits"]["held_out"]["rows"]
    assert rows == made["input"]["rows"]
    assert made["target"] == {"wanted_tokens": 600, "reached": True, "limits": []}
    assert sum(budget["annotated"] + budget["unannotated"] for budget in made["budgets"]) == pytest.approx(600)
    assert set(made["versions"]) == {"everytoken", "python", "numpy", "pyarrow"}
    assert "estimates" in made["token_counts"]


def test_a_target_that_was_not_reached_is_told() -> None:
    draw = Draw(target_tokens=100_000, strata=strata(shares=SHARES))
    assert not draw.metadata["target"]["reached"]
    told = list(limits(draw.totals))
    assert len(told) == 3
    assert told[0].startswith("stratum 'chats' has 6")
    assert "25,000 are wanted of it; the draw is of 2," in told[0]
    (told_of_all,) = limits(Draw(target_tokens=100_000).totals)
    assert told_of_all.startswith("the corpus has 2,")
    assert Draw().metadata["target"] == {"wanted_tokens": None, "reached": True, "limits": []}


def test_the_figure_shows_each_share() -> None:
    table = Draw(strata=strata(shares=SHARES)).table
    figure = mixture_figure(table)
    assert [title.text for title in figure.layout.annotations] == ["Sources", "Safety scores", "Strata"]
    intended = {bar.name: bar.y[-1] for bar in figure.data if bar.x[-1] == "intended"}
    assert intended == SHARES
    assert len(figure.data) == 3 + 6 + 3
    assert len(mixture_figure(Draw().table).data) == 3 + 6
    assert len(mixture_figure([]).data) == 0
