"""Lazy maps over parts: a dataset of 20,000 files as one value that a function can be mapped over.
 `Shards` is a sequence of parts. ``documents.map(score_part, scorer=...)`` plans a new one with the same part names
and runs nothing; the store that saves it runs the recipe part by part. ``zip`` gives a function one part of each of
several datasets, ``reduce`` makes one JSON value of each part (a statistic) instead of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from everytoken.shards.digests import plain_json
from everytoken.shards.errors import IncompleteStore, RecipeError, ShardsError
from everytoken.shards.ledger import Ledger, Record, root_digest, statistics_as
from everytoken.shards.parts import Part, Rows, SetAside, ValuePart
from everytoken.shards.recipe import Recipe


def part_name(index: int) -> str:
    """Return the name of the part at a plan position: ``part_00000``."""
    return f"part_{index:05d}"


@dataclass(frozen=True)
class PlannedPart:
    """A part that is made when it is read: a recipe over input parts. Reading it twice makes it twice."""

    name: str
    index: int
    recipe: Recipe
    inputs: tuple[Part, ...]

    @property
    def digest(self) -> str:
        return self.recipe.fingerprint([part.digest for part in self.inputs])

    def make(self) -> Any:
        """Run the recipe: `Rows`, or the JSON value of a reduction."""
        return self.recipe(*self.inputs)

    def _rows(self) -> Rows:
        made = self.make()
        if not isinstance(made, Rows):
            raise ShardsError(f"{self.recipe.place} returned a {type(made).__name__} for {self.name}, not Rows")
        return made

    @property
    def value(self) -> Any:
        made = self.make()
        if isinstance(made, Rows):
            raise ShardsError(f"{self.name} holds rows, not a value; read its batches()")
        return plain_json(made, f"the value of {self.name}")

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches())

    @property
    def schema(self) -> pa.Schema:
        return self._rows().schema

    def batches(self, columns: Sequence[str] | None = None, first_row: int = 0) -> Iterator[pa.RecordBatch]:
        found = 0
        for batch in self._rows().batches:
            if isinstance(batch, SetAside):
                continue
            skipped = min(max(0, first_row - found), batch.num_rows)
            found += batch.num_rows
            if skipped < batch.num_rows or not batch.num_rows:
                yield (batch if columns is None else batch.select(list(columns))).slice(skipped)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        table = pa.Table.from_batches(list(self.batches()), self.schema)
        return table if columns is None else table.select(list(columns))


@dataclass(frozen=True)
class Shards:
    """Parts in plan order; stored (with a ledger), given (values) or planned (with a recipe).

    ``set_aside``: of stored parts, the rows that were set aside while they were made; only parts that have any.
    """

    parts: tuple[Part, ...]
    recipe: Recipe | None = None
    holds: str = "rows"
    ledger: Ledger | None = field(default=None, repr=False)
    set_aside: tuple[Part, ...] = ()

    @staticmethod
    def from_values(values: Sequence[Any], digests: Sequence[str]) -> Shards:
        """Return value parts ``part_00000``... Only the digests enter recipes: a value may say where a file lies here.

        Args:
            values: one JSON value a part, in plan order.
            digests: the content digest of each.
        """
        pairs = enumerate(zip(values, digests, strict=True))
        return Shards(tuple(ValuePart(part_name(i), i, value, digest) for i, (value, digest) in pairs), holds="values")

    def map(self, function: Callable[..., Any], **parameters: Any) -> Shards:
        """Plan ``function(part, **parameters) -> Rows`` over every part."""
        return Zipped((self,)).map(function, **parameters)

    def reduce(self, function: Callable[..., Any], **parameters: Any) -> Shards:
        """Plan ``function(part, **parameters) -> JSON value`` over every part."""
        return Zipped((self,)).reduce(function, **parameters)

    def zip(self, *others: Shards) -> Zipped:
        """Pair the parts with those of datasets with the same part names.

        Raises:
            RecipeError: the part names differ.
        """
        return Zipped((self, *others))

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def root_digest(self) -> str:
        """Digest over the names and content digests of all parts."""
        if self.recipe is not None:
            raise IncompleteStore(
                f"parts planned with {self.recipe.name} have no content yet; save them, then use what the store loads"
            )
        return root_digest((part.name, part.digest) for part in self.parts)

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def part_rows(self) -> list[int]:
        """Rows of each part, in plan order."""
        return [part.rows for part in self.parts]

    @property
    def statistics(self) -> list[Mapping[str, Any]]:
        """What the part function returned beside its rows, by part in plan order (stored parts only)."""
        if self.ledger is None:
            raise IncompleteStore("only parts loaded from a store have statistics; save these first")
        return [dict(record.statistics) for record in self.ledger.parts]

    def statistics_as(self, kind: type[Record]) -> list[Record]:
        """Return `statistics` as the ``TypedDict`` that the part function declares for them.

        Raises:
            DamagedStore: those of a part lack a key, so another function made it.
        """
        return [statistics_as(said, kind, part.name) for part, said in zip(self.parts, self.statistics, strict=True)]

    @property
    def values(self) -> list[Any]:
        """The values of value parts, in plan order."""
        return [part.value for part in self.parts]


@dataclass(frozen=True)
class Zipped:
    """Datasets with the same part names, side by side."""

    columns: tuple[Shards, ...]

    def __post_init__(self) -> None:
        names = [part.name for part in self.columns[0].parts]
        for column in self.columns[1:]:
            other = [part.name for part in column.parts]
            if other != names:
                first = next((pair for pair in zip(names, other, strict=False) if pair[0] != pair[1]), ("end", "end"))
                raise RecipeError(
                    f"cannot zip {len(names)} parts with {len(other)}: they first differ in {first[0]} and {first[1]}. "
                    "Both must come from the same plan."
                )

    def map(self, function: Callable[..., Any], **parameters: Any) -> Shards:
        """Plan ``function(part, ..., **parameters) -> Rows`` over the parts side by side."""
        return self._plan("rows", Recipe(function, parameters))

    def reduce(self, function: Callable[..., Any], **parameters: Any) -> Shards:
        """Plan ``function(part, ..., **parameters) -> JSON value`` over the parts side by side."""
        return self._plan("values", Recipe(function, parameters))

    def _plan(self, holds: str, recipe: Recipe) -> Shards:
        rows = zip(*(column.parts for column in self.columns), strict=True)
        parts = tuple(PlannedPart(inputs[0].name, inputs[0].index, recipe, inputs) for inputs in rows)
        return Shards(parts, recipe, holds)
