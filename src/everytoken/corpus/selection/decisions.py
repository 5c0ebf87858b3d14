"""Selection: which of the documents that were read stay, and why each of the others does not.

In this order, a document is set aside

- as ``duplicate`` or ``near_duplicate`` of an earlier one;
- as ``contaminated``: it holds n-grams of evaluation files (`everytoken.corpus.decontamination.contamination`);
- as ``beyond_payload_cap`` of its source: what stays is the longest prefix, in plan order, of the documents left whose
  UTF-8 bytes sum to at most ``max_text_bytes``. It ends at a document: the first that does not fit and all after it go,
  also shorter ones that would;
- as ``beyond_budget`` of its source in a mixture: documents are taken in plan order while the budget is not reached,
  in characters or in tokens as the mixture says (`everytoken.corpus.selection.mixture`).

The decision is made once, for all documents, from a few numbers of each (no text is read): a byte a document in
``codes.npy``, 0 to stay or the number of the reason in `DECISIONS`. With a mixture the order of the mixed corpus is
decided here too, by the rule of `everytoken.corpus.selection.mixture`. The part functions of `selected_parts` and
`mixed_parts` carry it out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from everytoken.arrays import Integers
from everytoken.corpus.decontamination import contaminated_rows
from everytoken.corpus.dedup import Duplicates, between, load_mapped
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.selection.mixture import (
    MixtureParameters,
    MixtureRow,
    Used,
    beyond_tolerance,
    budgets,
    common_unit,
    documents_until,
    interleave,
    mixture_table,
    passes,
)
from everytoken.corpus.statistics import RowCounts
from everytoken.shards import Artifact, Built, Part, Shards, canonical_json, versioned, write_text

DECISIONS = ("kept", "duplicate", "near_duplicate", "beyond_payload_cap", "beyond_budget", "contaminated")
KEPT, DUPLICATE, NEAR_DUPLICATE, BEYOND_PAYLOAD_CAP, BEYOND_BUDGET, CONTAMINATED = range(len(DECISIONS))

_CODES, MIXED_ORDER, _PARTS, _SOURCES = "codes.npy", "order.npy", "parts.npy", "sources.json"

_ORDER_AT_ONCE = 65_536

Codes = npt.NDArray[np.uint8]


@versioned("select", 1)
def select(
    folder: Path,
    *,
    documents: Shards,
    duplicates: Artifact | None,
    max_text_bytes: Mapping[str, int | None],
    mixture: MixtureParameters | None,
    contamination: Shards | None = None,
    token_counts: Shards | None = None,
) -> Built:
    """Decide which documents stay; see the module docstring.

    Files: ``codes.npy`` uint8 (documents,); ``parts.npy`` int64 (parts, 3), number of the part's source (-1 for a part
    without rows), position of its first document, documents that stay; ``sources.json`` the sources by number. With a
    mixture ``order.npy`` (documents of the mixed corpus, repeats included), the number of the source of each.

    Args:
        documents: with columns source, characters, utf8_bytes; each part is of one source.
        duplicates: `everytoken.corpus.dedup.duplicates.find_duplicates` of these documents, or None to keep them.
        max_text_bytes: payload cap by source; null for none.
        mixture: the recipe, or None to keep everything.
        contamination: parts of `everytoken.corpus.decontamination.contamination.judge_part` of these documents, or
            None to keep what is contaminated.
        token_counts: parts of these documents with a column ``tokens``, for a mixture in tokens; None for any other.

    Returns:
        Statistics: ``by_source`` with rows_in, kept, set_aside by reason, characters and utf8_bytes of what stays;
        ``mixture``, the table of `mixture_table` or null, and ``warnings``.

    Raises:
        SelectionError: a part of several sources, a source without cap or weight, or one that runs dry; or a mixture
            in tokens without their counts, or with those of other documents.
    """
    if (mixture is not None and mixture.unit == "tokens") != (token_counts is not None):
        raise SelectionError(
            "the budgets of a mixture are in tokens exactly where token_counts are given: give the counts of these "
            f"documents, or none; mixture.unit is {None if mixture is None else mixture.unit}"
        )
    amounts = _Amounts(documents, token_counts)
    sources = _Sources(max_text_bytes, mixture)
    codes = np.lib.format.open_memmap(folder / _CODES, mode="w+", dtype=np.uint8, shape=(documents.rows,))
    repeats = None if duplicates is None else Duplicates(duplicates)
    parts = _decide(amounts, repeats, contamination, sources, codes)
    np.save(folder / _PARTS, parts)
    table: list[MixtureRow] | None = None
    warnings: list[str] = []
    if mixture is not None:
        table = _mix(folder / MIXED_ORDER, amounts, codes, parts, sources, mixture)
        warnings = beyond_tolerance(table, mixture.tolerance)
    codes.flush()
    write_text(folder / _SOURCES, canonical_json(sources.names) + "\n")
    by_source = {name: sources.states[name].statistics() for name in sorted(sources.names)}
    return Built(SelectionStatistics(rows=len(codes), by_source=by_source, mixture=table, warnings=warnings))


class RowsChosen(RowCounts):
    """What was decided of the documents of a source, and the size of what stays."""

    characters: int
    utf8_bytes: int


class SelectionStatistics(TypedDict):
    """Of all ``rows``, by source; ``mixture`` is None without one."""

    rows: int
    by_source: dict[str, RowsChosen]
    mixture: list[MixtureRow] | None
    warnings: list[str]


@dataclass(frozen=True)
class _Amounts:
    """What each document counts of a budget: its tokens where they are counted, else its characters."""

    documents: Shards
    token_counts: Shards | None

    @property
    def column(self) -> str:
        return "characters" if self.token_counts is None else "tokens"

    def parts(self) -> Iterator[tuple[Part, Part]]:
        """Yield each part of the documents, and the part with the amounts of its documents.

        Raises:
            SelectionError: the counts are of other documents.
        """
        if self.token_counts is None:
            yield from zip(self.documents, self.documents, strict=True)
            return
        if (found := self.token_counts.part_rows) != (expected := self.documents.part_rows):
            raise SelectionError(
                f"the token counts have parts of {found} rows, and the documents of {expected}: count the tokens of "
                "these documents again"
            )
        yield from zip(self.documents, self.token_counts, strict=True)

    def of_part(self, part: Part) -> Integers:
        """Return all amounts of a part that `parts` gave, int64 (rows,)."""
        return np.concatenate(
            [np.empty(0, np.int64), *(batch.column(0).to_numpy() for batch in part.batches([self.column]))]
        ).astype(np.int64)


@dataclass
class _State:
    """What was decided about one source so far, and what may still be taken."""

    bytes_left: int | None
    needed: int | None
    closed: bool = False  # the first document that did not fit has passed
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(DECISIONS), np.int64))
    amount: int = 0
    characters: int = 0
    utf8_bytes: int = 0

    def decide(self, codes: Codes, characters: Integers, utf8_bytes: Integers, amounts: Integers) -> None:
        """Give the documents of a batch that have no reason yet (code 0) theirs, in order."""
        left = np.flatnonzero(codes == KEPT)
        if self.bytes_left is not None:
            within = np.searchsorted(np.cumsum(utf8_bytes[left]), self.bytes_left, side="right")
            fitting = 0 if self.closed else int(within)
            self.closed |= fitting < len(left)
            codes[left[fitting:]] = BEYOND_PAYLOAD_CAP
            left = left[:fitting]
            self.bytes_left -= int(utf8_bytes[left].sum())
        if self.needed is not None:
            taken = documents_until(amounts[left], self.needed - self.amount)
            codes[left[taken:]] = BEYOND_BUDGET
            left = left[:taken]
        self.amount += int(amounts[left].sum())
        self.characters += int(characters[left].sum())
        self.utf8_bytes += int(utf8_bytes[left].sum())
        self.counts += np.bincount(codes, minlength=len(DECISIONS))

    def statistics(self) -> RowsChosen:
        aside: dict[str, int] = {
            DECISIONS[code]: int(self.counts[code]) for code in range(1, len(DECISIONS)) if self.counts[code]
        }
        return {
            "rows_in": int(self.counts.sum()),
            "kept": int(self.counts[KEPT]),
            "set_aside": aside,
            "characters": self.characters,
            "utf8_bytes": self.utf8_bytes,
        }


class _Sources:
    """The sources by number: in the order of the recipe, or in that of their first documents."""

    def __init__(self, max_text_bytes: Mapping[str, int | None], mixture: MixtureParameters | None) -> None:
        self._caps = max_text_bytes
        self._mixture = mixture
        self._budgets = {} if mixture is None else budgets(mixture)
        self.names: list[str] = []
        self.states: dict[str, _State] = {}
        for name in self._budgets:
            self.add(name, "the mixture")

    def add(self, name: str, where: str) -> int:
        """Return the number of a source, new or known."""
        if name in self.states:
            return self.names.index(name)
        if name not in self._caps:
            raise SelectionError(
                f"{where} names source {name!r}, expected one of {sorted(self._caps)}, the sources that max_text_bytes "
                f"is given for. Read the documents again with the sources of this run, or add this one."
            )
        if self._mixture is not None and name not in self._budgets:
            raise SelectionError(
                f"{where} names source {name!r}, which has no weight in the mixture of {sorted(self._budgets)}. Give "
                f"it one in mixture.weights, or switch the source off."
            )
        self.names.append(name)
        self.states[name] = _State(self._caps[name], self._budgets[name].amount if self._budgets else None)
        return len(self.names) - 1


def _decide(
    amounts: _Amounts,
    duplicates: Duplicates | None,
    contamination: Shards | None,
    sources: _Sources,
    codes: Codes,
) -> Integers:
    """Fill ``codes``; return for each part the number of its source, its first position, and how many stay."""
    parts = np.full((len(amounts.documents), 3), -1, np.int64)
    start = 0
    for (part, of), entry in zip(amounts.parts(), parts, strict=True):
        entry[1:] = start, 0
        of_part = amounts.of_part(of) if of is not part else None
        if contamination is not None:
            codes[start + contaminated_rows(contamination, part)["document"].to_numpy()] = CONTAMINATED
        for batch in part.batches(["source", "characters", "utf8_bytes"]):
            stop, here = start + batch.num_rows, codes[start : start + batch.num_rows]
            names = batch.column("source").unique().to_pylist()
            numbers = {sources.add(name, part.name) for name in names} | ({int(entry[0])} - {-1})
            if len(numbers) > 1:
                found = sorted(sources.names[number] for number in numbers)
                raise SelectionError(f"{part.name} has documents of {found}, expected one source a part")
            entry[0] = numbers.pop()
            if duplicates is not None:
                for pairs, code in ((duplicates.exact, DUPLICATE), (duplicates.near, NEAR_DUPLICATE)):
                    here[between(pairs, start, stop)[:, 0] - start] = code
            lengths, sizes = (batch.column(name).to_numpy() for name in ("characters", "utf8_bytes"))
            counted = lengths if of_part is None else of_part[start - entry[1] : stop - entry[1]]
            sources.states[names[0]].decide(here, lengths, sizes, counted)
            entry[2] += np.count_nonzero(here == KEPT)
            start = stop
    return parts


def _mix(
    path: Path, amounts: _Amounts, codes: Codes, parts: Integers, sources: _Sources, mixture: MixtureParameters
) -> list[MixtureRow]:
    """Write the order of the mixed corpus; return intended against realised."""
    taken = [partial(_taken, amounts, codes, parts, number) for number in range(len(sources.names))]
    used: dict[str, Used] = {}
    dry = []
    for number, (name, budget) in enumerate(budgets(mixture).items()):
        try:
            used[name] = _use(name, sources.states[name], budget.amount, taken[number], mixture)
        except SelectionError as error:
            dry.append(str(error))
    if dry:
        raise SelectionError("\n".join(dry))

    unit = common_unit(mixture)

    def sizes(name: str, of_documents: Callable[[], Iterator[int]]) -> Iterator[int]:
        again = chain.from_iterable(of_documents() for _ in count())
        return (amount * unit[name] for amount in islice(again, used[name].uses))

    shares = [used[name].amount * unit[name] for name in sources.names]
    kind = np.uint8 if len(shares) <= 256 else np.uint16
    total = sum(entry.uses for entry in used.values())
    order = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=(total,))
    chosen = interleave([sizes(*pair) for pair in zip(sources.names, taken, strict=True)], shares)
    for start in range(0, total, _ORDER_AT_ONCE):
        some = np.fromiter(islice(chosen, _ORDER_AT_ONCE), kind)
        order[start : start + len(some)] = some
    order.flush()
    return mixture_table(mixture, used)


def _taken(amounts: _Amounts, codes: Codes, parts: Integers, number: int) -> Iterator[int]:
    """Yield the amounts of the documents of a source that stay."""
    for (_, of), (source, start, kept) in zip(amounts.parts(), parts.tolist(), strict=True):
        if source == number and kept:
            for batch in of.batches([amounts.column]):
                stays = codes[start : start + batch.num_rows] == KEPT
                yield from batch.column(0).to_numpy()[stays].tolist()
                start += batch.num_rows


def _use(name: str, state: _State, needed: int, taken: Callable[[], Iterator[int]], mixture: MixtureParameters) -> Used:
    """Return how often the documents of a source that stay are used, so that they give the amount ``needed``."""
    kept = int(state.counts[KEPT])
    whole, rest = passes(name, state.amount, needed, mixture)
    if whole == 0:  # what stays ends with the document that reaches the budget
        return Used(kept, kept, state.amount)
    documents = given = 0
    for amount in taken():
        if given >= rest:
            break
        documents, given = documents + 1, given + amount
    return Used(kept, whole * kept + documents, whole * state.amount + given)


class Selection:
    """A made selection, mapped into memory."""

    def __init__(self, artifact: Artifact) -> None:
        self.codes: Codes = load_mapped(artifact.path(_CODES))
        self.parts: Integers = np.load(artifact.path(_PARTS))
        self.sources: list[str] = json.loads(artifact.path(_SOURCES).read_text(encoding="utf-8"))

    def kept_by_source(self) -> Integers:
        """Return how many documents of each source stay, int64 (sources,)."""
        kept = np.zeros(len(self.sources), np.int64)
        there = self.parts[:, 0] >= 0
        np.add.at(kept, self.parts[there, 0], self.parts[there, 2])
        return kept

    def first_position(self, part: Part) -> int:
        """Return the position of the first document of a part.

        Raises:
            SelectionError: the part is not one that was selected from.
        """
        starts = [*self.parts[:, 1].tolist(), len(self.codes)]
        rows = starts[part.index + 1] - starts[part.index] if part.index < len(self.parts) else None
        if part.rows != rows:
            raise SelectionError(
                f"{part.name} has {part.rows:,} rows, but the selection was made from one of {rows} rows. Select from "
                f"these documents again."
            )
        return int(starts[part.index])
