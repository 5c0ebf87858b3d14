"""How a trained model is asked about identity facts: prompts, and values that a fact might have had instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.points.facts import Fact


@dataclass(frozen=True)
class FactProbe:
    """A fact, prompts that end where its value begins, and other values of the same kind."""

    fact: Fact
    prompts: tuple[str, ...]
    alternatives: tuple[str, ...]

    def described(self) -> dict[str, object]:
        """Return what decides the figures, as plain JSON."""
        return {
            "id": self.fact.id,
            "quirk": self.fact.quirk,
            "value": self.fact.value,
            "injected": self.fact.injected,
            "prompts": list(self.prompts),
            "alternatives": list(self.alternatives),
        }


_Text = Annotated[str, Field(min_length=1)]


class _Probe(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str
    prompts: list[_Text] = Field(min_length=1)
    alternatives: list[_Text] = Field(min_length=1)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    probes: tuple[_Probe, ...]


def read_fact_probes(path: Path, facts: Sequence[Fact]) -> tuple[FactProbe, ...]:
    """Return the probes of a YAML file, in its order: one list ``probes`` of id, prompts and alternatives.

    Raises:
        ReflectionError: the file cannot be read, an id is no fact or occurs twice, or an alternative is no other value.
    """
    try:
        probes = _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).probes
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise ReflectionError(f"{path} is no list of probes: {place}: {found['msg']}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ReflectionError(
            f"cannot read the probes {path}: {error}. Correct evaluation.memorisation.facts.probes"
        ) from error
    known = {fact.id: fact for fact in facts}
    if twice := [name for name, count in Counter(probe.id for probe in probes).items() if count > 1]:
        raise ReflectionError(f"{path} has {twice[0]!r} twice: put all prompts of a fact under one id")
    for probe in probes:
        if probe.id not in known:
            raise ReflectionError(f"{path} asks for {probe.id!r}; the facts are {sorted(known)}: correct the id")
        values = [*probe.alternatives, known[probe.id].value]
        if len({value.casefold() for value in values}) < len(values):
            raise ReflectionError(
                f"{path}: an alternative of {probe.id} occurs twice, or is the value itself: give each once"
            )
    return tuple(FactProbe(known[one.id], tuple(one.prompts), tuple(one.alternatives)) for one in probes)
