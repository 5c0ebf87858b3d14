"""Nested parameters, metrics and histories to MLflow's flat keys."""

from __future__ import annotations

import dataclasses
import json
import math
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from everytoken.tracking import TrackingError
from everytoken.tracking.mlflow_keys import (
    flat_key,
    flat_metrics,
    flat_parameters,
    flatten,
    metric_points,
    plain,
    shorten,
)

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers(), max_size=3)
)
TREES = st.dictionaries(
    NAMES, st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3)), max_size=4
)


class Kind(Enum):
    FAST = "fast"


class Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    layers: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    folder: Path
    kind: Kind
    names: frozenset[str]


def count_leaves(tree: dict[str, Any]) -> int:
    return sum(count_leaves(value) if isinstance(value, dict) and value else 1 for value in tree.values())


def test_models_dataclasses_and_dicts_become_dotted_keys() -> None:
    outer = Outer(Inner(seed=42, layers=(1, 2)), Path("a/b"), Kind.FAST, frozenset("cab"))
    assert flat_parameters(plain({"subsampling": outer, "empty": {}, "none": None, "blank": "", "on": True})) == {
        "subsampling.inner.seed": "42",
        "subsampling.inner.layers": "[1, 2]",
        "subsampling.folder": "a/b",
        "subsampling.kind": "fast",
        "subsampling.names": '["a", "b", "c"]',
        "empty": "{}",
        "none": "null",
        "blank": '""',
        "on": "true",
    }


@given(TREES)
def test_every_leaf_has_a_key_of_its_own_or_the_tree_is_refused(tree: dict[str, Any]) -> None:
    try:
        flat = flatten(tree)
    except TrackingError as error:
        assert "both become" in str(error)
    else:
        assert len(flat) == count_leaves(tree)


@given(TREES)
def test_mlflow_takes_every_key_and_value(tree: dict[str, Any]) -> None:
    from mlflow.utils.validation import _validate_param

    try:
        flat = flat_parameters(plain(tree))
    except TrackingError:
        return
    for key, value in flat.items():
        taken = _validate_param(key, value)  # type: ignore[no-untyped-call]
        assert taken.value == value, "MLflow would cut it"


@given(TREES)
def test_plain_is_json_and_keeps_what_is_json_already(tree: dict[str, Any]) -> None:
    again = json.loads(json.dumps(plain(tree)))
    assert json.dumps(again) == json.dumps(tree)


@given(st.text(max_size=300), st.text(max_size=300), st.integers(120, 200))
def test_cut_values_stay_within_the_limit_and_differ_where_the_whole_ones_do(one: str, two: str, limit: int) -> None:
    assert len(shorten(one, limit)) <= limit
    assert (shorten(one, limit) == shorten(two, limit)) == (one == two)


def test_a_long_value_is_cut_with_a_visible_mark() -> None:
    value = flat_parameters({"text": "x" * 7000})["text"]
    assert len(value) == 6000
    assert "[CUT: 7000 characters, SHA-256 " in value and value.endswith("complete in parameters.json]")


@pytest.mark.parametrize("value", ["a\udc80", ["x", "a\udc80"], Path("a\udc80"), {"a\udc80": 1}])
def test_half_a_character_is_refused_with_the_name_of_its_parameter(value: object) -> None:
    with pytest.raises(TrackingError, match=r"^training\.note(\.1)?: the text 'a\\udc80' holds U\+DC80 at position 1"):
        plain({"training": {"note": value}})


@pytest.mark.parametrize("tree", [{"a.b": 1, "a": {"b": 2}}, {"a/b": 1, "a:b": 2}])
def test_two_paths_with_one_key_are_refused_by_name(tree: dict[str, Any]) -> None:
    with pytest.raises(TrackingError, match="both become MLflow's key"):
        flatten(tree)


def test_keys_that_are_one_as_text_are_refused() -> None:
    with pytest.raises(TrackingError, match="two keys are both '1'"):
        plain({"steps": {1: "a", "1": "b"}})


def test_a_key_may_have_250_characters() -> None:
    assert len(flat_key("a" * 250)) == 250
    for key in ("a" * 251, ""):
        with pytest.raises(TrackingError, match="MLflow takes 1 to 250"):
            flat_key(key)


def test_a_value_without_a_plain_form_is_refused_with_its_place() -> None:
    with pytest.raises(TrackingError, match=r"training\.loss\.1: a object cannot be recorded"):
        plain({"training": {"loss": [1, object()]}})


def test_metrics_are_flat_numbers() -> None:
    data = {"kept": 3, "share": {"a": np.float32(0.5), "b": np.int64(2)}, "nothing": {}, "loss": math.inf}
    assert flat_metrics("x", data, "x_metrics") == {"x.kept": 3, "x.share.a": 0.5, "x.share.b": 2, "x.loss": math.inf}


@pytest.mark.parametrize("wrong", ["3", None, True, [1]])
def test_a_metric_that_is_no_number_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(TrackingError, match=r"dataset x_metrics, key x\.a\.b: expected a number"):
        flat_metrics("x", {"a": {"b": wrong}}, "x_metrics")


def test_a_history_gives_a_point_a_cell_and_none_for_a_missing_one() -> None:
    lists = {"step": [0, 10], "loss": [2.0, math.nan], "eval": [None, 1.5]}
    points = metric_points("t", lists, "t_history")
    assert [point[:2] for point in points] == [("t.loss", 0), ("t.loss", 10), ("t.eval", 10)]
    assert points[0][2] == 2.0 and math.isnan(points[1][2]) and points[2][2] == 1.5
    frame = pd.DataFrame({"loss": [2.0, 1.0], "step": [0, 10]})
    assert metric_points("t", frame, "t_history") == [("t.loss", 0, 2.0), ("t.loss", 10, 1.0)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"loss": [1]}, "with a column 'step'"),
        ([1, 2], "found list"),
        ({"step": [0, 1], "loss": [1]}, "'step' has 2 rows, other columns differ: {'loss': 1}"),
        ({"step": [0.5], "loss": [1]}, "row 0: step must be an integer, found 0.5"),
        ({"step": [0], "loss": ["x"]}, "column loss, row 0: expected a number"),
    ],
)
def test_a_history_of_another_form_is_refused(data: Any, said: str) -> None:
    with pytest.raises(TrackingError) as caught:
        metric_points("t", data, "t_history")
    assert said in str(caught.value)
