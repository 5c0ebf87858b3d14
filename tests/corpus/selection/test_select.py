"""Which documents stay is decided in plan order: duplicates, then payload caps, then budgets."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.corpus.dedup.duplicates import DedupRules, find_duplicates
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.selection.decisions import DECISIONS, Selection, select
from everytoken.corpus.selection.mixture import MixtureParameters
from everytoken.shards import Artifact, Shards, plan_artifact
from tests.corpus.part_tables import TablePart
from tests.corpus.selection.stored_documents import Given, in_memory, made, table_of

PARTS = [
    Given("a", ["aaaa", "bb", "cccccc", "bb"]),
    Given("b", ["aaaa", "é", "dd", "eeee"]),
    Given("a", [], shard_index=1),
    Given("a", ["ff", "gg"], shard_index=2),
]
NO_CAPS = {"a": None, "b": None}


def recipe(weights: dict[str, float], total: int, **changed: Any) -> MixtureParameters:
    given = {"chars_per_token": 1.0, "allow_repeat": {}, "tolerance": 1.0, "documents_per_part": 3, **changed}
    return MixtureParameters(weights=weights, target_total_tokens=total, **given)


def selected(
    root: Path,
    shards: Shards,
    caps: Mapping[str, int | None] = NO_CAPS,
    mixture: MixtureParameters | None = None,
    dedup: bool = True,
) -> tuple[list[str], Artifact]:
    """Return the reason of each document, and the artifact."""
    duplicates = None
    if dedup:
        rules = DedupRules(exact=True, near=None)
        planned = plan_artifact(find_duplicates, documents=shards, buckets=None, rules=rules, memory=200 << 20)
        duplicates = made(root / "duplicates", planned)
    inputs = {"documents": shards, "duplicates": duplicates, "max_text_bytes": dict(caps), "mixture": mixture}
    artifact = made(root / "selection", plan_artifact(select, **inputs))
    return [DECISIONS[code] for code in Selection(artifact).codes], artifact


def test_without_rules_all_stay(tmp_path: Path) -> None:
    reasons, artifact = selected(tmp_path, in_memory(PARTS), dedup=False)
    assert reasons == ["kept"] * 10
    assert artifact.statistics == {
        "rows": 10,
        "by_source": {
            "a": {"rows_in": 6, "kept": 6, "set_aside": {}, "characters": 18, "utf8_bytes": 18},
            "b": {"rows_in": 4, "kept": 4, "set_aside": {}, "characters": 11, "utf8_bytes": 12},
        },
        "mixture": None,
        "warnings": [],
    }
    selection = Selection(artifact)
    assert selection.sources == ["a", "b"]
    assert selection.parts.tolist() == [[0, 0, 4], [1, 4, 4], [-1, 8, 0], [0, 8, 2]]
    assert selection.kept_by_source().tolist() == [6, 4]


@pytest.mark.parametrize("parts", [[], [Given("a", [])]])
def test_nothing_to_select_from_is_an_empty_selection(tmp_path: Path, parts: list[Given]) -> None:
    reasons, artifact = selected(tmp_path, in_memory(parts))
    assert reasons == []
    assert artifact.statistics == {"rows": 0, "by_source": {}, "mixture": None, "warnings": []}


def test_duplicates_go_first_and_count_in_no_cap(tmp_path: Path) -> None:
    reasons, artifact = selected(tmp_path, in_memory(PARTS), {"a": 14, "b": 4})
    assert reasons == [
        *("kept", "kept", "kept", "duplicate"),
        *("duplicate", "kept", "kept", "beyond_payload_cap"),
        *("kept", "beyond_payload_cap"),
    ]
    assert artifact.statistics["by_source"]["b"] == {
        "rows_in": 4,
        "kept": 2,
        "set_aside": {"duplicate": 1, "beyond_payload_cap": 1},
        "characters": 3,
        "utf8_bytes": 4,
    }


@pytest.mark.parametrize(
    ("cap", "stay"), [(None, "11111"), (0, "00000"), (3, "00000"), (4, "10000"), (9, "11000"), (14, "11111")]
)
def test_a_cap_ends_at_a_document_and_nothing_shorter_slips_in_after(
    tmp_path: Path, cap: int | None, stay: str
) -> None:
    reasons, _ = selected(tmp_path, in_memory([Given("a", ["aaaa", "ééb", "c", "dd", "ff"])], 2), {"a": cap})
    assert "".join("1" if reason == "kept" else "0" for reason in reasons) == stay
    assert set(reasons) <= {"kept", "beyond_payload_cap"}


def test_the_document_that_reaches_the_budget_is_the_last(tmp_path: Path) -> None:
    mixture = recipe({"b": 0.25, "a": 0.75}, 8)
    reasons, artifact = selected(tmp_path, in_memory(PARTS), mixture=mixture)
    assert reasons == [
        *("kept", "kept", "beyond_budget", "duplicate"),  # a: 6 characters
        *("duplicate", "kept", "kept", "beyond_budget"),  # b: 2 characters, 3 are given
        *("beyond_budget", "beyond_budget"),
    ]
    table = artifact.statistics["mixture"]
    assert [(row["source"], row["budget_tokens"], row["tokens"], row["uses"]) for row in table] == [
        ("b", 2, 3, 2),
        ("a", 6, 6, 2),
    ]
    assert Selection(artifact).sources == ["b", "a"], "numbered as the recipe has them"
    assert np.load(artifact.path("order.npy")).tolist() == [0, 1, 0, 1]


def test_a_source_that_may_be_repeated_is_used_again_until_the_budget_is_reached(tmp_path: Path) -> None:
    parts = [Given("a", ["aaa", "bb"]), Given("b", ["c" * 40])]
    mixture = recipe({"a": 0.25, "b": 0.75}, 48, allow_repeat={"a": 3})
    reasons, artifact = selected(tmp_path, in_memory([*parts, Given("b", ["x"])]), mixture=mixture)
    assert reasons == ["kept"] * 3 + ["beyond_budget"]
    a, b = artifact.statistics["mixture"]
    assert (a["documents"], a["uses"], a["characters"], a["budget_tokens"]) == (2, 5, 13, 12)
    assert (b["documents"], b["uses"], b["characters"], b["budget_tokens"]) == (1, 1, 40, 36)
    order = np.load(artifact.path("order.npy"))
    assert order.dtype == np.uint8
    assert sorted(order.tolist()) == [0] * 5 + [1]


def test_a_weight_that_rounds_to_no_token_takes_nothing_and_warns(tmp_path: Path) -> None:
    mixture = recipe({"b": 1e-9, "a": 1 - 1e-9}, 8, tolerance=0.5)
    reasons, artifact = selected(tmp_path, in_memory(PARTS), mixture=mixture)
    assert reasons[4:8] == ["duplicate", *["beyond_budget"] * 3]
    assert np.load(artifact.path("order.npy")).tolist() == [1, 1, 1]
    (warning,) = artifact.statistics["warnings"]
    assert "source 'b' has a realised weight of 0.000000" in warning


def test_all_sources_that_run_dry_are_named_at_once(tmp_path: Path) -> None:
    mixture = recipe({"a": 0.5, "b": 0.25, "c": 0.25}, 80, allow_repeat={"b": 2})
    with pytest.raises(SelectionError) as error:
        selected(tmp_path, in_memory(PARTS), {**NO_CAPS, "c": None}, mixture)
    lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [f"source {name!r} runs dry" for name in "abc"]
    assert "its documents have 7 (7 characters) and may be used 2 time(s)" in lines[1], "duplicates give nothing"
    assert "its documents have 0 (0 characters)" in lines[2]


def test_a_realised_weight_beyond_tolerance_warns(tmp_path: Path) -> None:
    _, artifact = selected(tmp_path, in_memory(PARTS), mixture=recipe({"a": 0.75, "b": 0.25}, 8, tolerance=0.01))
    assert [sentence[:10] for sentence in artifact.statistics["warnings"]] == ["source 'a'", "source 'b'"]


def test_sources_that_the_parameters_do_not_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match=r"part_00001 names source 'b', expected one of \['a'\]"):
        selected(tmp_path, in_memory(PARTS), {"a": None}, dedup=False)
    with pytest.raises(SelectionError, match="source 'b', which has no weight in the mixture"):
        selected(tmp_path, in_memory(PARTS), mixture=recipe({"a": 1.0}, 4), dedup=False)


@pytest.mark.parametrize("batch_rows", [1, 7])
def test_a_part_of_two_sources_is_an_error(tmp_path: Path, batch_rows: int) -> None:
    both = pa.concat_tables([table_of(Given("a", ["1"])), table_of(Given("b", ["2"]))])
    shards = Shards((TablePart(both, batch_rows),))
    with pytest.raises(SelectionError, match=r"part_00000 has documents of \['a', 'b'\], expected one source a part"):
        selected(tmp_path, shards, dedup=False)


def by_definition(
    parts: Sequence[Given], caps: Mapping[str, int | None], needed: Mapping[str, int] | None
) -> list[str]:
    """The rules, one document after the other."""
    seen: set[str] = set()
    size: dict[str, int] = {}
    closed: set[str] = set()
    characters: dict[str, int] = {}
    reasons = []
    for source, texts, _ in parts:
        for text in texts:
            cap = caps[source]
            if text in seen:
                reasons.append("duplicate")
                continue
            seen.add(text)
            if cap is not None and (source in closed or size.get(source, 0) + len(text.encode()) > cap):
                closed.add(source)
                reasons.append("beyond_payload_cap")
                continue
            size[source] = size.get(source, 0) + len(text.encode())
            if needed is not None and characters.get(source, 0) >= needed[source]:
                reasons.append("beyond_budget")
                continue
            characters[source] = characters.get(source, 0) + len(text)
            reasons.append("kept")
    return reasons


TEXTS = st.lists(st.text(st.sampled_from("aé🎉"), min_size=1, max_size=9), max_size=15)


@settings(max_examples=40)
@given(
    st.lists(st.builds(Given, st.sampled_from("ab"), TEXTS, st.just(0)), min_size=1, max_size=5),
    st.fixed_dictionaries({"a": st.none() | st.integers(0, 60), "b": st.none() | st.integers(0, 60)}),
    st.none() | st.integers(1, 40),
    st.integers(1, 9),
)
def test_the_selection_is_that_of_a_walk_over_all_documents(
    parts: list[Given], caps: dict[str, int | None], total: int | None, batch_rows: int
) -> None:
    mixture = None if total is None else recipe({"a": 0.5, "b": 0.5}, total)
    needed = None if total is None else {"a": -(-total // 2), "b": total // 2}
    expected = by_definition(parts, caps, needed)
    with tempfile.TemporaryDirectory() as root:
        try:
            reasons, artifact = selected(Path(root), in_memory(parts, batch_rows), caps, mixture)
        except SelectionError as error:
            assert needed is not None
            kept = {source: 0 for source in needed}
            texts = [(source, text) for source, some, _ in parts for text in some]
            for (source, text), reason in zip(texts, expected, strict=True):
                kept[source] += len(text) * (reason == "kept")
            assert any(kept[source] < needed[source] for source in needed), error
            return
    assert reasons == expected
    for source, counts in artifact.statistics["by_source"].items():
        assert counts["rows_in"] == sum(len(part.texts) for part in parts if part.source == source)
        assert counts["rows_in"] == counts["kept"] + sum(counts["set_aside"].values())
