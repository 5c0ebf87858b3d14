"""A recipe is the function, its version, its parameters and its inputs; whatever has no canonical form is refused."""

from __future__ import annotations

import dataclasses
import enum
import functools
import pickle
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from everytoken.shards import IncompleteStore, Recipe, RecipeError, plan_artifact, stored_in, versioned
from everytoken.shards import recipe as recipes
from tests.shards import functions
from tests.shards.functions import add_one, build_nothing, count_up, version_of
from tests.shards.functions import given as given_parts


class Model(BaseModel):
    limit: int
    names: tuple[str, ...] = ()


class OpenModel(BaseModel):
    model_config = ConfigDict(extra="allow")
    limit: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    limit: float


class Grown(Model):
    order: Annotated[str, recipes.UNRECORDED_DEFAULT] = "as_written"
    cap: Annotated[int | None, recipes.UNRECORDED_DEFAULT] = None


@recipes.recorded_by_field
@dataclasses.dataclass(frozen=True)
class Together:
    limit: float
    made: Any


class Colour(enum.StrEnum):
    RED = "red"


def fingerprint(*inputs: str, **parameters: Any) -> str:
    return Recipe(count_up, parameters).fingerprint(inputs)


values = st.recursive(st.none() | st.booleans() | st.integers() | st.text("ab"), lambda v: st.lists(v, max_size=3))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.text("abc", min_size=1), values, max_size=4), st.randoms(use_true_random=False))
def test_order_of_keys_is_irrelevant(parameters: dict[str, Any], order: Any) -> None:
    shuffled = list(parameters.items())
    order.shuffle(shuffled)
    assert fingerprint(**parameters) == fingerprint(**dict(shuffled))
    assert fingerprint(inner=parameters) == fingerprint(inner=dict(shuffled))


def test_whatever_decides_the_output_changes_the_fingerprint() -> None:
    fingerprints = [
        fingerprint(),
        fingerprint(a=1),
        fingerprint(a=1.0),
        fingerprint(a=True),
        fingerprint(a="1"),
        fingerprint(a=None),
        fingerprint(a=[1]),
        fingerprint(a=[[1]]),
        fingerprint(a={"b": 1}),
        fingerprint(b=1),
        fingerprint(a=b"1"),
        fingerprint("x"),
        fingerprint("x", "y"),
        fingerprint("y", "x"),
        fingerprint("xy"),
        Recipe(add_one, {}).fingerprint([]),
    ]
    with version_of(count_up, 2):
        fingerprints.append(fingerprint())
    assert len(set(fingerprints)) == len(fingerprints)


def test_equal_parameters_in_other_clothes_are_equal() -> None:
    assert fingerprint(a=(1, 2)) == fingerprint(a=[1, 2])
    assert fingerprint(a=np.int64(1)) == fingerprint(a=1)
    assert fingerprint(a=np.float64(0.1)) == fingerprint(a=0.1)
    assert fingerprint(a=Model(limit=1)) == fingerprint(a={"limit": 1, "names": []})
    assert fingerprint(a=Frozen(0.5)) == fingerprint(a={"limit": 0.5})
    assert fingerprint(a=Colour.RED) == fingerprint(a="red")


def test_extra_fields_of_a_model_are_parameters_too() -> None:
    assert fingerprint(a=OpenModel(limit=1, more=1)) != fingerprint(a=OpenModel(limit=1, more=2))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Path("/data"), "parameter where is the path /data"),
        (np.arange(3), "parameter where is a ndarray"),
        ({1, 2}, "parameter where is a set"),
        ([1, {"deep": {3}}], r"parameter where\[1\].deep is a set"),
        ({1: 2}, "parameter where has the key 1"),
        (date(2025, 1, 1), "parameter where is a date"),
        (np.datetime64("2025-01-01"), "parameter where is a date"),
        (1j, "parameter where is a complex"),
        (float("nan"), "parameter where is nan"),
        ([np.float32("inf")], r"parameter where\[0\] is inf"),
        (lambda: 1, "parameter where is a function"),
        (object(), "parameter where is a object"),
    ],
)
def test_parameters_without_canonical_form_are_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        fingerprint(where=value)


def test_a_path_inside_a_model_is_refused_by_name() -> None:
    class HasPath(BaseModel):
        place: Path

    with pytest.raises(RecipeError, match=r"parameter reader\.place is the path"):
        fingerprint(reader=HasPath(place=Path("x")))


def test_stored_data_counts_by_its_digest() -> None:
    assert fingerprint(a=SimpleNamespace(root_digest="x")) != fingerprint(a=SimpleNamespace(root_digest="y"))


def test_planned_data_is_no_parameter() -> None:
    for planned in (given_parts(2).map(count_up), plan_artifact(build_nothing)):
        with pytest.raises(IncompleteStore, match="planned with"):
            fingerprint(a=planned)


def _closure() -> Any:
    @versioned("inner", 1)
    def inner(part: Any) -> int:
        return 1

    return inner


class Holder:
    @versioned("method", 1)
    def method(self, part: Any) -> int:
        return 1

    def __call__(self, part: Any) -> int:
        return 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_closure(), "not a function of its module"),
        (versioned("nameless", 1)(lambda part: 1), "not a function of its module"),
        (Holder().method, "not a function of its module"),
        (functools.partial(count_up, factor=2), "is not a function"),
        (Holder(), "is not a function"),
        (3, "is not a function"),
        (functions.undeclared, "declares no version"),
    ],
)
def test_functions_that_workers_could_not_import_are_refused(function: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        given_parts(1).map(function)


def test_functions_of_the_running_script_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their name is another in a worker and in the next run, and workers may not find them at all."""
    monkeypatch.setattr(count_up, "__module__", "__main__")
    with pytest.raises(RecipeError, match="defined in the script that runs"):
        given_parts(1).map(count_up)


def test_a_recipe_survives_the_way_to_a_worker() -> None:
    recipe = Recipe(count_up, {"factor": 3, "model": Model(limit=2)})
    before = len(pickle.dumps(recipe))
    assert recipe.description["version"] == 1
    assert len(pickle.dumps(recipe)) == before, "the description does not travel"
    assert pickle.loads(pickle.dumps(recipe)).fingerprint(["x"]) == recipe.fingerprint(["x"])


def test_recipe_value_of_bytes_is_their_digest() -> None:
    assert recipes.recipe_value(b"", "w") == {
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    }


@versioned("bounded", 1, unrecorded=["memory"])
def bounded(part: Any, *, factor: int, memory: int) -> int:
    return factor


def test_a_parameter_that_changes_no_byte_is_in_no_recipe() -> None:
    one, other = Recipe(bounded, {"factor": 2, "memory": 1}), Recipe(bounded, {"factor": 2, "memory": 2})
    assert one.fingerprint(["a"]) == other.fingerprint(["a"])
    assert one.description["parameters"] == {"factor": 2}
    assert Recipe(bounded, {"factor": 3, "memory": 1}).fingerprint(["a"]) != one.fingerprint(["a"])


def test_digests_of_stored_data_are_found_wherever_a_parameter_has_them() -> None:
    named = {"digest": "a", "note": "digest of something else"}
    nested = {"digest": "b"}, [{"digest": "c"}, [{"x": {"digest": "d"}}]]
    description = {"function": "f", "parameters": {"one": nested[0], "two": nested[1], "text": "digest", "own": named}}
    assert recipes.digests_in(description) == {"b", "c", "d"}
    assert recipes.digests_in(("digest", 3, None)) == set()


def test_a_value_recorded_by_field_is_recorded_as_the_parameters_that_it_took_the_place_of() -> None:
    store = SimpleNamespace(root_digest="5" * 64)
    together = Recipe(count_up, {"rules": Together(0.5, store), "seed": 1})
    apart = Recipe(count_up, {"seed": 1, "limit": 0.5, "made": store})
    assert together.description == apart.description
    assert together.fingerprint([]) == apart.fingerprint([])
    with pytest.raises(RecipeError, match=r"count_up: rules has \['limit'\], which other parameters have, too"):
        _ = Recipe(count_up, {"limit": 1, "rules": Together(0.5, store)}).description


def test_stored_data_in_a_value_recorded_by_field_is_locked_and_verified_like_any_other() -> None:
    artifact = SimpleNamespace(verify=lambda: None, is_made=True)
    assert list(stored_in([Together(0.5, artifact)])) == [artifact]


def test_a_field_that_a_model_gains_changes_no_fingerprint_until_it_is_used() -> None:
    former = fingerprint(data=Model(limit=3))
    assert fingerprint(data=Grown(limit=3)) == fingerprint(data=Grown(limit=3, order="as_written", cap=None)) == former
    others = {fingerprint(data=Grown(limit=3, **changed)) for changed in ({"order": "permuted"}, {"cap": 0})}
    assert len(others | {former}) == 3
    assert recipes.recipe_value(Grown(limit=3, cap=0), "data") == {"limit": 3, "names": [], "cap": 0}
