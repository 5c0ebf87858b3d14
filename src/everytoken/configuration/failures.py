"""Why a run failed, in a few lines: what was given, the nearest name that there is, and what to do.

All of this is looked up when a run has failed, so a run that succeeds pays nothing for it.
"""

from __future__ import annotations

import difflib
import pkgutil
import traceback
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import kedro.runner
from kedro.io.core import DatasetError
from kedro.pipeline import Pipeline
from pydantic import BaseModel, ValidationError

import everytoken
from everytoken.shards import IncompleteStore

_MOST_LINES = 5
_MOST_FAULTS = 4
_MOST_NAMES = 12
_PACKAGE = Path(everytoken.__path__[0])


def pipeline_names() -> list[str]:
    """Return the names that ``--pipelines`` takes."""
    return ["__default__", *(module.name for module in pkgutil.iter_modules([str(_PACKAGE / "pipelines")]))]


def unknown_pipelines(asked: Iterable[str]) -> str | None:
    """Return what is wrong with the names of pipelines; None: nothing."""
    known = pipeline_names()
    unknown = next((name for name in asked if name not in known), None)
    return None if unknown is None else f"there is no pipeline {unknown!r}.{nearest(unknown, known)}"


def nearest(given: str, known: Iterable[str]) -> str:
    """Return a sentence with the names most like ``given``, or with all that there are.

    >>> nearest("trainin", ["training", "packing"])
    " Did you mean 'training'?"
    """
    names = sorted(known)
    if like := difflib.get_close_matches(given, names, n=2, cutoff=0.6):
        return f" Did you mean {' or '.join(map(repr, like))}?"
    shown = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f" There are {shown}{more}." if names else ""


def parameters_in_words(parameters: Mapping[str, Any]) -> str:
    """Return what is wrong with the parameters of an environment, a line a fault; empty: nothing.

    Args:
        parameters: raw, by group.
    """
    models = import_module("everytoken.parameters")
    classes = {name.removesuffix("Parameters").lower(): getattr(models, name) for name in models.__all__}
    told: list[str] = []
    for group in sorted(parameters.keys() & classes.keys()):
        try:
            classes[group].model_validate(parameters[group])
        except ValidationError as error:
            told += _faults(group, classes[group], error)
    more = [f"and {len(told) - _MOST_FAULTS} more parameters"] if len(told) > _MOST_FAULTS else []
    return "\n".join([*told[:_MOST_FAULTS], *more])


def _faults(group: str, model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return the faults of a group of parameters: the place of each, what was given, and why that is wrong."""
    told = []
    for one in error.errors(include_url=False, include_context=False):
        *above, last = (group, *map(str, one["loc"]))
        place = ".".join((*above, last))
        if one["type"] == "extra_forbidden":
            told.append(f"{place}: nothing reads it.{nearest(last, _fields(model, above[1:]))}")
        elif one["type"] == "missing":
            told.append(f"{place} is not given. Put it into parameters_{group}.yml.")
        elif isinstance(one["input"], str | int | float | bool | None):
            told.append(f"{place} = {one['input']!r}: {one['msg']}")
        else:
            told.append(f"{place}: {one['msg']}")
    return told


def _fields(model: type[BaseModel], steps: Iterable[str]) -> set[str]:
    """Return the names of fields at a place below a model; a step that is no field is a key, a number or a kind."""
    at: set[type[BaseModel]] = {model}
    for step in steps:
        below = {one for kind in at if step in kind.model_fields for one in _models(kind.model_fields[step].annotation)}
        at = below or at
    return {name for kind in at for name in kind.model_fields}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def missing_dataset(error: DatasetError, env: str | None) -> str | None:
    """Return what makes the dataset that a run lacks; None: it lacks none.

    Args:
        error: as the catalog raises it; its message begins with the name of the dataset.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, IncompleteStore):
        cause = cause.__cause__
    if cause is None:
        return None
    name = str(error).partition(":")[0]
    makers = [one for one in pipeline_names()[1:] if name in _namespaced_outputs(one)]
    if not makers:
        return str(cause)
    what = str(cause).partition(" Run the pipeline")[0]
    option = "" if env is None else f" --env {env}"
    return f"{what}\nRun first: kedro run{option} --pipelines {makers[0]}   (it makes {name!r})"


def unknown_selection(options: Mapping[str, Any]) -> str | None:
    """Return which part of the job asked for there is not: a node, dataset, namespace, tag or runner; None: none.

    Args:
        options: of ``kedro run``.
    """
    nodes = [node for one in pipeline_names()[1:] for node in _created(one).nodes]
    names = {node.name for node in nodes}
    datasets = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    kinds: Iterable[tuple[str, str, set[str]]] = (
        ("node_names", "node", names),
        ("from_nodes", "node", names),
        ("to_nodes", "node", names),
        ("from_inputs", "dataset", datasets),
        ("to_outputs", "dataset", datasets),
        ("namespaces", "namespace", {node.namespace for node in nodes if node.namespace}),
        ("tags", "tag", {tag for node in nodes for tag in node.tags}),
    )
    for option, kind, known in kinds:
        for given in options[option] or ():
            if given not in known:
                return f"there is no {kind} {given!r}.{nearest(given, known)}"
    runner = options["runner"]
    if runner and "." not in runner and runner not in kedro.runner.__all__:
        return f"there is no runner {runner!r}.{nearest(runner, kedro.runner.__all__)}"
    return None


def unexpected(error: BaseException) -> str:
    """Return an error that has no words of its own: its kind, its message, and the place in the code."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    where = ""
    if ours:
        file = Path(ours[-1].filename).relative_to(_PACKAGE.parent)
        where = f"\n  raised from {file.as_posix()}, line {ours[-1].lineno}, in {ours[-1].name}"
    more = "--traceback shows all of it; of a run that is recorded, traceback.txt in MLflow too"
    return f"{type(error).__name__}: {error}{where}\n  {more}"


def few_lines(told: str) -> str:
    """Return at most five lines of a message: its begin, how many lines are left out, and its end, the remedy."""
    lines = told.splitlines()
    if len(lines) <= _MOST_LINES:
        return told
    left_out = f"  and {len(lines) - _MOST_LINES + 1} more lines (--traceback)"
    return "\n".join([*lines[: _MOST_LINES - 2], left_out, lines[-1]])


def _created(name: str) -> Pipeline:
    made: Pipeline = import_module(f"everytoken.pipelines.{name}").create_pipeline()
    return made


def _namespaced_outputs(name: str) -> set[str]:
    """Return what the nodes of a pipeline's own namespace make; a job is made of several."""
    return {output for node in _created(name).nodes if node.namespace == name for output in node.outputs}
