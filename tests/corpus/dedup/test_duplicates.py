"""The first document of a text in plan order wins, over all sources, whatever memory there is."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.corpus.dedup.duplicates import DedupRules, Duplicates, between, find_duplicates
from everytoken.corpus.errors import SelectionError
from everytoken.shards import Artifact, Shards, plan_artifact
from tests.corpus.selection.stored_documents import Given, in_memory, made, stored
from tests.shards.folders import content

EXACT = DedupRules(exact=True, near=None)
MEMORY = 200 << 20
PARTS = [
    Given("web", ["a", "b", "a", "c"]),
    Given("books", ["b", "d", "d ", "D", "a"], shard_index=3),
    Given("web", [], shard_index=1),
    Given("web", ["e", "c"], shard_index=2),
]


def plan(documents: Shards, **changed: Any) -> Artifact:
    given = {"buckets": None, "rules": EXACT, "memory": MEMORY, **changed}
    return plan_artifact(find_duplicates, documents=documents, **given)


def found_in(documents: Shards, **changed: Any) -> tuple[list[list[int]], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        given = {"buckets": None, "rules": EXACT, "memory": MEMORY, **changed}
        built = find_duplicates(Path(folder), documents=documents, **given)
        return np.load(Path(folder) / "duplicates.npy").tolist(), dict(built.statistics)


def test_each_duplicate_is_named_with_the_first_of_its_text(tmp_path: Path) -> None:
    artifact = made(tmp_path / "duplicates", plan(stored(tmp_path / "documents", PARTS)))
    duplicates = Duplicates(artifact)
    assert duplicates.exact.tolist() == [[2, 0], [4, 1], [8, 0], [10, 3]]
    assert duplicates.exact.dtype == np.int64
    assert len(duplicates.near) == 0
    assert duplicates.addresses(np.array([3, 0, 1, 0])) == [("web", 0, row) for row in (7, 1, 3, 1)]
    assert artifact.statistics == {
        "rows": 11,
        "duplicates": 4,
        "near_duplicates": 0,
        "by_source": {
            "books": {"rows": 5, "duplicates": 2, "near_duplicates": 0},
            "web": {"rows": 6, "duplicates": 2, "near_duplicates": 0},
        },
    }
    names = sorted(path.name for path in (tmp_path / "duplicates").iterdir())
    assert names == ["duplicates.npy", "firsts.npy", "ledger.json", "near_duplicates.npy", "sources.json"]


def test_addresses_are_those_of_any_source_and_shard(tmp_path: Path) -> None:
    parts = [Given("a", ["1", "2"], 7), Given("b", ["3", "2"], 5), Given("c", ["4", "3", "1"], 6)]
    duplicates = Duplicates(made(tmp_path / "duplicates", plan(in_memory(parts))))
    assert duplicates.exact.tolist() == [[3, 1], [5, 2], [6, 0]]
    assert duplicates.addresses(duplicates.exact[:, 1]) == [("a", 7, 3), ("b", 5, 1), ("a", 7, 1)]


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 12).map(str), max_size=20), min_size=1, max_size=4), st.integers(1, 9))
def test_duplicates_are_those_of_a_walk_over_all_texts(texts: list[list[str]], batch_rows: int) -> None:
    found, statistics = found_in(in_memory([Given(f"s{i}", part) for i, part in enumerate(texts)], batch_rows))
    first: dict[str, int] = {}
    expected = [
        [position, first[text]]
        for position, text in enumerate(text for part in texts for text in part)
        if first.setdefault(text, position) != position
    ]
    assert found == expected
    assert statistics["duplicates"] == len(expected)


@pytest.mark.parametrize("texts", [[], ["a"], ["a", "b"]])
def test_no_duplicates_are_an_empty_table(texts: list[str], tmp_path: Path) -> None:
    duplicates = Duplicates(made(tmp_path / "duplicates", plan(in_memory([Given("s", texts)]))))
    assert duplicates.exact.shape == (0, 2)
    assert duplicates.addresses(duplicates.exact[:, 1]) == []


def test_without_the_rule_nothing_is_a_duplicate() -> None:
    assert found_in(in_memory(PARTS), rules=DedupRules(exact=False, near=None))[0] == []


def test_same_bytes_for_any_memory(tmp_path: Path) -> None:
    """8 MB of keys under 1 MB and under 1 GB: buckets and blocks are others, the files are the same."""
    texts = [str(number * number % 150_001) for number in range(200_000)]
    documents = stored(tmp_path / "documents", [Given("a", texts[:90_000]), Given("b", texts[90_000:])])
    one = made(tmp_path / "one", plan(documents, memory=1 << 20))
    two = made(tmp_path / "two", plan(documents, memory=1 << 30))
    assert one.statistics["duplicates"] > 100_000
    files = [{n: b for n, b in content(tmp_path / name).items() if n != "ledger.json"} for name in ("one", "two")]
    assert files[0] == files[1]
    assert one.root_digest == two.root_digest
    fingerprints = {json.loads((tmp_path / n / "ledger.json").read_text())["fingerprint"] for n in ("one", "two")}
    assert len(fingerprints) == 1, "a bound on memory makes nothing again"


def test_a_range_of_a_sorted_table() -> None:
    table = np.array([[2, 0], [4, 1], [4, 2], [9, 3]])
    for start in range(11):
        for stop in range(start, 12):
            expected = [row for row in table.tolist() if start <= row[0] < stop]
            assert between(table, start, stop).tolist() == expected


def test_near_rules_without_buckets_are_an_error() -> None:
    near = {"num_permutations": 8, "bands": 2, "shingle_words": 3, "seed": 1}
    rules = DedupRules.model_validate({"exact": True, "near": near})
    with pytest.raises(SelectionError, match="the buckets are of 0 parts with 0 rows, the documents of 4 with 11"):
        found_in(in_memory(PARTS), rules=rules)
