"""Everything that parameters name, by its place in the configuration: the models inside the models of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from everytoken.parameters import IngestionParameters, PretrainingParameters, ReflectionParameters


def named_models(groups: Mapping[str, Any]) -> Iterator[tuple[str, BaseModel]]:
    """Yield each parameter model with its path, such as ``ingestion.sources.wiki.upstream``; outer ones first.

    What is switched off is left out: sources and streams that are null or not chosen, and the generator of a job whose
    reflections are published ones.
    """
    for name, group in groups.items():
        yield from _models(group, name)


def _models(value: Any, path: str) -> Iterator[tuple[str, BaseModel]]:
    if isinstance(value, BaseModel):
        yield path, value
        for name, inner in _fields(value).items():
            yield from _models(inner, f"{path}.{name}")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _models(inner, f"{path}.{name}")
    elif isinstance(value, tuple | list):
        for number, inner in enumerate(value):
            yield from _models(inner, f"{path}[{number}]")


def _fields(model: BaseModel) -> dict[str, Any]:
    found = dict(model)
    match model:
        case IngestionParameters():
            found["sources"] = model.active_sources
        case PretrainingParameters():
            found["streams"] = model.active_streams
        case ReflectionParameters() if model.published is not None:
            del found["generator"]
    return found
