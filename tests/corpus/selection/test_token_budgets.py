"""Budgets in tokens of the job's tokenizer: each source is realised within one document of its budget."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.errors import SelectionError
from everytoken.corpus.selection import MixtureParameters, budgets, select
from everytoken.corpus.selection.decisions import DECISIONS, Selection
from everytoken.shards import Artifact, Shards, plan_artifact, recipe_value
from tests.corpus.part_tables import TablePart
from tests.corpus.selection.stored_documents import Given, in_memory, made


def recipe(weights: dict[str, float], total: int, **changed: Any) -> MixtureParameters:
    given = {"unit": "tokens", "tolerance": 1.0, "documents_per_part": 3, **changed}
    return MixtureParameters(weights=weights, target_total_tokens=total, **given)


def counted(counts: Sequence[Sequence[int]], batch_rows: int = 5) -> Shards:
    """The counts of each part, in other batches than the documents."""
    tables = [pa.table({"tokens": pa.array(part, pa.int64())}) for part in counts]
    return Shards(tuple(TablePart(table, batch_rows, index) for index, table in enumerate(tables)))


def selected(
    root: Path, parts: Sequence[Given], counts: Sequence[Sequence[int]], mixture: MixtureParameters, batch_rows: int = 7
) -> Artifact:
    return made(
        root,
        plan_artifact(
            select,
            documents=in_memory(parts, batch_rows),
            duplicates=None,
            max_text_bytes=dict.fromkeys(mixture.weights),
            mixture=mixture,
            token_counts=counted(counts),
        ),
    )


def texts(source: str, number: int, shard: int = 0) -> Given:
    return Given(source, [f"{source}{shard}-{n}" for n in range(number)], shard)


SIZES = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("ab"), SIZES), min_size=2, max_size=6), st.integers(2, 90), st.integers(1, 9))
def test_every_source_is_realised_within_one_document(
    given_parts: list[tuple[str, list[int]]], total: int, batch_rows: int
) -> None:
    parts = [texts(source, len(sizes), number) for number, (source, sizes) in enumerate(given_parts)]
    counts = [sizes for _, sizes in given_parts]
    of_source: dict[str, list[int]] = defaultdict(list)
    for source, sizes in given_parts:
        of_source[source] += sizes
    mixture = recipe({"a": 0.6, "b": 0.4}, total, allow_repeat={"a": 2})
    needed = {source: budget.tokens for source, budget in budgets(mixture).items()}
    with tempfile.TemporaryDirectory() as root:
        there = {source: sum(of_source[source]) * (2 if source == "a" else 1) for source in "ab"}
        if any(there[source] < needed[source] for source in "ab"):
            with pytest.raises(SelectionError, match="runs dry"):
                selected(Path(root), parts, counts, mixture, batch_rows)
            return
        selection = selected(Path(root), parts, counts, mixture, batch_rows)
        order = np.load(selection.path("order.npy")).tolist()
        names = Selection(selection).sources
    for row in selection.statistics["mixture"]:
        source, sizes = row["source"], of_source[row["source"]]
        used = [sizes[use % len(sizes)] for use in range(row["uses"])]
        assert "characters" not in row
        assert row["tokens"] == sum(used) >= row["budget_tokens"] == needed[source]
        assert sum(used[:-1]) < needed[source]
        assert [names[number] for number in order].count(source) == row["uses"]


def test_every_prefix_of_the_order_holds_the_sources_in_their_shares_of_tokens(tmp_path: Path) -> None:
    sizes = {"a": [5, 1, 9, 3, 3, 3, 8, 1], "b": [2, 2, 7, 1, 4]}
    mixture = recipe({"a": 0.7, "b": 0.3}, 40)
    selection = selected(
        tmp_path, [texts(name, len(some)) for name, some in sizes.items()], list(sizes.values()), mixture
    )
    rows = {row["source"]: row["tokens"] for row in selection.statistics["mixture"]}
    given = {"a": 0, "b": 0}
    queue = {name: iter(some) for name, some in sizes.items()}
    names = Selection(selection).sources
    for number in np.load(selection.path("order.npy")).tolist():
        given[names[number]] += next(queue[names[number]])
        total = sum(given.values())
        for source, tokens in rows.items():
            assert abs(given[source] - tokens * total / sum(rows.values())) <= 9


def test_the_document_that_reaches_the_budget_is_the_last_whatever_its_characters(tmp_path: Path) -> None:
    selection = selected(tmp_path, [texts("a", 5)], [[3, 3, 100, 1, 1]], recipe({"a": 1.0}, 7))
    reasons = [DECISIONS[code] for code in Selection(selection).codes]
    assert reasons == ["kept", "kept", "kept", "beyond_budget", "beyond_budget"]
    assert selection.statistics["mixture"][0]["tokens"] == 106


def test_a_source_that_runs_dry_in_tokens_says_how_many_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SelectionError) as error:
        selected(tmp_path, [texts("a", 2)], [[1_000, 234]], recipe({"a": 1.0}, 2_000))
    assert str(error.value) == (
        "source 'a' runs dry: its budget is 2,000 tokens, its documents have 1,234 and may be used 1 time(s). Read "
        "more of its shards, raise its max_text_bytes if it has one, lower its weight or mixture.target_total_tokens, "
        "or set mixture.allow_repeat.a to at least 2."
    )


def test_a_realised_weight_beyond_tolerance_names_counted_tokens(tmp_path: Path) -> None:
    parts, counts = [texts("a", 1), texts("b", 1)], [[90], [10]]
    selection = selected(tmp_path, parts, counts, recipe({"a": 0.5, "b": 0.5}, 20, tolerance=0.1))
    assert "90 tokens for a budget of 10." in selection.statistics["warnings"][0]


def test_counts_of_other_documents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match=r"the token counts have parts of \[3\] rows, and the documents of \[2\]"):
        selected(tmp_path, [texts("a", 2)], [[1, 2, 3]], recipe({"a": 1.0}, 2))


@pytest.mark.parametrize(("unit", "given"), [("tokens", False), ("estimated", True)])
def test_counts_are_given_exactly_where_budgets_are_tokens(tmp_path: Path, unit: str, given: bool) -> None:
    mixture = recipe({"a": 1.0}, 2, unit=unit, chars_per_token=4.0 if unit == "estimated" else None)
    inputs = {"documents": in_memory([texts("a", 1)]), "duplicates": None, "max_text_bytes": {"a": None}}
    with pytest.raises(SelectionError, match=f"mixture.unit is {unit}"):
        select(tmp_path, **inputs, mixture=mixture, token_counts=counted([[1]]) if given else None)


def test_chars_per_token_is_given_exactly_where_tokens_are_estimated() -> None:
    with pytest.raises(ValidationError, match=r"unit is tokens.*chars_per_token = 4\.0.*remove chars_per_token"):
        recipe({"a": 1.0}, 2, chars_per_token=4.0)
    with pytest.raises(ValidationError, match="unit is estimated, and chars_per_token is not given"):
        recipe({"a": 1.0}, 2, unit="estimated")


def test_estimated_is_the_default_and_no_part_of_a_recipe() -> None:
    estimated = MixtureParameters(
        weights={"a": 1.0}, target_total_tokens=8, chars_per_token=4.0, tolerance=0.0, documents_per_part=1
    )
    assert estimated.unit == "estimated"
    assert "unit" not in recipe_value(estimated, "mixture")
    assert recipe_value(recipe({"a": 1.0}, 8), "mixture")["unit"] == "tokens"
