from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.errors import SamplingError
from everytoken.corpus.sampling.formulas import SubsamplingParameters, totals_of
from everytoken.corpus.sampling.splits import estimate_part_tokens, select_split
from everytoken.corpus.sampling.strata import Strata
from everytoken.shards import Part, Rows, Shards, Store, make_engine, versioned
from tests.corpus.part_tables import TablePart, scored
from tests.corpus.sampling.test_sampling import subsampling
from tests.corpus.sampling.test_splits import split_all

SOURCES = ("chats", "web", "wikipedia")
# (source, stratum, length, score)
Row = tuple[str, str, int, int]
ROWS = st.lists(
    st.tuples(st.sampled_from(SOURCES), st.sampled_from(["x", "y"]), st.integers(1, 400), st.integers(0, 5)),
    max_size=40,
)


def table_of(rows: list[Row]) -> pa.Table:
    table = scored([row[2] for row in rows], [row[3] for row in rows])
    for name, number in (("source", 0), ("stratum", 1)):
        column = pa.array([row[number] for row in rows], pa.string())
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(name), column)
    return table


def parts_of(columns: list[list[Row]]) -> list[TablePart]:
    return [TablePart(table_of(rows), 7, index) for index, rows in enumerate(columns)]


def strata(key: str = "source", length_bands: Any = None, shares: Any = None) -> dict[str, Any]:
    return {"key": key, "length_bands": length_bands, "shares": shares}


def totals(parts: list[TablePart], parameters: SubsamplingParameters) -> Any:
    return totals_of([estimate_part_tokens(part, parameters=parameters.estimate) for part in parts], parameters)


def rows_of(made: dict[str, Any], split: str) -> list[list[int]]:
    return [table.column("row").to_pylist() for table, _ in made[split]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "topic"}, "source"),
        ({"languages": ["de"]}, "name languages for the key language alone"),
        ({"key": "language", "languages": ["de", "other"]}, "and not 'other'"),
        ({"key": "language", "languages": ["de"], "shares": {"fr": 1}}, r"the strata are \['de', 'other'\]"),
        ({"key": "length_band"}, "give the bands for length_band"),
        ({"length_bands": [1000]}, "null for any other key"),
        ({"key": "length_band", "length_bands": []}, "at least 1"),
        ({"key": "length_band", "length_bands": [0, 10]}, "greater than 0"),
        ({"key": "length_band", "length_bands": [10, 10]}, "increasing"),
        ({"shares": {}}, "at least 1"),
        ({"shares": {"a": 0.5, "b": 0.4}}, "sum to 0.9 instead of 1"),
        ({"shares": {"a": 1.5, "b": -0.5}}, "greater than or equal to 0"),
        ({"shares": {"a": float("nan"), "b": 1}}, "finite"),
        ({"key": "length_band", "length_bands": [10], "shares": {"0-10": 1}}, r"length bands are \['0-9', '10-'\]"),
        ({"weights": {}}, "Extra inputs"),
    ],
)
def test_strata_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        subsampling(strata={**strata(), **changes})


def test_strata_of_languages_without_the_languages_are_refused() -> None:
    (part,) = parts_of([[("web", "x", 10, 4)]])
    parameters = subsampling(strata={**strata("language"), "languages": ["de"]})
    with pytest.raises(SamplingError, match="strata of languages need the languages of the documents"):
        estimate_part_tokens(part, parameters=parameters.estimate)


def test_shares_are_summed_as_they_are_written() -> None:
    shares = dict.fromkeys("abcdefghij", 0.1)
    assert sum(shares.values()) != 1
    assert Strata.model_validate(strata(shares=shares)).shares == shares


def test_length_bands_start_at_their_first_length() -> None:
    bands = Strata.model_validate(strata("length_band", [1000, 10_000]))
    assert bands.bands == ("0-999", "1000-9999", "10000-")
    assert bands.band_numbers(np.array([0, 999, 1000, 9999, 10_000, 10**9])).tolist() == [0, 0, 1, 1, 2, 2]


@settings(max_examples=40, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from([0.0, 0.3]), st.sampled_from([None, 700.0]))
def test_one_stratum_is_drawn_as_none(columns: list[list[Row]], share: float, target: float | None) -> None:
    """All rows of one source: the same documents, to the byte, as without strata."""
    parts = parts_of([[("web", *row[1:]) for row in rows] for rows in columns])
    without = split_all(parts, subsampling(held_out_share=share, target_tokens=target))
    for given_strata in (strata(), strata("length_band", [10**6])):
        made = split_all(parts, subsampling(held_out_share=share, target_tokens=target, strata=given_strata))
        for split in made:
            assert [table for table, _ in made[split]] == [table for table, _ in without[split]]


def as_specified(parts: list[list[Row]], seed: int, shares: dict[str, float], target: int) -> list[tuple[Any, Any]]:
    """The formulas once more, by source, in plain numpy over whole arrays; 4 characters a token, threshold 3."""
    tokens = [np.array([row[2] for row in rows]) / 4 for rows in parts]
    pools = {  # (source, is above) -> row numbers by part
        (name, above): [
            np.array([i for i, r in enumerate(rows) if (r[0], r[3] >= 3) == (name, above)], int) for rows in parts
        ]
        for name in SOURCES
        for above in (True, False)
    }
    sums = {key: [t[pool].sum() for t, pool in zip(tokens, of_parts, strict=True)] for key, of_parts in pools.items()}
    total = {name: sum(sums[name, True]) + sum(sums[name, False]) for name in SOURCES}
    target_met = min(target, *(total[name] / share for name, share in shares.items() if share))

    def fill(pool: Any, t: Any, budget: float) -> Any:
        if len(pool) == 0 or budget <= 0:
            return pool[:0]
        return pool[: np.searchsorted(np.cumsum(t[pool]), budget, side="left") + 1]

    drawn = []
    for p, t in enumerate(tokens):
        rng = np.random.default_rng((seed, p))
        annotated: list[int] = []
        unannotated: list[int] = []
        for name in sorted(SOURCES):
            scale = min(1.0, shares[name] * target_met / total[name]) if shares[name] else 0.0
            a, b = sums[name, True], sums[name, False]
            below_p = min(sum(a), sum(b)) * scale * (b[p] / sum(b)) if sum(b) else 0.0
            rng.shuffle(pools[name, True][p])
            rng.shuffle(pools[name, False][p])
            first = fill(pools[name, True][p], t, a[p] * scale + below_p)
            second = fill(pools[name, False][p], t, a[p] * scale + below_p - t[first].sum())
            annotated += [*first.tolist(), *second.tolist()]
            unannotated += fill(pools[name, False][p][len(second) :], t, b[p] * scale - below_p).tolist()
        drawn.append((sorted(annotated), sorted(unannotated)))
    return drawn


SHARES = st.permutations([0.5, 0.25, 0.25]) | st.permutations([0.75, 0.25, 0.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=3), SHARES, st.integers(1, 3000), st.integers(0, 5))
def test_draws_as_an_independent_program_does(
    columns: list[list[Row]], weights: list[float], target: int, seed: int
) -> None:
    columns = [*columns, [(source, "x", 40, 0) for source in SOURCES]]
    shares = dict(zip(SOURCES, weights, strict=True))
    parameters = subsampling(seed=seed, chars_per_token=4, target_tokens=target, strata=strata(shares=shares))
    made = split_all(parts_of(columns), parameters)
    found = list(zip(rows_of(made, "annotated"), rows_of(made, "unannotated"), strict=True))
    assert found == as_specified(columns, seed, shares, target)


@settings(max_examples=40, deadline=None)
@given(ROWS, SHARES, st.none() | st.integers(1, 3000))
def test_realised_shares_are_within_a_document_a_pool_of_the_intended(
    rows: list[Row], weights: list[float], target: int | None
) -> None:
    """In one part: a stratum has two budgets, and each is passed by less than a document."""
    rows = [*rows, *((source, "x", 40, 0) for source in SOURCES)]
    shares = dict(zip(SOURCES, weights, strict=True))
    parts = parts_of([rows])
    parameters = subsampling(target_tokens=target, strata=strata(shares=shares))
    whole = totals(parts, parameters)
    made = split_all(parts, parameters)
    largest = 400 / 4.068
    for source, share in shares.items():
        drawn = sum(
            made[split][0][1]["by_stratum"].get(source, {}).get("estimated_tokens", 0)
            for split in ("annotated", "unannotated")
        )
        assert (
            share * whole["budget_tokens"] - 1e-6 <= drawn < share * whole["budget_tokens"] + 2 * largest
            or share == drawn == 0
        )
    assert sum(
        of["scale"] * (of["above_tokens"] + of["below_tokens"]) for of in whole["strata"].values()
    ) == pytest.approx(whole["budget_tokens"])


@pytest.mark.parametrize(("scale", "above", "below"), [(1, 1, 1), (0.75, 1, 0.5), (0.5, 1, 0), (0.25, 0.5, 0)])
def test_the_annotated_split_is_matched_within_every_stratum(scale: float, above: float, below: float) -> None:
    """The whole of what is above and as much below; where less is drawn, what is above comes first."""
    rows: list[Row] = [("web", "x", 40, 3 if i % 10 == 0 else 0) for i in range(1000)]
    rows += [("chats", "x", 40, 5 if i % 4 == 0 else 1) for i in range(1000)]
    parameters = subsampling(target_tokens=scale * 2000 * 40 / 4.068, strata=strata())
    (table, _), *_ = split_all(parts_of([rows]), parameters)["annotated"]
    for source, rows_above in (("web", 100), ("chats", 250)):
        bad = [row["is_bad"] for row in table.to_pylist() if row["source"] == source]
        found = bad.count(True), bad.count(False)
        assert found == pytest.approx((above * rows_above, below * rows_above), abs=1)


@pytest.mark.parametrize(
    ("key", "length_bands", "shares", "column"),
    [
        ("source", None, {"web": 0.5, "chats": 0.5, "wikipedia": 0}, "source"),
        ("stratum", None, {"x": 0.75, "y": 0.25}, "stratum"),
        ("length_band", [100], {"0-99": 0.5, "100-": 0.5}, "characters"),
    ],
)
def test_strata_by_any_key(key: str, length_bands: Any, shares: dict[str, float], column: str) -> None:
    rows = [(SOURCES[i % 3], "xy"[i % 2], 40 if i % 5 else 200, i % 7 % 6) for i in range(2000)]
    parameters = subsampling(strata=strata(key, length_bands, shares), held_out_share=0.1)
    made = split_all(parts_of([rows]), parameters)
    drawn = [row for split in ("annotated", "unannotated") for row in made[split][0][0].to_pylist()]

    def stratum(row: dict[str, Any]) -> str:
        return ("0-99" if row["characters"] < 100 else "100-") if column == "characters" else str(row[column])

    tokens = {name: sum(row["characters"] for row in drawn if stratum(row) == name) for name in shares}
    total = sum(tokens.values())
    assert {name: n / total for name, n in tokens.items()} == pytest.approx(shares, abs=0.01)
    for split in ("annotated", "unannotated"):
        table, statistics = made[split][0]
        names = [stratum(row) for row in table.to_pylist()]
        assert {name: of["rows"] for name, of in statistics["by_stratum"].items()} == {
            n: names.count(n) for n in set(names)
        }


def test_strata_change_no_held_out_document() -> None:
    rows = [(SOURCES[i % 3], "x", 40, i % 6) for i in range(300)]
    shares = {"web": 1.0, "chats": 0.0, "wikipedia": 0.0}
    one = split_all(parts_of([rows]), subsampling(held_out_share=0.2))
    other = split_all(parts_of([rows]), subsampling(held_out_share=0.2, strata=strata(shares=shares)))
    assert one["held_out"] == other["held_out"]
    drawn = {row for split in ("annotated", "unannotated") for row in rows_of(other, split)[0]}
    assert not drawn & set(rows_of(other, "held_out")[0])
    assert {rows[row][0] for row in drawn} == {"web"}
    assert {rows[row][0] for row in rows_of(other, "held_out")[0]} == set(SOURCES)


def test_a_target_that_a_stratum_cannot_fill_is_capped_and_says_so() -> None:
    rows: list[Row] = [("web", "x", 4068, 0)] * 10 + [("chats", "x", 4068, 0)] * 2
    shares = {"web": 0.5, "chats": 0.5}
    found = totals(parts_of([rows]), subsampling(target_tokens=8000, strata=strata(shares=shares)))
    assert found["limited_by"] == [{"stratum": "chats", "tokens": pytest.approx(2000), "wanted_tokens": 4000}]
    assert found["budget_tokens"] == pytest.approx(4000)
    assert {name: of["scale"] for name, of in found["strata"].items()} == pytest.approx({"chats": 1, "web": 0.2})
    most = totals(parts_of([rows]), subsampling(strata=strata(shares=shares)))
    assert most["budget_tokens"] == pytest.approx(4000)
    assert most["limited_by"] == []  # nothing was wanted


def test_the_scarcest_stratum_comes_first() -> None:
    rows: list[Row] = [(name, "x", 4068, 0) for name, n in zip(SOURCES, (3, 10, 2), strict=True) for _ in range(n)]
    shares = {"chats": 0.25, "web": 0.5, "wikipedia": 0.25}
    found = totals(parts_of([rows]), subsampling(target_tokens=19_000, strata=strata(shares=shares)))
    assert [short["stratum"] for short in found["limited_by"]] == ["wikipedia", "chats"]
    assert found["budget_tokens"] == pytest.approx(8000)


def test_shares_that_do_not_fit_the_corpus_are_refused_with_names_and_amounts() -> None:
    parts = parts_of([[("web", "x", 4068, 0), ("chats", "x", 8136, 0)]])
    with pytest.raises(SamplingError, match=r"no share is given for the strata 'chats' \(2,000 tokens\)"):
        totals(parts, subsampling(strata=strata(shares={"web": 1})))
    many = parts_of([[("web", f"topic {i:02d}", 40, 0) for i in range(30)]])
    with pytest.raises(SamplingError, match=r"'topic 19' .* and 10 more; .* shares: null lists all .* strata_report"):
        totals(many, subsampling(strata=strata("stratum", shares={"other": 1})))
    with pytest.raises(SamplingError, match=r"the corpus has no documents of 'code' \(0.5\)"):
        totals(parts, subsampling(strata=strata(shares={"web": 0.5, "chats": 0, "code": 0.5})))
    empty = parts_of([[("web", "x", 0, 0), ("chats", "x", 8, 0)]])
    with pytest.raises(SamplingError, match=r"no document has a token, or all are held out, of 'web' \(0.5\)"):
        totals(empty, subsampling(strata=strata(shares={"web": 0.5, "chats": 0.5})))


def test_a_part_without_rows_and_a_part_without_a_stratum() -> None:
    columns: list[list[Row]] = [[], [("web", "x", 40, 0)] * 4, [("chats", "x", 40, 5)] * 4]
    made = split_all(parts_of(columns), subsampling(strata=strata()))
    assert rows_of(made, "annotated") == [[], [], [0, 1, 2, 3]]
    assert rows_of(made, "unannotated") == [[], [0, 1, 2, 3], []]


def test_many_strata_in_one_part() -> None:
    rows: list[Row] = [("web", f"topic {i * 7919 % 500}", 40 + i % 90, i % 6) for i in range(5000)]
    made = split_all(parts_of([rows]), subsampling(target_tokens=20_000, strata=strata("stratum")))
    assert len(made["annotated"][0][1]["by_stratum"]) == 500


@versioned("scored_part", 1)
def scored_part(part: Part) -> Rows:
    """Documents of three sources; made in worker processes."""
    rows = [(SOURCES[(i * 31 + part.index) % 3], "x", 40 + i * 7 % 300, i * i % 7 % 6) for i in range(60)]
    batches = (batch for batch in table_of(rows).combine_chunks().to_batches())
    return Rows(table_of(rows).schema, _with_statistics(batches))


def _with_statistics(batches: Any) -> Any:
    yield from batches
    return {}


def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    given = Shards.from_values(list(range(6)), [f"{i:064x}" for i in range(6)])
    Store(tmp_path / "scored").save(given.map(scored_part), make_engine("inline"))
    documents = Store(tmp_path / "scored").load()
    shares = {"web": 0.5, "chats": 0.25, "wikipedia": 0.25}
    parameters = subsampling(target_tokens=5000, held_out_share=0.1, strata=strata(shares=shares))
    estimates = documents.reduce(estimate_part_tokens, parameters=parameters.estimate)  # made where it is needed
    whole = totals_of(estimates.values, parameters)
    drawn = documents.zip(estimates).map(select_split, split="annotated", parameters=parameters, totals=whole)
    files = []
    for engine in (make_engine("inline"), make_engine("processes", 2), make_engine("processes", 5)):
        folder = tmp_path / f"run_{len(files)}"
        Store(folder).save(drawn, engine)
        files.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert len(files[0]) == 13, "six parts, the files that they extend, the ledger"
    assert files[0] == files[1] == files[2]
