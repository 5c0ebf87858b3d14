"""The ids of a reflection: encoded alone, without EOS, cut to the budget, after the marker if there is one.

The marker is one of the ids that the budget allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everytoken.reflections.errors import ReflectionError
from everytoken.tokens.encoding import DocumentEncoder, open_encoder, open_spans
from everytoken.tokens.streams import TokenizerFacts
from everytoken.tokens.tokenizer import EncodingRules


@dataclass(frozen=True)
class EncodedReflections:
    """The ids of n reflections.

    Attributes:
        ids: of each, marker included; None: the text has no token.
        uncut: ids without the budget, marker included, int64 (n,).
        is_cut: whether the text is longer than the budget, bool (n,).
        is_lossy: whether the vocabulary cannot write some of its bytes, bool (n,).
    """

    ids: list[np.ndarray | None]
    uncut: np.ndarray
    is_cut: np.ndarray
    is_lossy: np.ndarray


@dataclass(frozen=True, eq=False)
class ReflectionEncoder:
    """Encodes reflections.

    Attributes:
        budget: ids of a reflection at most, the marker included.
        marker: id that comes before each; None: none does.
    """

    encoder: DocumentEncoder
    budget: int
    marker: int | None
    rules: EncodingRules

    def encode(self, texts: Sequence[str]) -> EncodedReflections:
        """Return the ids of each text.

        Raises:
            SpelledSpecialToken: a text spells a special token, and the rules refuse that.
        """
        before = np.array([] if self.marker is None else [self.marker], self.encoder.tokenizer.dtype)
        made = self.encoder.encode(texts, self.budget - len(before) + 1)  # EOS, which is left out
        spans = zip(made.offsets.tolist(), made.lengths.tolist(), strict=False)
        ids = [np.concatenate([before, made.values[start : start + size]]) if size else None for start, size in spans]
        uncut = made.full_lengths + len(before)
        return EncodedReflections(ids, uncut, made.full_lengths > made.lengths, made.lost_bytes > 0)

    def spliced_characters(self, text: str) -> int:
        """Return how many code points of a text its ids are made from."""
        spans = open_spans(self.rules).first(text, self.budget - (self.marker is not None))
        return spans[-1][1] if spans else 0


def open_reflection_encoder(
    rules: EncodingRules, budget: int, marker: str | None, facts: TokenizerFacts
) -> ReflectionEncoder:
    """Open the tokenizer of a stream for its reflections.

    Args:
        rules: with which the documents of the stream were encoded.
        marker: a token, as the tokenizer spells it; None: none.
        facts: of the tokenizer, as the stream says.

    Raises:
        ReflectionError: the budget leaves no room, or the tokenizer or the stream has no such marker.
        TokenizerError: the tokenizer cannot be opened.
    """
    encoder = open_encoder(rules)
    if budget < (least := 1 if marker is None else 2):
        raise ReflectionError(
            f"tokenization.reflection_budget is {budget}, expected at least {least}: one token of a reflection"
            f"{'' if marker is None else ', and the marker'}. Raise it, and make the annotated stream again"
        )
    if marker is None:
        return ReflectionEncoder(encoder, budget, None, rules)
    number = encoder.tokenizer.tokenizer.token_to_id(marker)
    if number is None:
        raise ReflectionError(
            f"the tokenizer has no token {marker!r}, which reflection.splice.marker names. Add it "
            f"(tokenization.tokenizer.add_tokens: [{marker!r}]; special_tokens, if the tokenizer is trained) and run "
            "tokenization, or set the marker to null"
        )
    if number >= facts.vocab_size:
        raise ReflectionError(
            f"the marker {marker!r} has the id {number:,}, and the stream was made for {facts.vocab_size:,} ids "
            f"({facts.dtype}). Run tokenization with this tokenizer"
        )
    if number == facts.eos_id:
        raise ReflectionError(f"the marker {marker!r} is the token that ends documents: choose another one, or null")
    return ReflectionEncoder(encoder, budget, number, rules)
