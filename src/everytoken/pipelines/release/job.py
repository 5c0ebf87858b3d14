"""The job that a release describes: the stages that make its data, from upstream files to token streams.

They are those of the pipelines themselves, so what a later version of these makes is described without a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

from kedro.pipeline import Node, Pipeline

from everytoken import parameters
from everytoken.pipelines import annotation, ingestion, subsampling, tokenization
from everytoken.provenance.releases import PARAMETERS, Stage, datasets_of
from everytoken.tokens.streams import WHEN_MADE, StreamKind, released_kinds

_MAKING = (ingestion, annotation, subsampling, tokenization)


class DescribedJob(NamedTuple):
    """The stages of every job, in the order in which they run, and those of each stream that only some jobs have."""

    making: Sequence[Stage]
    on_request: Mapping[str, Sequence[Stage]]

    def inputs(self) -> dict[str, str]:
        """Return datasets by the name of the argument that takes each: all that is read or made, and parameters."""
        always = datasets_of(self.making)
        sometimes = self._datasets() - always
        made = {name: name if name.startswith(PARAMETERS) else name + WHEN_MADE for name in sometimes}
        named = {**{name: name for name in always}, **made}
        return {_argument(name): named[name] for name in sorted(named)}

    def values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values by the names that pipelines use, parameters as their models."""
        values: dict[str, Any] = {}
        for name in sorted(self._datasets()):
            value = arguments[_argument(name)]
            if name.startswith(PARAMETERS):
                model = getattr(parameters, f"{name.removeprefix(PARAMETERS).capitalize()}Parameters")
                value = model.model_validate(value)
            values[name] = value
        return values

    def _datasets(self) -> set[str]:
        return datasets_of([*self.making, *chain(*self.on_request.values())])


def described_job() -> DescribedJob:
    """Return the job, as the pipelines are now."""
    together = sum((package.create_pipeline() for package in _MAKING), Pipeline([]))
    return DescribedJob(
        _stages(node for node in together.nodes if "report" not in node.tags),
        {kind.dataset: _stages_of(kind) for kind in released_kinds() if kind.is_on_request},
    )


def _stages_of(kind: StreamKind) -> list[Stage]:
    """Return the stages that make a stream of a kind."""
    package = import_module(f"everytoken.pipelines.{kind.pipeline}")
    return _stages(package.create_pipeline().to_outputs(kind.dataset).nodes)


def _stages(nodes: Iterable[Node]) -> list[Stage]:
    return [Stage(node.func, tuple(node.inputs), tuple(node.outputs)) for node in nodes]


def _argument(name: str) -> str:
    return name.replace(":", "_")
