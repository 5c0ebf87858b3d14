"""Some documents of a run are encoded again by the reference, whatever the certificate says.

The certificate shows that a fast engine is equal on what was tried before; this shows it for documents of the run.
Each document has a number between 0 and 1, a pure function of seed, part and row. The least of a part are drawn:
those below ``share``, and no more of them than the part's share of the cap.

So all documents are equally likely, and the cost of a large corpus does not grow. With n documents drawn and none that
differs, the share of documents that differ is below 3 / n, at 95 % confidence: (1 - 3 / n) ** n < 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop

import numpy as np

from everytoken.seeds import numpy_generator
from everytoken.tokens.encoding.encoder import DocumentEncoder, Encoded
from everytoken.tokens.engines import REFERENCE, open_engine
from everytoken.tokens.errors import TokenizerError

_HELD_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class Recheck:
    """Which documents are encoded again.

    Attributes:
        share: of the documents, from 0 to 1.
        density: at most so many documents for each unit of a part's size (a row, or a byte).
    """

    share: float
    seed: int
    density: float = math.inf

    @staticmethod
    def capped(share: float, seed: int, documents: int, size: int) -> Recheck:
        """Return the recheck of at most about ``documents`` of a corpus whose parts have ``size`` units together."""
        return Recheck(share, seed, documents / max(size, 1))


class EngineDiffers(TokenizerError):
    """A fast engine gave other ids than the reference.

    Attributes:
        place: of the document, as the caller of `Rechecker.check` named it.
    """

    def __init__(self, place: object, message: str) -> None:
        super().__init__(message)
        self.place = place


@dataclass(frozen=True)
class _Drawn:
    """A document to be encoded again."""

    place: object
    text: str
    ids: np.ndarray
    full_length: int
    lost_bytes: int
    max_tokens: int | None


class Rechecker:
    """Checks the documents of one part, given batch after batch in row order.

    It holds the documents drawn so far, 2**20 characters of them; beyond that it checks them at once.

    Args:
        size: of the part, in the units of ``recheck.density``.
    """

    def __init__(self, encoder: DocumentEncoder, recheck: Recheck, part: int, size: int) -> None:
        self.documents = 0
        self._encoder, self._share = encoder, recheck.share
        self._generator = numpy_generator(recheck.seed, part)
        # Rounded at random: of many small parts only some have a document that is drawn.
        rounding, unbounded = self._generator.random(), math.isinf(recheck.density)
        self._most = math.inf if unbounded else math.floor(recheck.density * size + rounding)
        self._needed = encoder.engine.name != REFERENCE and recheck.share > 0 and self._most > 0
        self._numbers: list[float] = []  # negative: the greatest of those drawn comes first
        self._held: dict[float, _Drawn] = {}

    def add(
        self, texts: Sequence[str], encoded: Encoded, max_tokens: int | None, place: Callable[[int], object]
    ) -> None:
        """Draw some of ``texts``; ``place`` names one by its number in the batch.

        Raises:
            EngineDiffers: a document has other ids.
        """
        if not self._needed:
            return
        numbers = self._generator.random(len(texts))
        below = np.flatnonzero(numbers < self._share)
        offsets = encoded.offsets if len(below) else encoded.lengths
        for i in below.tolist():
            if self._draw(float(numbers[i])):
                self._held[float(numbers[i])] = _Drawn(
                    place(i),
                    texts[i],
                    encoded.values[offsets[i] : offsets[i + 1]].copy(),
                    int(encoded.full_lengths[i]),
                    int(encoded.lost_bytes[i]),
                    max_tokens,
                )
        if sum(len(drawn.text) for drawn in self._held.values()) > _HELD_CHARACTERS:
            self.check()

    def _draw(self, number: float) -> bool:
        """Return whether a document is among those of the least numbers; the one that it displaces is let go."""
        if math.isinf(self._most):
            return True
        if len(self._numbers) < self._most:
            heappush(self._numbers, -number)
            return True
        displaced = -heappushpop(self._numbers, -number)
        self._held.pop(displaced, None)
        return displaced != number

    def check(self) -> None:
        """Encode the documents that are held again and compare; to be called after the last batch.

        Raises:
            EngineDiffers: a document has other ids.
        """
        drawn, self._held = list(self._held.values()), {}
        if not drawn:
            return
        again = self._reference.encode([one.text for one in drawn], drawn[0].max_tokens)
        self.documents += len(drawn)
        offsets = again.offsets
        for i, one in enumerate(drawn):
            expected = again.values[offsets[i] : offsets[i + 1]]
            # what is beyond the cut is seen in its number of ids and bytes
            whole = (one.full_length, one.lost_bytes) == (int(again.full_lengths[i]), int(again.lost_bytes[i]))
            if whole and np.array_equal(one.ids, expected):
                continue
            engine = self._encoder.engine
            raise EngineDiffers(
                one.place,
                f"the engine {engine.name} {engine.version} gives other ids than {REFERENCE} "
                f"{self._reference.engine.version}: {_difference(expected, one.ids)}. Its certificate did not show "
                f"that. Encode with engine: {REFERENCE}, and please report the text",
            )

    @property
    def _reference(self) -> DocumentEncoder:
        tokenizer, policy = self._encoder.tokenizer, self._encoder.special_tokens_in_text
        return DocumentEncoder(tokenizer, open_engine(REFERENCE, tokenizer.content, policy), policy)


def _difference(expected: np.ndarray, found: np.ndarray) -> str:
    common = min(len(expected), len(found))
    place = next(_places(expected[:common] != found[:common]), common)
    around = slice(max(0, place - 2), place + 4)
    return f"from token {place} on, expected ...{expected[around].tolist()}..., found ...{found[around].tolist()}..."


def _places(wrong: np.ndarray) -> Iterator[int]:
    yield from np.flatnonzero(wrong)[:1].tolist()
