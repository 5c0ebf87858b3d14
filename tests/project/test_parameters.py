"""Options have defaults, decisions have none, and a model of another family inherits nothing."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from everytoken import parameters
from everytoken.configuration import JobConfigLoader
from everytoken.models import LlamaParameters
from everytoken.parameters import TrainingParameters
from everytoken.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[2]
MODELS = {name.removesuffix("Parameters").lower(): getattr(parameters, name) for name in parameters.__all__}
_DECISIONS = {
    *("seed", "seeds", "threshold", "thresholds", "budget", "target", "memory", "share", "tolerance", "revision"),
    *("min", "max", "steps", "rate", "temperature", "threads"),
}
_MAY_BE_NULL = {"target_tokens", "annotation_threshold", "max_documents"}  # targets and thresholds all the same


def _is_nullable(field: FieldInfo) -> bool:
    return type(None) in typing.get_args(field.annotation)


def _is_decision(name: str, field: FieldInfo) -> bool:
    return name in _MAY_BE_NULL or (bool(_DECISIONS & set(name.split("_"))) and not _is_nullable(field))


def _models(model: type[BaseModel], seen: dict[str, type[BaseModel]]) -> None:
    if seen.setdefault(f"{model.__module__}.{model.__name__}", model) is model:
        for field in model.model_fields.values():
            for kind in _models_in(field.annotation):
                if f"{kind.__module__}.{kind.__name__}" not in seen:
                    _models(kind, seen)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


def _every_model() -> dict[str, type[BaseModel]]:
    seen: dict[str, type[BaseModel]] = {}
    for model in MODELS.values():
        _models(model, seen)
    assert len(seen) > 50
    return seen


@pytest.mark.parametrize("model", _every_model().values(), ids=lambda model: model.__name__)
def test_options_have_defaults_and_decisions_have_none(model: type[BaseModel]) -> None:
    assert model.model_config.get("extra") == "forbid"
    assert model.model_config.get("frozen")
    for name, field in model.model_fields.items():
        if _is_decision(name, field):
            assert field.is_required(), f"{name}: a default would hide a decision"
        elif _is_nullable(field):
            assert not field.is_required(), f"{name} may be null, so nobody should have to say so"
            assert field.default is None, f"{name}: what is not said is what null says"
        elif typing.get_origin(field.annotation) is Literal and len(typing.get_args(field.annotation)) == 1:
            assert field.is_required(), f"{name} tells kinds apart"


def _base() -> dict[str, Any]:
    loader = JobConfigLoader(str(ROOT / "conf"), env="test", **CONFIG_LOADER_ARGS)
    return {name: loader["parameters"][name] for name in MODELS}


def _decisions(value: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in type(value).model_fields.items():
        own = getattr(value, name)
        if _is_decision(name, field):
            yield (*path, name)
        if isinstance(own, BaseModel):
            yield from _decisions(own, (*path, name))
        for key, one in own.items() if isinstance(own, dict) else ():
            if isinstance(one, BaseModel):
                yield from _decisions(one, (*path, name, key))


def _without(tree: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {key: value for key, value in tree.items() if key != name}
    return {**tree, name: _without(tree[name], tuple(rest))}


def test_a_decision_that_nobody_made_is_refused_by_name() -> None:
    base = _base()
    left_out = [
        path for name, model in MODELS.items() for path in _decisions(model.model_validate(base[name]), (name,))
    ]
    assert len(left_out) > 40
    assert {"target_tokens", "annotation_threshold", "reflection_budget", "held_out_seed"} <= {p[-1] for p in left_out}
    for path in left_out:
        pipeline, *below = path
        with pytest.raises(ValidationError) as error:
            MODELS[pipeline].model_validate(_without(base[pipeline], tuple(below)))
        missing = [found for found in error.value.errors() if found["type"] == "missing"]
        assert [found["loc"][-1] for found in missing] == [path[-1]], path


def _defaults(value: BaseModel, given: Any, path: str) -> Iterator[str]:
    """Yield the places where a file says what its model says."""
    for name, field in type(value).model_fields.items():
        if not isinstance(given, Mapping) or name not in given:
            continue
        own, said = getattr(value, name), given[name]
        if not field.is_required() and not isinstance(own, BaseModel) and own == field.get_default():
            yield f"{path}.{name}"
        pairs = {name: own} if isinstance(own, BaseModel) else own if isinstance(own, Mapping) else {}
        for key, one in pairs.items():
            if isinstance(one, BaseModel):
                below = said if isinstance(own, BaseModel) else said[key]
                yield from _defaults(
                    one, below, f"{path}.{name}" if isinstance(own, BaseModel) else f"{path}.{name}.{key}"
                )


def test_base_says_only_what_is_meant() -> None:
    said = []
    for name, model in MODELS.items():
        given = yaml.safe_load((ROOT / f"conf/base/parameters_{name}.yml").read_text())[name]
        if name == "training":
            given = {**given, "model": _base()["training"]["model"]}
        said += list(_defaults(model.model_validate(given), given, name))
    assert not said, "the models say so already"


class TinyParameters(BaseModel):
    """A second family, which shares names with the first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: Literal["tiny"]
    d_model: int
    n_layers: int = 1
    d_state: int


class TwoFamilies(TrainingParameters):
    """Training when there are two families."""

    model: LlamaParameters | TinyParameters = Field(discriminator="family")


def _training(folder: Path, text: str = "", given: dict[str, Any] | None = None) -> Any:
    for name in ("base", "test"):
        if not (folder / "conf" / name).exists():
            (folder / "conf").mkdir(exist_ok=True)
            (folder / "conf" / name).symlink_to(ROOT / "conf" / name)
    (folder / "conf/mine").mkdir(exist_ok=True)
    (folder / "conf/mine/parameters_training.yml").write_text(text or "{}")
    loader = JobConfigLoader(str(folder / "conf"), env="mine", runtime_params=given or {}, **CONFIG_LOADER_ARGS)
    return loader["parameters"]["training"]


def test_an_environment_of_another_family_inherits_no_key_of_base(tmp_path: Path) -> None:
    found = _training(tmp_path, "training: {model: {family: tiny, d_model: 8, d_state: 4}}")
    assert found["model"] == {"family": "tiny", "d_model": 8, "d_state": 4}
    read = TwoFamilies.model_validate(found)
    assert read.model == TinyParameters(family="tiny", d_model=8, d_state=4), "the layers are not those of base"
    assert read.optimisation.seed == 42, "all that is beside the model is base's"
    incomplete = _training(tmp_path, "training: {model: {family: tiny, d_state: 4}}")
    with pytest.raises(ValidationError, match=r"model\.tiny\.d_model\n  Field required"):
        TwoFamilies.model_validate(incomplete)


def test_the_command_line_chooses_a_family_over_an_environment(tmp_path: Path) -> None:
    given = {"training": {"model": {"family": "tiny", "d_model": 6, "d_state": 2}}}
    found = _training(tmp_path, "training: {model: {d_model: 96, n_heads: 1, n_layers: 9}}", given)
    assert found["model"] == given["training"]["model"]
    found = _training(
        tmp_path,
        "training: {model: {family: tiny, d_model: 8, d_state: 4}}",
        {"training": {"model": {"d_model": 16, "n_layers": 3}}},
    )
    assert found["model"] == {"family": "tiny", "d_model": 16, "d_state": 4, "n_layers": 3}


def test_an_environment_that_names_no_family_changes_leaves(tmp_path: Path) -> None:
    base = _training(tmp_path)["model"]
    assert base["family"] == "llama"
    assert _training(tmp_path, "training: {model: {n_layers: 5}}")["model"] == {**base, "n_layers": 5}


def test_a_family_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    found = _training(tmp_path, "training: {model: {family: tiny, d_model: 8, d_state: 4}}")
    with pytest.raises(ValidationError, match=r"'tiny' found using 'family' does not match .*'llama'"):
        TrainingParameters.model_validate(found)
