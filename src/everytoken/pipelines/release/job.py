"""The job that a release describes: the nodes that make its data, from upstream files to token streams.

They are those of the pipelines themselves, so what a later version of these makes is described without a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import chain
from typing import Any

from kedro.pipeline import Node, Pipeline

from everytoken import parameters
from everytoken.pipelines import annotation, ingestion, subsampling, tokenization
from everytoken.provenance.releases import require_made_as_planned
from everytoken.shards import Artifact, Shards
from everytoken.tokens.streams import WHEN_MADE, released_kinds

MAKING = (ingestion, annotation, subsampling, tokenization)

# Which engines were compared decides no byte, and another machine has others.
_NOT_DESCRIBED = frozenset({"engine_certificate"})
_PARAMETERS = "params:"


def making_nodes() -> list[Node]:
    """Return the nodes that make the data of every job, in the order in which they run."""
    together = sum((package.create_pipeline() for package in MAKING), Pipeline([]))
    return [node for node in together.nodes if "report" not in node.tags]


def nodes_on_request() -> dict[str, list[Node]]:
    """Return the nodes that make each stream that only some jobs have."""
    on_request = {kind.dataset: kind.pipeline for kind in released_kinds() if kind.is_on_request}
    packages = {stream: import_module(f"everytoken.pipelines.{name}") for stream, name in on_request.items()}
    return {stream: package.create_pipeline().to_outputs(stream).nodes for stream, package in packages.items()}


def _all_nodes() -> list[Node]:
    return [*making_nodes(), *chain(*nodes_on_request().values())]


def inputs_of_the_description() -> dict[str, str]:
    """Return datasets by the name of the argument that takes each: all that the job reads or makes, and parameters."""
    always = _datasets(making_nodes())
    sometimes = _datasets(_all_nodes()) - always
    made = {name: name if name.startswith(_PARAMETERS) else name + WHEN_MADE for name in sometimes}
    named = {**{name: name for name in always}, **made}
    return {_argument(name): named[name] for name in sorted(named)}


def _datasets(nodes: Iterable[Node]) -> set[str]:
    return {name for node in nodes for name in [*node.inputs, *node.outputs]}


def _argument(name: str) -> str:
    return name.replace(":", "_")


def values_by_name(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by the names that pipelines use, parameters as their models."""
    values: dict[str, Any] = {}
    for name in sorted(_datasets(_all_nodes())):
        value = arguments[_argument(name)]
        if name.startswith(_PARAMETERS):
            value = getattr(parameters, f"{name.removeprefix(_PARAMETERS).capitalize()}Parameters").model_validate(
                value
            )
        values[name] = value
    return values


def require_made_by(nodes: Iterable[Node], values: Mapping[str, Any]) -> None:
    """Check that every stage holds what its node would make of its inputs and parameters now.

    Raises:
        ProvenanceError: the first that does not.
    """
    for node, name, stored in _stages(nodes, values):
        planned = node.func(*(values[source] for source in node.inputs))
        require_made_as_planned(name, planned, stored)


def stages_of(nodes: Iterable[Node], values: Mapping[str, Any]) -> dict[str, Shards | Artifact]:
    """Return the stored datasets that the nodes make, by name."""
    return {name: stored for _, name, stored in _stages(nodes, values)}


def _stages(nodes: Iterable[Node], values: Mapping[str, Any]) -> Iterator[tuple[Node, str, Shards | Artifact]]:
    for node in nodes:
        for name in node.outputs:
            if isinstance(values[name], Shards | Artifact) and name not in _NOT_DESCRIBED:
                yield node, name, values[name]


def parameters_of(nodes: Iterable[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that the nodes read, by the name of their pipeline, as plain data."""
    names = {name for node in nodes for name in node.inputs if name.startswith(_PARAMETERS)}
    return {name.removeprefix(_PARAMETERS): values[name].model_dump(mode="json") for name in sorted(names)}
