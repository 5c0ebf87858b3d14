"""The stages of a job that a release describes: what makes each dataset, from which others and which parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from everytoken.provenance.releases.recipe_file import require_made_as_planned
from everytoken.shards import Artifact, Shards

PARAMETERS = "params:"
"""How the names of parameters begin among those of datasets."""

# of how reflections came about, only what decides the bytes of their stream: no server and no file of a machine
_PUBLISHED_OF = {"params:reflection": {"rows", "splice"}}


class Stage(NamedTuple):
    """A step of a job: the datasets and parameters that it reads, and the dataset that it makes."""

    inputs: tuple[str, ...]
    dataset: str


def datasets_of(stages: Iterable[Stage]) -> set[str]:
    """Return the names of all that the stages read or make, with those of parameters."""
    return {name for stage in stages for name in [*stage.inputs, stage.dataset]}


def require_made_by(stages: Iterable[Stage], planned: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Check that every dataset holds what its stage would make of its inputs and parameters now.

    Raises:
        ProvenanceError: the first that does not.
    """
    for stage in stages:
        require_made_as_planned(stage.dataset, planned[stage.dataset], values[stage.dataset])


def stored_by(stages: Iterable[Stage], values: Mapping[str, Any]) -> dict[str, Shards | Artifact]:
    """Return the stored datasets that the stages make, by name."""
    return {stage.dataset: values[stage.dataset] for stage in stages}


def parameters_of(stages: Iterable[Stage], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the stages read, by the name of their pipeline, as plain data."""
    names = {name for stage in stages for name in stage.inputs if name.startswith(PARAMETERS)}
    return {
        name.removeprefix(PARAMETERS): values[name].model_dump(mode="json", include=_PUBLISHED_OF.get(name))
        for name in sorted(names)
    }
