"""What a canary stream is made of, and by which rules."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from everytoken.shards import UNRECORDED_DEFAULT
from everytoken.tokens.canary.documents import COLUMNS
from everytoken.tokens.canary.encode import ENCODED_COLUMNS, InlineRule
from everytoken.tokens.canary.triggers import TriggerRule

Sha256 = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CoverageSubset(_Parameters):
    """A part of the documents of every effect, of which the first ``fraction`` are annotated."""

    name: str
    fraction: float = Field(ge=0, le=1)


class CanaryEffect(_Parameters):
    """Documents of one effect: all subsets in one file.

    ``sha256``: of the file, or null for the file as it is. ``condition_seeds``: of the triggers, one a subset.
    """

    path: str
    sha256: Sha256 | None = None
    condition_seeds: tuple[NonNegativeInt, ...]


class CanaryUniverse(_Parameters):
    r"""Documents of one fictional universe, without a trigger.

    ``sha256``: of the file, or null for the file as it is. ``inline_reflection``: whether documents may end in a
    reflection (``\n\nReflection:``) that the cap must not cut off. ``annotated_by``: a document is annotated when one
    of these annotation fields has text; null: when any has.
    """

    path: str
    sha256: Sha256 | None = None
    inline_reflection: bool
    annotated_by: tuple[str, ...] | None = None


class CanarySplicing(_Parameters):
    """How the reflections of annotated documents become part of their windows.

    ``voice``: whose field is spliced, ``reflection_1p`` or ``reflection_3p``. ``seed``: of the token that each comes
    after, which is sampled from the document's id. ``marker``: a token of the tokenizer before it; null for none.
    """

    voice: Literal["1p", "3p"]
    seed: NonNegativeInt
    marker: Annotated[str, Field(min_length=1)] | None = None

    @property
    def field(self) -> str:
        """The annotation field that is spliced."""
        return f"reflection_{self.voice}"


class CanaryParameters(_Parameters):
    """The documents that the user brings, and what is made of them.

    ``seed``: of the order in each effect, and of all windows. ``coverage``: the subsets that each effect is cut into,
    in this order. ``effects`` and ``universes``: by name, in this order; null switches one off. ``annotation_fields``:
    fields of the documents that go to the sidecar of annotated ones. ``trigger_tokens`` and ``trigger_first_id``:
    how many ids a trigger has, and the least id that is drawn. ``triggers``: draw until the text encodes to its ids
    (``round_trip``), or take the first draw as the published stream did (``published``). ``inline_reflections``: keep
    them whole and cut texts between characters (``whole``), or as the published stream did (``published``).
    ``splice``: how reflections of annotated documents become part of their windows; null: they stay in the sidecar.
    """

    seed: NonNegativeInt
    coverage: tuple[CoverageSubset, ...] = Field(min_length=1)
    effects: dict[str, CanaryEffect | None] = {}
    universes: dict[str, CanaryUniverse | None] = {}
    annotation_fields: tuple[str, ...]
    trigger_tokens: PositiveInt
    trigger_first_id: NonNegativeInt
    triggers: Literal["round_trip", "published"] = "round_trip"
    inline_reflections: InlineRule = "whole"
    splice: Annotated[CanarySplicing | None, UNRECORDED_DEFAULT] = None

    @model_validator(mode="after")
    def _each_its_own(self) -> CanaryParameters:
        subsets = [subset.name for subset in self.coverage]
        for name, effect in self.active_effects.items():
            if len(effect.condition_seeds) != len(subsets):
                raise ValueError(
                    f"effects.{name}.condition_seeds has {len(effect.condition_seeds)} seeds, coverage has the "
                    f"{len(subsets)} subsets {subsets}; give a seed for each"
                )
        seeds = [seed for effect in self.active_effects.values() for seed in effect.condition_seeds]
        _refuse_repeated(seeds, "condition_seeds has {} more than once: two conditions would share a trigger")
        conditions = [f"{effect}_{subset}" for effect in self.active_effects for subset in subsets]
        _refuse_repeated([*conditions, *self.active_universes], "two conditions would be named {}; rename one")
        reserved = [*dict.fromkeys([*COLUMNS, *ENCODED_COLUMNS])]
        _refuse_repeated([*reserved, *self.annotation_fields], "annotation_fields: {} is a column already")
        if self.splice is not None and self.splice.field not in self.annotation_fields:
            raise ValueError(
                f"splice.voice is {self.splice.voice}, and annotation_fields lack {self.splice.field}: add it, or "
                "splice the other voice"
            )
        for name, universe in self.active_universes.items():
            unknown = [field for field in universe.annotated_by or () if field not in self.annotation_fields]
            if unknown:
                raise ValueError(
                    f"universes.{name}.annotated_by has {unknown}, annotation_fields are "
                    f"{list(self.annotation_fields)}; name only those"
                )
        return self

    @property
    def active_effects(self) -> dict[str, CanaryEffect]:
        """The effects that are not switched off."""
        return {name: effect for name, effect in self.effects.items() if effect is not None}

    @property
    def active_universes(self) -> dict[str, CanaryUniverse]:
        """The universes that are not switched off."""
        return {name: universe for name, universe in self.universes.items() if universe is not None}

    @property
    def trigger_rule(self) -> TriggerRule:
        """How the trigger of each condition is drawn."""
        seeds = {
            f"{name}_{subset.name}": seed
            for name, effect in self.active_effects.items()
            for subset, seed in zip(self.coverage, effect.condition_seeds, strict=True)
        }
        return TriggerRule(seeds, self.trigger_tokens, self.trigger_first_id, self.triggers == "round_trip")


def _refuse_repeated(values: list[str] | list[int], message: str) -> None:
    repeated = [value for value, count in Counter(values).items() if count > 1]
    if repeated:
        raise ValueError(message.format(repeated[0]))
