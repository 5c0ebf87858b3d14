from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import yaml

from everytoken.corpus.errors import SamplingError
from everytoken.corpus.sampling.formulas import SubsamplingParameters, totals_of
from everytoken.corpus.sampling.report import (
    DRAW_OUTCOMES,
    amounts_by_score,
    amounts_by_stratum,
    check_draw_conservation,
    limit,
    metadata,
    strata_table,
)
from everytoken.corpus.sampling.splits import estimate_part_tokens
from everytoken.corpus.statistics import add_statistics
from everytoken.datasets import CsvFile
from everytoken.pipelines.subsampling.nodes import (
    draw_annotated,
    draw_unannotated,
    estimate_tokens,
    find_exclusions,
    hold_out_documents,
    plot_mixture,
    report_subsampling,
)
from everytoken.reports import mixture_figure, score_figure
from everytoken.shards import Part, Rows, Shards, Store, make_engine, versioned
from tests.corpus.sampling.test_sampling import subsampling
from tests.corpus.sampling.test_splits import split_all
from tests.corpus.sampling.test_strata import SOURCES, Row, parts_of, strata, table_of

CATALOG = Path(__file__).parents[3] / "conf/base/catalog/subsampling.yml"

ROWS: list[list[Row]] = [
    [(SOURCES[i % 3], "x", 40 + i, i % 6 if i % 5 == 0 else 0) for i in range(90)],
    [],
    [("web", "x", 4068, 5)],
]


class Draw:
    """A draw and what is reported of it."""

    def __init__(self, rows: list[list[Row]] = ROWS, **changes: Any) -> None:
        self.parameters: SubsamplingParameters = subsampling(**changes)
        parts = parts_of(rows)
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
    check_draw_conservation(rows_before(), draw.by_score)
    table = pd.DataFrame(draw.table).fillna({"intended_share": -1})
    all_rows = table.iloc[-1]
    assert all_rows["before_rows"] == 91
    assert all(all_rows[f"{split}_rows"] > 0 for split in DRAW_OUTCOMES)
    assert (table["before_rows"] == sum(table[f"{split}_rows"] for split in DRAW_OUTCOMES)).all()
    assert set(table["group"]) == {"source_and_score", "source", "score", "all", *(["stratum"] if given else [])}
    by_stratum = table[table["group"] == "stratum"]
    for _, group in table.groupby("group"):
        assert group["before_rows"].sum() == 91
        for split in DRAW_OUTCOMES:
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
        check_draw_conservation(before, draw.by_score)


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
    assert made["target"] == {
        "wanted_tokens": 600,
        "budget_tokens": 600,
        "target_reached": True,
        "limit": None,
    }
    assert sum(budget["annotated"] + budget["unannotated"] for budget in made["budgets"]) == pytest.approx(600)
    assert set(made["versions"]) == {"everytoken", "python", "numpy", "pyarrow"}
    assert "estimates" in made["token_counts"]


def test_a_target_that_was_not_reached_is_told_in_one_sentence() -> None:
    draw = Draw(target_tokens=100_000, strata=strata(shares=SHARES))
    target = draw.metadata["target"]
    assert (target["wanted_tokens"], target["target_reached"]) == (100_000, False)
    assert target["budget_tokens"] == draw.totals["budget_tokens"] < 3000
    assert target["limit"] == limit(draw.totals, draw.parameters)
    assert target["limit"].startswith("stratum 'chats' has 6")
    assert "that are not held out, 25,000 are wanted of it; the draw is of 2," in target["limit"]
    assert target["limit"].endswith("in all instead of 100,000 (strata that are less scarce, and short of it too: 2)")
    of_all = Draw(target_tokens=100_000)
    told_of_all = limit(of_all.totals, of_all.parameters)
    assert told_of_all is not None
    assert told_of_all.startswith("the corpus has 2,")
    assert Draw().metadata["target"]["limit"] is None


NAMELESS: list[list[Row]] = [[(name, "x", 40 + i, i % 6) for i, name in enumerate(["", "web", "NA"] * 20)]]


def test_an_empty_name_is_a_name_and_not_everything(tmp_path: Path) -> None:
    """Of the table, of its CSV file as the catalog reads it, and of the figure that is made of that."""
    shares = {"": 0.25, "web": 0.5, "NA": 0.25}
    draw = Draw(NAMELESS, strata=strata(shares=shares))
    intended = {(line["group"], line["stratum"]): line["intended_share"] for line in draw.table}
    assert intended["stratum", ""] == 0.25
    assert intended["all", ""] is None
    assert [line["before_rows"] for line in draw.table if line["group"] == "source"] == [20, 20, 20]
    catalog = yaml.safe_load(CATALOG.read_text())["strata_report"]
    stored = CsvFile(
        filepath=str(tmp_path / "report.csv"), save_args=catalog["save_args"], load_args=catalog["load_args"]
    )
    stored.save(pd.DataFrame(draw.table))
    read = stored.load()
    assert read["stratum"].tolist() == [line["stratum"] for line in draw.table]
    assert read["source"].tolist() == [line["source"] for line in draw.table]
    bars = {bar.name: bar for bar in plot_mixture(read).data if bar.legendgroup == "stratum"}
    assert {name: dict(zip(bar.x, bar.y, strict=True))["intended"] for name, bar in bars.items()} == {
        "(empty name)": 0.25,
        "web": 0.5,
        "NA": 0.25,
    }


def test_length_bands_are_listed_from_short_to_long() -> None:
    draw = Draw(strata=strata("length_band", [60, 90, 1000]))
    names = [line["stratum"] for line in draw.table if line["group"] == "stratum"]
    assert names == ["0-59", "60-89", "90-999", "1000-"]
    assert names != sorted(names)


@versioned("scored_rows", 1)
def scored_rows(part: Part) -> Rows:
    """`ROWS` as scored documents, with the statistics that the report reads of them."""
    rows = ROWS[part.index]
    table = table_of(rows).combine_chunks()
    by_source: dict[str, dict[str, dict[str, int]]] = {}
    for source, _, _, score in rows:
        of_source = by_source.setdefault(source, {"rows_by_class": {}})["rows_by_class"]
        of_source[str(score)] = of_source.get(str(score), 0) + 1
    return Rows(table.schema, _with({"by_source": by_source}, table.to_batches()))


def _with(statistics: dict[str, Any], batches: list[pa.RecordBatch]) -> Any:
    yield from batches
    return statistics


def test_the_report_names_what_was_wanted_and_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def stored(name: str, shards: Shards) -> Shards:
        Store(tmp_path / name).save(shards, make_engine("inline"))
        return Store(tmp_path / name).load()

    parameters = subsampling(target_tokens=100_000, held_out_share=0.1, strata=strata(shares=SHARES))
    indices = list(range(len(ROWS)))
    scored = stored("scored", Shards.from_values(indices, [f"{i:064x}" for i in indices]).map(scored_rows))
    estimates = stored("estimates", estimate_tokens(scored, parameters))
    exclusions = stored("exclusions", find_exclusions(scored, parameters))
    splits = [
        stored("annotated", draw_annotated(scored, estimates, parameters)),
        stored("unannotated", draw_unannotated(scored, estimates, parameters)),
        stored("held_out", hold_out_documents(scored, exclusions, parameters)),
    ]
    metrics, made, table = report_subsampling(scored, estimates, *splits, exclusions, parameters)
    assert metrics["wanted_tokens"] == made["target"]["wanted_tokens"] == 100_000
    assert metrics["budget_tokens"] == made["target"]["budget_tokens"] < 3000
    assert metrics["target_reached"] == made["target"]["target_reached"] == 0
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"warning: {made['target']['limit']}"]
    tokens = table[[name for name in table if name.endswith("_tokens")]]
    assert (tokens.dtypes == "int64").all()
    assert not float(made["input"]["estimated_tokens"]).is_integer()
    assert table.iloc[-1]["before_tokens"] == round(made["input"]["estimated_tokens"])


def test_the_figure_shows_each_share() -> None:
    table = Draw(strata=strata(shares=SHARES)).table
    figure = mixture_figure(table)
    assert [title.text for title in figure.layout.annotations] == ["Sources", "Safety scores", "Strata"]
    intended = {bar.name: bar.y[-1] for bar in figure.data if bar.x[-1] == "intended"}
    assert intended == SHARES
    drawn = {bar.name: bar.y[bar.x.index("drawn")] for bar in figure.data if bar.legendgroup == "stratum"}
    after = {line["stratum"]: line["share_after"] for line in table if line["group"] == "stratum"}
    assert drawn == pytest.approx(after)
    assert len(figure.data) == 3 + 6 + 3
    assert len(mixture_figure(Draw().table).data) == 3 + 6
    assert len(mixture_figure([]).data) == 0


def test_the_figure_names_the_largest_and_puts_the_rest_together() -> None:
    rows: list[list[Row]] = [[("web", f"topic {n:02d}", 40, i % 6) for n in range(15) for i in range(n + 1)]]
    table = Draw(rows, strata=strata("stratum")).table
    bars = [bar for bar in mixture_figure(table).data if bar.legendgroup == "stratum"]
    assert [bar.name for bar in bars] == [*(f"topic {n:02d}" for n in range(14, 2, -1)), "all others"]
    assert len({bar.marker.color for bar in bars}) == 13
    assert bars[-1].y[0] == pytest.approx((1 + 2 + 3) / 120)
    for place in range(len(bars[0].x)):
        assert sum(bar.y[place] for bar in bars) == pytest.approx(1) or sum(bar.y[place] for bar in bars) == 0


def test_ids_once_look_unlike_all_rows_in_the_legend() -> None:
    table = [{"source": source, "class": k, "rows": 6, "once": 3} for source in ("a", "b") for k in range(6)]
    figure = score_figure(table)
    looks = [(bar.marker.color, bar.marker.pattern.shape) for bar in figure.data]
    assert len(set(looks)) == 4
    assert [bar.legendgrouptitle.text for bar in figure.data] == ["all rows"] * 2 + ["each id once"] * 2
