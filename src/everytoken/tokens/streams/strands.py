"""The strands of raw shards on disk: any process reads any range of the tokens of all documents in their order.

A strand is on disk as the ids of its documents in their order, one file a part, and where each document begins among
the tokens of the strand. A document that begins at token c of the T tokens of its strand has the place
``floor(2**60 * c / T)``; all documents are in the order of (place, strand). Which documents of a strand have a place
below p thus follows from one binary search, and where any token of all lies from a few times as many. So a range of
tokens is read without those before it.

Disk: the ids, and 8 bytes a document.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

_DIGITS = 60  # binary digits of a place
_FEW = 64  # documents that are looked at one by one
_STARTS_FILE = "starts"


def places(starts: np.ndarray, total: int) -> np.ndarray:
    """Return ``floor(2**60 * start / total)`` of each start, int64 (n,), 0 <= start <= total < 2**43."""
    digits = np.zeros(len(starts), np.int64)
    rest = np.asarray(starts, np.int64)
    for _ in range(3):  # 20 binary digits at a time
        digits = (digits << 20) + (rest << 20) // total
        rest = (rest << 20) % total
    return digits


@dataclass(frozen=True)
class PartOfStrand:
    """What a part holds of a strand: its documents [first, end), the tokens [first_token, end_token) of the strand."""

    file: Path
    first: int
    end: int
    first_token: int
    end_token: int


@dataclass(frozen=True)
class StrandOnDisk:
    """The parts of a strand that are on disk, one after the other, and where its starts begin in their file.

    Attributes:
        tokens: of the whole strand, also of what is not on disk.
    """

    number: int
    tokens: int
    first_start: int
    parts: tuple[PartOfStrand, ...]

    @property
    def documents(self) -> int:
        """Documents on disk."""
        return self.parts[-1].end if self.parts else 0

    @property
    def end(self) -> int:
        """Tokens on disk."""
        return self.parts[-1].end_token if self.parts else 0


@dataclass(frozen=True, eq=False)
class Cut:
    """A place between two documents in their order: how many documents of each strand come before, and their tokens.

    Attributes:
        documents: int64 (strands,).
        tokens: of all strands together.
    """

    documents: np.ndarray
    tokens: int


@dataclass(frozen=True, eq=False)
class Strands:
    """All strands, for any process: what it knows of documents is in files of the folder ``scratch``.

    Attributes:
        dtype: of the ids in the files.
    """

    scratch: Path
    strands: tuple[StrandOnDisk, ...]
    dtype: np.dtype[Any]

    def make_starts(self) -> None:
        """Make the file in which the start of each document is written, and write where each strand ends."""
        with (self.scratch / _STARTS_FILE).open("wb") as file:
            for strand in self.strands:
                file.seek(8 * (strand.first_start + strand.documents))
                file.write(np.int64(strand.end).tobytes())

    def write_starts(self, strand: int, first: int, starts: np.ndarray) -> None:
        """Write the first token of the documents ``first``, ``first + 1``, ... of a strand, int64 (n,)."""
        with (self.scratch / _STARTS_FILE).open("r+b") as file:
            file.seek(8 * (self.strands[strand].first_start + first))
            file.write(np.ascontiguousarray(starts, np.int64).data)

    def before(self, position: int) -> Cut:
        """Return the last cut with at most ``position`` tokens before it."""
        least, most = 0, 1 << _DIGITS
        first, last = self._below(least), self._below(most)
        if last.tokens <= position:
            return last
        while most - least > 1 and int((last.documents - first.documents).sum()) > _FEW:
            cut = self._below(place := (least + most) // 2)
            if cut.tokens <= position:
                least, first = place, cut
            else:
                most, last = place, cut
        following = [
            (self._place_of(number, document), number)
            for number, (begin, end) in enumerate(zip(first.documents, last.documents, strict=True))
            for document in range(begin, end)
        ]
        for _, number in sorted(following):
            longer = self._with(first, number)
            if longer.tokens > position:
                break
            first = longer
        return first

    def counts_at(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what is before a position among the tokens of all documents, by strand.

        Returns:
            documents that begin before it, and tokens, int64 (strands,) each.
        """
        cut = self.before(position)
        begun = self._reaching(cut, position)
        tokens = np.array([starts[n] for starts, n in zip(self._starts, cut.documents, strict=True)], np.int64)
        return begun.documents, tokens + (begun.documents - cut.documents) * (position - cut.tokens)

    def pieces(self, first: int, end: int, most: int) -> Iterator[np.ndarray]:
        """Yield the tokens [first, end) of all documents, at most ``most`` at a time.

        In memory are twice as many and one document.
        """
        cut = self.before(first)
        while first < end:
            stop = min(end, first + most)
            following = self.before(stop)
            tokens = self._merged(cut, self._reaching(following, stop))
            yield tokens[first - cut.tokens : stop - cut.tokens]
            cut, first = following, stop

    @cached_property
    def _starts(self) -> list[np.ndarray]:
        path = self.scratch / _STARTS_FILE
        found = np.asarray(np.memmap(path, np.int64, "r")) if self.strands else np.empty(0, np.int64)
        return [found[of.first_start : of.first_start + of.documents + 1] for of in self.strands]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_starts"}  # each process maps them

    def _below(self, place: int) -> Cut:
        """Return the cut before the first document whose place is not below ``place``."""
        counts, tokens = np.zeros(len(self.strands), np.int64), 0
        for strand, starts in zip(self.strands, self._starts, strict=True):
            limit = -(-(place * strand.tokens) >> _DIGITS)  # a start below this has a place below `place`
            count = int(starts[:-1].searchsorted(limit))
            counts[strand.number] = count
            tokens += int(starts[count])
        return Cut(counts, tokens)

    def _place_of(self, number: int, document: int) -> int:
        return (int(self._starts[number][document]) << _DIGITS) // self.strands[number].tokens

    def _with(self, cut: Cut, number: int) -> Cut:
        """Return the cut behind the next document of a strand."""
        documents, count = cut.documents.copy(), int(cut.documents[number])
        documents[number] += 1
        return Cut(documents, cut.tokens + int(self._starts[number][count + 1] - self._starts[number][count]))

    def _reaching(self, cut: Cut, position: int) -> Cut:
        """Return the cut, or the one a document later, so that ``position`` is not behind it."""
        if cut.tokens >= position:
            return cut
        following = [
            (self._place_of(number, count), number)
            for number, count in enumerate(cut.documents.tolist())
            if count < self.strands[number].documents
        ]
        return self._with(cut, min(following)[1])

    def _merged(self, first: Cut, end: Cut) -> np.ndarray:
        """Return the tokens between two cuts."""
        held: list[np.ndarray] = []
        numbers, there, starts = [], [], []
        for strand in self.strands:
            count, until = int(first.documents[strand.number]), int(end.documents[strand.number])
            if count == until:
                continue
            own = self._starts[strand.number][count : until + 1]
            starts.append(own[:-1] - own[0])
            there.append(places(own[:-1], strand.tokens))
            numbers.append(np.full(until - count, len(held)))
            held.append(self._ids(strand.parts, int(own[0]), int(own[-1])))
        if len(held) == 1:
            return held[0]
        number = np.concatenate(numbers)
        order = np.lexsort((number, np.concatenate(there)))
        number, start = number[order], np.concatenate(starts)[order]
        begins = np.flatnonzero(np.diff(number, prepend=-1))  # of runs of one strand, whose tokens lie together
        froms, at = start[begins].tolist(), number[begins].tolist()
        merged, done = np.empty(end.tokens - first.tokens, self.dtype), 0
        ends = _ends_of_runs(froms, at, [len(ids) for ids in held])
        for of, run, until in zip(at, froms, ends, strict=True):
            merged[done : done + until - run] = held[of][run:until]
            done += until - run
        return merged

    def _ids(self, parts: Sequence[PartOfStrand], first: int, end: int) -> np.ndarray:
        """Return the tokens [first, end) of a strand."""
        number, pieces = bisect_right(parts, first, key=lambda part: part.end_token), []
        while first < end:
            part = parts[number]
            stop = min(end, part.end_token)
            offset = (first - part.first_token) * self.dtype.itemsize
            pieces.append(np.fromfile(part.file, self.dtype, stop - first, offset=offset))
            first, number = stop, number + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _ends_of_runs(froms: list[int], at: list[int], following: list[int]) -> list[int]:
    """Return where each run ends: where the next one of its strand begins, or the strand ends."""
    ends = [0] * len(froms)
    for run in range(len(froms) - 1, -1, -1):
        ends[run], following[at[run]] = following[at[run]], froms[run]
    return ends
