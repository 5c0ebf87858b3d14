"""The job that a release describes: the stages that make its data, from upstream files to token streams.

They are the nodes of the pipelines themselves, so what a later version of these makes is described without a change
here. Each runs once more as a node under ``planned``: it plans from what is stored now, and nothing is made, because a
plan is carried out where a store saves it. `describe_job` compares the plans with what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

from kedro.pipeline import Node, Pipeline

from everytoken import parameters
from everytoken.pipelines import annotation, ingestion, subsampling, tokenization
from everytoken.provenance import ProvenanceError
from everytoken.provenance.releases import PARAMETERS, Stage, datasets_of
from everytoken.tokens.canary import CanaryError
from everytoken.tokens.streams import WHEN_MADE, StreamKind, released_kinds

_MAKING = (ingestion, annotation, subsampling, tokenization)
_NO_PLANS = {"report", "listing"}  # tags of nodes that save no store
# Which engines were compared decides no byte, and another machine has others.
_NOT_DESCRIBED = frozenset({"engine_certificate"})
_PLANNED = "planned"
_AS_PLANNED = "_as_planned"


class NotPlanned(NamedTuple):
    """In place of a plan: why there is none for a stream that only some jobs have."""

    reason: str


class DescribedJob(NamedTuple):
    """The nodes that make what every job has, in the order in which they run, and those of each other stream."""

    making: Sequence[Node]
    on_request: Mapping[str, Sequence[Node]]

    def planned_again(self) -> Pipeline:
        """Return the nodes that plan each dataset from what is stored; ``NAME_as_planned`` has a dataset's plan."""
        nodes = [*self.making, *map(_if_possible, self._requested)]
        return sum((_plans(node, self._when_made()) for node in nodes), Pipeline([]))

    def inputs(self) -> dict[str, str]:
        """Return datasets by the argument that takes each: all that is stored or planned, and parameters."""
        stored = {_argument(name): self._when_made().get(name, name) for name in sorted(self._datasets())}
        plans = [_plan_of(stage.dataset) for stage in self._stages()]
        return {**stored, **{_argument(name): name for name in plans}}

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

    def plans(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plans by the names of what they would make."""
        return {stage.dataset: arguments[_argument(_plan_of(stage.dataset))] for stage in self._stages()}

    @property
    def _requested(self) -> list[Node]:
        return list(chain(*self.on_request.values()))

    def _stages(self) -> list[Stage]:
        return stages_of([*self.making, *self._requested])

    def _datasets(self) -> set[str]:
        return datasets_of(self._stages())

    def _when_made(self) -> dict[str, str]:
        """Return the datasets that only some jobs have, by the names under which the pipelines that make them do."""
        sometimes = self._datasets() - datasets_of(stages_of(self.making))
        return {name: name + WHEN_MADE for name in sometimes if not name.startswith(PARAMETERS)}


def described_job() -> DescribedJob:
    """Return the job, as the pipelines are now."""
    together = sum((package.create_pipeline() for package in _MAKING), Pipeline([]))
    requested = [kind for kind in released_kinds() if kind.is_on_request]
    return DescribedJob(_planning(together), {kind.dataset: _planning(_makes(kind)) for kind in requested})


def stages_of(nodes: Iterable[Node]) -> list[Stage]:
    """Return the stages that the nodes are."""
    return [Stage(tuple(node.inputs), *node.outputs) for node in nodes]


def _makes(kind: StreamKind) -> Pipeline:
    """Return the nodes that make a stream of a kind; of a reflected one, from columns that a generator wrote."""
    made: Pipeline = import_module(f"everytoken.pipelines.{kind.pipeline}").create_pipeline()
    return made.to_outputs(kind.dataset) if kind.base is None else made.only_nodes_with_outputs(kind.dataset)


def _planning(pipeline: Pipeline) -> list[Node]:
    """Return the nodes of a pipeline that plan what a release describes."""
    return [node for node in pipeline.nodes if not node.tags & _NO_PLANS and not set(node.outputs) & _NOT_DESCRIBED]


def _plans(node: Node, renamed: Mapping[str, str]) -> Pipeline:
    """Return a node under ``planned``, which reads what is stored and keeps its plan apart."""
    read = {name: renamed.get(name, name) for name in node.inputs if not name.startswith(PARAMETERS)}
    return Pipeline(
        [node],
        namespace=_PLANNED,
        inputs=read,
        outputs={name: _plan_of(name) for name in node.outputs},
        parameters={name for name in node.inputs if name.startswith(PARAMETERS)},
    )


def _if_possible(node: Node) -> Node:
    """Return a node that gives `NotPlanned` where an input was not made, or the plan is refused."""

    @wraps(node.func)
    def plan(*inputs: Any) -> Any:
        for name, value in zip(node.inputs, inputs, strict=True):
            if value is None:
                return NotPlanned(f"{name} has not been made")
        try:
            return node.func(*inputs)
        except (ProvenanceError, CanaryError, OSError) as error:
            return NotPlanned(str(error))

    name = node.name.removeprefix(f"{node.namespace}.")
    (output,) = node.outputs
    return Node(plan, node.inputs, output, name=name, namespace=node.namespace)


def _argument(name: str) -> str:
    return name.replace(":", "_")


def _plan_of(name: str) -> str:
    return name + _AS_PLANNED
