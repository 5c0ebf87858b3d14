"""The stages of a job that a release describes: what plans each dataset, from which others and which parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from everytoken.provenance.releases.recipe_file import require_made_as_planned
from everytoken.shards import Artifact, Shards

PARAMETERS = "params:"
"""How the names of parameters begin among those of datasets."""

# Which engines were compared decides no byte, and another machine has others.
_NOT_DESCRIBED = frozenset({"engine_certificate"})


class Stage(NamedTuple):
    """A step of a job. ``plan`` takes the values of ``inputs``, in their order, and returns that of ``outputs``."""

    plan: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def datasets_of(stages: Iterable[Stage]) -> set[str]:
    """Return the names of all that the stages read or make, with those of parameters."""
    return {name for stage in stages for name in [*stage.inputs, *stage.outputs]}


def require_made_by(stages: Iterable[Stage], values: Mapping[str, Any]) -> None:
    """Check that every dataset holds what its stage would make of its inputs and parameters now.

    Raises:
        ProvenanceError: the first that does not.
    """
    for stage, name, stored in _stored(stages, values):
        planned = stage.plan(*(values[source] for source in stage.inputs))
        require_made_as_planned(name, planned, stored)


def stored_by(stages: Iterable[Stage], values: Mapping[str, Any]) -> dict[str, Shards | Artifact]:
    """Return the stored datasets that the stages make, by name."""
    return {name: stored for _, name, stored in _stored(stages, values)}


def _stored(stages: Iterable[Stage], values: Mapping[str, Any]) -> Iterator[tuple[Stage, str, Shards | Artifact]]:
    for stage in stages:
        for name in stage.outputs:
            if isinstance(values[name], Shards | Artifact) and name not in _NOT_DESCRIBED:
                yield stage, name, values[name]


def parameters_of(stages: Iterable[Stage], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the stages read, by the name of their pipeline, as plain data."""
    names = {name for stage in stages for name in stage.inputs if name.startswith(PARAMETERS)}
    return {name.removeprefix(PARAMETERS): values[name].model_dump(mode="json") for name in sorted(names)}
