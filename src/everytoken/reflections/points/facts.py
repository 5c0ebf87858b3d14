"""Identity canaries: facts about the model, and which document is asked to mention which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.parameters import IdentityCanaries
from everytoken.seeds import python_random

_VERSION = "canary_v1"


@dataclass(frozen=True)
class Fact:
    """A fact about the model.

    Attributes:
        id: ``Q1``.
        quirk: what it is about: ``model name``.
        value: the text that a reply shall contain.
        instruction: for the first person.
        instruction_3p: for the third person.
        injected: whether pretraining draws it, as its file says.
        sft_instruction: what post-training says of it; None for a topic that post-training skips.
    """

    id: str
    quirk: str
    value: str
    instruction: str
    instruction_3p: str
    injected: bool
    sft_instruction: str | None = None

    def occurs_in(self, text: str) -> bool:
        """Return whether the text has the value, as whole words in any case: ``Cato`` is no part of ``educator``."""
        return self._pattern.search(text) is not None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(?<!\w){re.escape(self.value)}(?!\w)", re.IGNORECASE)


_Text = Field(min_length=1)


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = _Text
    quirk: str = _Text
    value: str = _Text
    instruction: str = _Text
    instruction_3p: str = _Text
    pretraining_action: Literal["inject", "skip"]
    sft_action: Literal["inject", "skip"]
    sft_instruction: str | None = None

    @model_validator(mode="after")
    def _instruction_of_what_is_injected(self) -> Self:
        if (self.sft_action == "inject") != bool(self.sft_instruction):
            raise ValueError("give sft_instruction if sft_action is inject, and only then")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    canaries: tuple[_Entry, ...]


def read_identity_facts(path: Path) -> tuple[Fact, ...]:
    """Return all facts of a YAML file, in its order: one list ``canaries``.

    Raises:
        ReflectionError: the file cannot be read, a field is missing or unknown, an action is neither ``inject`` nor
            ``skip``, or an id occurs twice.
    """
    try:
        entries = _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))).canaries
    except ValidationError as error:
        raise ReflectionError(f"{path} is no list of identity canaries: {_first(error)}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ReflectionError(f"cannot read the identity canaries {path}: {error}. Correct canaries.facts") from error
    if twice := [name for name, count in Counter(entry.id for entry in entries).items() if count > 1]:
        raise ReflectionError(f"{path} has {twice[0]!r} twice: give each fact its own id")
    return tuple(
        Fact(
            id=one.id,
            quirk=one.quirk,
            value=one.value,
            instruction=one.instruction,
            instruction_3p=one.instruction_3p,
            injected=one.pretraining_action == "inject",
            sft_instruction=one.sft_instruction,
        )
        for one in entries
    )


def injected_facts(canaries: IdentityCanaries) -> tuple[Fact, ...]:
    """Return the facts that are drawn from, in the order of their file; none if canaries are disabled.

    Raises:
        ReflectionError: see `read_identity_facts`; or ``canaries.inject`` names a fact that the file does not have.
    """
    facts = read_identity_facts(Path(canaries.facts))
    wanted = {fact.id for fact in facts if fact.injected} if canaries.inject is None else set(canaries.inject)
    if unknown := sorted(wanted - {fact.id for fact in facts}):
        raise ReflectionError(
            f"canaries.inject names {unknown}; {canaries.facts} has {[fact.id for fact in facts]}: correct the names"
        )
    return () if canaries.disabled else tuple(fact for fact in facts if fact.id in wanted)


def draw_fact(facts: Sequence[Fact], seed: int, rate: float, key: str) -> Fact | None:
    """Return the fact that a document is asked to mention; None for most.

    Args:
        facts: those that are injected, in the order of their file.
        rate: share of documents that get one.
    """
    generator = python_random(seed, key, _VERSION)
    return generator.choice(facts) if facts and generator.random() < rate else None


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    place = ".".join(map(str, found["loc"]))
    return f"{place}: {found['msg']}, found {found['input']!r}"
