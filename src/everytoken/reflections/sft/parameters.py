"""Which prompts are answered, how, and what the files of chats are like."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from everytoken.corpus.ingestion import Upstream
from everytoken.corpus.reading import FileKind

HarmCategory = Literal["harmful", "benign", "adversarial_harmful", "adversarial_benign", "unknown"]
ChatShape = Literal["messages", "sharegpt", "strings", "transcript"]
_Value = bool | int | str


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class PromptPool(_Parameters):
    """Files whose rows are prompts of one kind.

    ``format``, ``records``: see `everytoken.corpus.reading.Reading`. ``source``: as the export names it; null: the name
    of the pool. ``prompt``: column with the text of the user; or ``chat``: column with a chat of the shape ``shape``,
    whose first turn of a user is the prompt. ``id_columns``: the first of them that is not null is the id; without one
    it is made of the name of the pool and the number of the row. ``where``: values that a row must have by column; a
    list: any of them. ``meta``: columns that the export keeps. ``slots``: shares of the mix; ``all``: every row, before
    the others get their share.
    """

    upstream: Upstream
    format: FileKind | None = None
    records: str | None = None
    source: str | None = None
    prompt: str | None = None
    chat: str | None = None
    shape: ChatShape = "messages"
    id_columns: tuple[str, ...] = ()
    where: dict[str, _Value | tuple[_Value, ...]] = {}
    meta: tuple[str, ...] = ()
    harm_category: HarmCategory
    slots: PositiveInt | Literal["all"]

    @model_validator(mode="after")
    def _has_one_column(self) -> Self:
        if (self.prompt is None) == (self.chat is None):
            raise ValueError("give prompt (a column with a text) or chat (a column with a chat), and not both")
        return self

    @property
    def column(self) -> str:
        """The column that the prompt is in."""
        return self.prompt if self.chat is None else self.chat  # type: ignore[return-value]  # one of them is given

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is looked at, once."""
        return tuple(dict.fromkeys([self.column, *self.id_columns, *self.where, *self.meta]))


class PromptMix(_Parameters):
    """Which prompts are drawn.

    ``rows``: that are wanted. ``seed``: of the draw and the order. ``max_characters``: longer prompts are set aside.
    ``max_bad_share``: of the rows of a pool that cannot be read. ``pools``: by name, in the order in which they are
    drawn from; null switches one off. ``exclude``: pools that are not drawn from, while the others keep their share.
    """

    rows: PositiveInt
    seed: NonNegativeInt
    max_characters: PositiveInt
    max_bad_share: Annotated[float, Field(ge=0, le=1)]
    pools: dict[str, PromptPool | None]
    exclude: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_shares(self) -> Self:
        if not any(pool.slots != "all" for pool in self.active_pools.values()):
            raise ValueError("pools has none with slots: give at least one of them a number of slots")
        if unknown := sorted(set(self.exclude) - set(self.active_pools)):
            raise ValueError(f"exclude names {unknown}; the pools are {sorted(self.active_pools)}: correct the names")
        return self

    @property
    def active_pools(self) -> dict[str, PromptPool]:
        """The pools that are not switched off, in their order."""
        return {name: pool for name, pool in self.pools.items() if pool is not None}

    @property
    def drawn_pools(self) -> dict[str, PromptPool]:
        """The pools that are drawn from, in their order."""
        return {name: pool for name, pool in self.active_pools.items() if name not in self.exclude}


class SftParameters(_Parameters):
    """Post-training data: prompts, their answers, and the files of chats. The generator is that of ``reflection``.

    ``version``: of the prompt file, ``v<N>``. ``generation_seed``: of the seeds that requests carry. ``rows_per_task``:
    prompts of a rank. ``max_attempts``: of a prompt. ``family_name``: of the generator, which no answer may say.
    ``vocabulary``: words that the uncited answer may have only where the user has them. ``canaries``: whether the
    generator learns of the facts. ``rows_per_file``: most rows of an exported file; ``rows_per_group``: of a row group.
    """

    mix: PromptMix
    version: Annotated[str, Field(pattern=r"^v[1-9][0-9]*$")]
    generation_seed: NonNegativeInt
    rows_per_task: PositiveInt
    max_attempts: PositiveInt
    family_name: Annotated[str, Field(min_length=1)]
    vocabulary: tuple[Annotated[str, Field(min_length=1)], ...]
    canaries: bool = True
    rows_per_file: PositiveInt = 50_000
    rows_per_group: PositiveInt = 10_000
