"""A grid: values of some parameters, and the points that it has, one for each combination of values."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from everytoken.configuration import nearest

_POINT_DIGITS = 12


@dataclass(frozen=True)
class GridPoint:
    """One combination of values, by the dotted name of a parameter."""

    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of its folder: a digest of its values, so a grid may grow and keep its points."""
        text = json.dumps(dict(self.values), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()[:_POINT_DIGITS]

    @property
    def shown(self) -> dict[str, str]:
        """The values as texts."""
        return {name: shown_value(value) for name, value in self.values.items()}

    def parameters(self) -> dict[str, Any]:
        """Return the values as a tree, as ``kedro run --params`` gives them."""
        tree: dict[str, Any] = {}
        for name, value in self.values.items():
            *parents, last = name.split(".")
            branch = tree
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[last] = value
        return tree


def shown_value(value: Any) -> str:
    """Return a value on one line: a text as it is, else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _GridLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that is given twice: YAML keeps the last one without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            line = node.start_mark.line + 1
            raise yaml.YAMLError(f"{', '.join(twice)} is given twice in the mapping that begins in line {line}")
        found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return found


def read_grid(file: Path) -> list[GridPoint]:
    """Return the points of a grid; the values of its last parameter change first.

    Args:
        file: YAML: a list of values for the dotted name of each parameter. A value may be a mapping.

    Raises:
        ClickException: the file is no grid, has no value, or a value twice; the message names the place.
    """
    try:
        found = yaml.load(file.read_text(encoding="utf-8"), _GridLoader)  # a safe loader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {' '.join(str(error).split())}") from error
    if not found:
        raise click.ClickException(f"{file} is empty; give it a line such as `subsampling.seed: [42, 43]`")
    if not isinstance(found, dict):
        raise click.ClickException(
            f"{file}: expected a list of values for each parameter, found a {type(found).__name__}; "
            "a line of a grid is `subsampling.seed: [42, 43]`"
        )
    for name, values in found.items():
        _require_values(file, name, values)
    names = sorted(found)
    for name, longer in itertools.pairwise(names):
        if longer.startswith(f"{name}."):
            raise click.ClickException(f"{file}: {name} contains {longer}; put both into the values of {name}")
    return [GridPoint(dict(zip(found, values, strict=True))) for values in itertools.product(*found.values())]


def _require_values(file: Path, name: Any, values: Any) -> None:
    if not isinstance(name, str) or not all(name.split(".")):
        raise click.ClickException(f"{file}: {name!r} is no name of a parameter, such as subsampling.seed")
    if not isinstance(values, list):
        raise click.ClickException(f"{file}: {name}: {values!r} is no list; write `{name}: [{shown_value(values)}]`")
    if not values:
        raise click.ClickException(
            f"{file}: {name} has no values: the grid has no points. Give some, or remove the line"
        )
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    if twice := sorted({text for text in texts if texts.count(text) > 1}):
        raise click.ClickException(f"{file}: {name}: {', '.join(twice)} is given twice. Remove one of them")


def require_known(file: Path, point: GridPoint, parameters: Mapping[str, Any]) -> None:
    """Check that the first part of each name is a group of parameters.

    Raises:
        ClickException: naming the one that is most like it.
    """
    for name in point.values:
        group = name.partition(".")[0]
        if group not in parameters:
            raise click.ClickException(
                f"{file}: {name}: there are no parameters {group!r}.{nearest(group, parameters)}"
            )
