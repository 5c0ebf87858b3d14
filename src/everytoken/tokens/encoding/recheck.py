"""A share of the documents of a run is encoded again by the reference, whatever the certificate says.

The certificate shows that a fast engine is equal on what was tried before; this shows it for documents of the run.
Which documents is a pure function of seed, part and row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from everytoken.seeds import numpy_generator
from everytoken.tokens.encoding.encoder import DocumentEncoder, Encoded
from everytoken.tokens.engines import REFERENCE, open_engine
from everytoken.tokens.errors import TokenizerError


@dataclass(frozen=True)
class Recheck:
    """``share`` of the documents, drawn with ``seed``."""

    share: float
    seed: int


class EngineDiffers(TokenizerError):
    """A fast engine gave other ids than the reference.

    Attributes:
        number: of the document in what was encoded.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class Rechecker:
    """Checks the documents of one part, batch after batch in row order."""

    def __init__(self, encoder: DocumentEncoder, recheck: Recheck, part: int) -> None:
        self.documents = 0
        self._encoder, self._share = encoder, recheck.share
        self._needed = encoder.engine.name != REFERENCE and recheck.share > 0
        self._generator = numpy_generator(recheck.seed, part)
        if self._needed:
            reference = open_engine(REFERENCE, encoder.tokenizer.content, encoder.special_tokens_in_text)
            self._reference = DocumentEncoder(encoder.tokenizer, reference, encoder.special_tokens_in_text)

    def check(self, texts: Sequence[str], encoded: Encoded, max_tokens: int | None) -> None:
        """Encode the drawn ones of ``texts`` again and compare.

        Raises:
            EngineDiffers: a document has other ids.
        """
        if not self._needed:
            return
        drawn = np.flatnonzero(self._generator.random(len(texts)) < self._share).tolist()
        if not drawn:
            return
        again = self._reference.encode([texts[i] for i in drawn], max_tokens)
        self.documents += len(drawn)
        ours, theirs = encoded.offsets, again.offsets
        for i, number in enumerate(drawn):
            found = encoded.values[ours[number] : ours[number + 1]]
            expected = again.values[theirs[i] : theirs[i + 1]]
            whole = all(
                vars(encoded)[name][number] == vars(again)[name][i] for name in ("full_lengths", "lost_bytes")
            )  # what is beyond the cut is seen in its number of ids and bytes
            if whole and np.array_equal(found, expected):
                continue
            engine = self._encoder.engine
            raise EngineDiffers(
                number,
                f"the engine {engine.name} {engine.version} gives other ids than {REFERENCE} "
                f"{self._reference.engine.version}: {_difference(expected, found)}. Its certificate did not show that. "
                f"Encode with engine: {REFERENCE}, and please report the text",
            )


def _difference(expected: np.ndarray, found: np.ndarray) -> str:
    common = min(len(expected), len(found))
    place = next(_places(expected[:common] != found[:common]), common)
    around = slice(max(0, place - 2), place + 4)
    return f"from token {place} on, expected ...{expected[around].tolist()}..., found ...{found[around].tolist()}..."


def _places(wrong: np.ndarray) -> Iterator[int]:
    yield from np.flatnonzero(wrong)[:1].tolist()
