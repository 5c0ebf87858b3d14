"""What the arrays of a reflected stream tell: the lengths of its reflections, and windows of it as texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from everytoken.reflections.registry import find_generation_run
from everytoken.reflections.splicing import ReflectedStatistics
from everytoken.shards import Artifact
from everytoken.tokens.streams import (
    REFLECTION_INDEX_FILE,
    REFLECTION_LENGTHS_FILE,
    TOKEN_LENGTHS_FILE,
    open_indexed,
)
from everytoken.tokens.tokenizer import DocumentTokenizer, bytes_of_token

SHOWN_WINDOWS = 10

_CHUNK = 1 << 20
_LONE_BYTES = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True)
class ReflectedWindow:
    """A window of a reflected stream: its text before, in and after the reflection.

    Attributes:
        number: of the window in the stream.
        tokens: of these three.
    """

    number: int
    texts: tuple[str, str, str]
    tokens: tuple[int, int, int]


def reflection_lengths(stream: Artifact) -> np.ndarray:
    """Return how many reflections have each length in tokens, the marker included; int64, entry 0 is 0."""
    counts = np.zeros(1, np.int64)
    for _, sizes in _chunks(stream):
        found = np.bincount(sizes[sizes > 0], minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    return counts


def reflected_windows(
    stream: Artifact, tokenizer: DocumentTokenizer, most: int = SHOWN_WINDOWS
) -> list[ReflectedWindow]:
    """Return windows that have a reflection, evenly over the stream: the middle one of ``most`` equal shares."""
    said = stream.statistics_as(ReflectedStatistics)
    kind = find_generation_run(said["run"])[0].stream
    count, shown = said["reflected_windows"], min(most, said["reflected_windows"])
    chosen = _numbers_of(stream, [(2 * share + 1) * count // (2 * shown) for share in range(shown)])
    windows = open_indexed(stream.path(f"{kind}.bin").with_suffix("")).windows()
    arrays = [_mapped(stream, name) for name in (TOKEN_LENGTHS_FILE, REFLECTION_INDEX_FILE, REFLECTION_LENGTHS_FILE)]
    found = []
    for number in chosen:
        length, place, size = (int(array[number]) for array in arrays)
        found.append(_window(number, windows[number], length, place, size, tokenizer))
    return found


def _window(
    number: int, window: np.ndarray, length: int, place: int, size: int, tokenizer: DocumentTokenizer
) -> ReflectedWindow:
    pieces = window[:place], window[place : place + size], window[place + size : length]
    before, inside, after = (_text(tokenizer, piece.tolist()) for piece in pieces)
    return ReflectedWindow(number, (before, inside, after), (place, size, length - place - size))


def _text(tokenizer: DocumentTokenizer, ids: Sequence[int]) -> str:
    """Return what ids spell; bytes that are no whole character as their numbers."""
    spelled = b"".join(bytes_of_token(tokenizer, token) for token in ids)
    text = spelled.decode(errors="surrogateescape")
    return _LONE_BYTES.sub(lambda found: f"\u2039{ord(found[0]) - 0xDC00:02x}\u203a", text)


def _numbers_of(stream: Artifact, ordinals: Sequence[int]) -> list[int]:
    """Return the numbers of reflected windows that have these ordinals among them, ascending."""
    found: list[int] = []
    seen = 0
    for first, sizes in _chunks(stream):
        here = np.flatnonzero(sizes)
        own = [one - seen for one in ordinals if seen <= one < seen + len(here)]
        found += (first + here[own]).tolist() if own else []
        seen += len(here)
    return found


def _chunks(stream: Artifact) -> Iterator[tuple[int, np.ndarray]]:
    sizes = _mapped(stream, REFLECTION_LENGTHS_FILE)
    for first in range(0, len(sizes), _CHUNK):
        yield first, np.asarray(sizes[first : first + _CHUNK])


def _mapped(stream: Artifact, name: str) -> np.ndarray:
    path = stream.path(name)
    array: np.ndarray = np.load(path, mmap_mode="r" if stream.statistics_as(ReflectedStatistics)["windows"] else None)
    return array
