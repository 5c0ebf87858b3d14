"""How an output was made: function, parameters, content of the inputs; and the fingerprint of that.

Two runs that agree on a fingerprint agree on the output, so a part whose ledger record has the wanted fingerprint
need not be made again. Code is represented by a name and a version that its author declares: a changed docstring or a
moved module must not redo a corpus, and a changed formula must. The cost: whoever changes what a function computes has
to raise its version.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from everytoken.shards.digests import value_digest
from everytoken.shards.errors import RecipeError
from everytoken.shards.former_paths import as_described_today, former_path

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def versioned(
    name: str, version: int, *, unrecorded: Sequence[str] = (), in_ranges: bool = False
) -> Callable[[Function], Function]:
    """Declare name and version of a function whose output is stored.

    Stored data knows the function by this name, so its module and its name in the code may change.

    Args:
        name: never changed, and of no other function.
        version: of what the function computes: raise it whenever the output changes for equal inputs.
        unrecorded: parameters that change how the output is made and never what it is (a bound on memory, the place
            of a file that is pinned by its digest). They are in no recipe, so changing one makes nothing again.
        in_ranges: whether the function, one of an artifact, takes ``ranges`` from the store that runs it: a `RangeMap`.
    """

    def declare(function: Function) -> Function:
        function.__recipe_name__ = name  # type: ignore[attr-defined]
        function.__recipe_version__ = version  # type: ignore[attr-defined]
        function.__recipe_unrecorded__ = frozenset(unrecorded)  # type: ignore[attr-defined]
        function.__recipe_in_ranges__ = in_ranges  # type: ignore[attr-defined]
        return function

    return declare


def recorded_by_field(kind: Class) -> Class:
    """Declare a dataclass whose fields are recorded as if each were a parameter of the function, by its own name.

    Parameters that belong together become one value in the code, and fingerprints stay what they were.
    """
    kind.__recipe_by_field__ = True  # type: ignore[attr-defined]
    return kind


def by_field(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a value that is `recorded_by_field`; None for any other."""
    return dict(vars(value)) if hasattr(type(value), "__recipe_by_field__") else None


@dataclass(frozen=True)
class Unrecorded:
    """Marks a field of a parameter model that changes how an output is made and never what it is, as `versioned` does
    for parameters: ``check: Annotated[str, UNRECORDED]``.
    """


@dataclass(frozen=True)
class UnrecordedDefault:
    """Marks a field that was added to a parameter model of data that exists: recorded unless it has its default.

    What was made before the field keeps its fingerprint. So the default must compute what was computed without it.
    """


UNRECORDED = Unrecorded()
UNRECORDED_DEFAULT = UnrecordedDefault()


def recipe_value(value: Any, where: str) -> Any:
    """Return ``value`` as plain JSON for a recipe; handles on stored data are represented by their root digest.

    Raises:
        RecipeError: the value has no canonical form (``where`` names the parameter).
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"parameter {where} is {value}, which has no canonical JSON form; give a finite number")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "root_digest"):
        return {"digest": value.root_digest}
    if hasattr(type(value), "model_fields"):  # a pydantic model
        fields = type(value).model_fields
        recorded = [name for name, field in fields.items() if _is_recorded(field, getattr(value, name))]
        names = [*recorded, *(value.model_extra or {})]
        return {name: recipe_value(getattr(value, name), f"{where}.{name}") for name in names}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = dataclasses.fields(value)
        return {field.name: recipe_value(getattr(value, field.name), f"{where}.{field.name}") for field in own}
    if isinstance(value, Mapping):
        return {_key(key, where): recipe_value(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [recipe_value(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, Path):
        raise RecipeError(
            f"parameter {where} is the path {value}: where a file lies may not decide what is made again. "
            "Pass the file as an artifact, or with its digest as a value part."
        )
    raise RecipeError(f"parameter {where} is a {type(value).__name__}, which has no canonical JSON form")


def _is_recorded(field: Any, value: object) -> bool:
    if UNRECORDED_DEFAULT in field.metadata:
        return bool(value != field.get_default())
    return UNRECORDED not in field.metadata


def _key(key: object, where: str) -> str:
    if not isinstance(key, str):
        raise RecipeError(f"parameter {where} has the key {key!r}; keys in a recipe are strings")
    return key


def digests_in(description: Any) -> set[str]:
    """Return the root digests of the stored data among the parameters of a recipe's description."""
    if isinstance(description, Mapping):
        own = {description["digest"]} if set(description) == {"digest"} else set()
        return own.union(*map(digests_in, description.values()))
    if isinstance(description, list | tuple):
        return set().union(*map(digests_in, description))
    return set()


def recipe_digest(description: Mapping[str, Any]) -> str:
    """Return the digest of a recipe's description.

    A function that version 0.1.0 had is digested by the path that it had then: what that version made counts as made.
    """
    return value_digest({**description, "function": former_path(description["function"])})


def fingerprint_of(description: Mapping[str, Any], inputs: Sequence[str]) -> str:
    """Return the fingerprint of an output by its recipe's description and the content digests of its inputs."""
    return value_digest([recipe_digest(description), list(inputs)])


def fingerprint_today(fingerprint: str, description: Mapping[str, Any], inputs: Sequence[str]) -> str:
    """Return the fingerprint that an output has today, which an earlier version described and made.

    One that is not of this description and these inputs stays: the output counts as made otherwise.
    """
    today = as_described_today(description)
    if today["parameters"] == description["parameters"] or fingerprint != fingerprint_of(description, inputs):
        return fingerprint
    return fingerprint_of(today, inputs)


@dataclass(frozen=True)
class Recipe:
    """A function with its parameters."""

    function: Callable[..., Any]
    parameters: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not hasattr(self.function, "__qualname__"):  # a partial, a callable object, no callable at all
            raise RecipeError(f"{self.function!r} is not a function; give a module-level one, and values as parameters")
        name = self.place
        if self.function.__module__ == "__main__":
            raise RecipeError(
                f"{name} is defined in the script that runs: workers and later runs know it by another name. "
                "Put it into a module and import it."
            )
        module = importlib.import_module(self.function.__module__)
        found: Any = module
        for attribute in self.function.__qualname__.split("."):
            found = getattr(found, attribute, None)
        if found is not self.function:
            raise RecipeError(f"{name} is not a function of its module; workers could not import it")
        if not isinstance(getattr(self.function, "__recipe_version__", None), int):
            raise RecipeError(f"{name} declares no version; decorate it with @versioned(name, 1)")

    @property
    def name(self) -> str:
        """The declared name of the function."""
        return str(self.function.__recipe_name__)  # type: ignore[attr-defined]

    @property
    def place(self) -> str:
        """Module and name of the function in the code, for messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def version(self) -> int:
        """The declared version of the function."""
        return int(self.function.__recipe_version__)  # type: ignore[attr-defined]

    @property
    def unrecorded(self) -> frozenset[str]:
        """The names of the parameters that are in no recipe."""
        return frozenset(self.function.__recipe_unrecorded__)  # type: ignore[attr-defined]

    @property
    def in_ranges(self) -> bool:
        """Whether the function takes a `RangeMap` as ``ranges``."""
        return bool(self.function.__recipe_in_ranges__)  # type: ignore[attr-defined]

    @cached_property
    def description(self) -> dict[str, object]:
        """Function, version and recorded parameters as plain JSON."""
        parameters = self._by_name()
        return {
            "function": self.name,
            "version": self.version,
            "parameters": {
                key: recipe_value(parameters[key], key) for key in sorted(set(parameters) - self.unrecorded)
            },
        }

    def _by_name(self) -> dict[str, object]:
        parameters: dict[str, object] = {}
        for name, value in self.parameters.items():
            own = by_field(value) or {name: value}
            if twice := sorted(set(own) & set(parameters)):
                raise RecipeError(f"{self.place}: {name} has {twice}, which other parameters have, too; rename one")
            parameters |= own
        return parameters

    @cached_property
    def digest(self) -> str:
        """Digest of the description, see `recipe_digest`."""
        return recipe_digest(self.description)

    def fingerprint(self, inputs: Sequence[str]) -> str:
        """Return the fingerprint of an output made from inputs with these content digests, in this order."""
        return value_digest([self.digest, list(inputs)])

    def __call__(self, *inputs: Any) -> Any:
        """Run the function."""
        return self.function(*inputs, **self.parameters)

    def __reduce__(self) -> tuple[Any, ...]:
        # The cached description of 20,000 budgets need not travel to every worker.
        return Recipe, (self.function, self.parameters)
