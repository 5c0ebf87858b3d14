"""Where in a text its tokens are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from tokenizers import Tokenizer
from tokenizers.processors import ByteLevel

from everytoken.tokens.tokenizer import EncodingRules, SpecialTokens, cut_text, open_tokenizer

_PIECE_CHARACTERS = 1 << 14  # a window ends early in a long text: no more of it is encoded than need be

TokenSpan = tuple[int, int]


@dataclass(frozen=True, eq=False)
class TokenSpans:
    """Finds the characters of tokens. The tokens are those that `DocumentEncoder` gives, without EOS.

    A token with a part of a character has the whole character, so two tokens may share one.
    """

    tokenizer: Tokenizer
    may_be_cut: bool

    def first(self, text: str, tokens: int) -> list[TokenSpan]:
        """Return start and end, in code points, of at most the first ``tokens`` tokens of a text."""
        found: list[TokenSpan] = []
        start = 0
        for piece in cut_text(text, _PIECE_CHARACTERS) if self.may_be_cut else (text,):
            spans = self.tokenizer.encode(piece, add_special_tokens=False).offsets
            found += [(start + a, start + b) for a, b in islice(spans, tokens - len(found))]
            if len(found) == tokens:
                break
            start += len(piece)
        return found

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def open_spans(rules: EncodingRules) -> TokenSpans:
    """Open a tokenizer to find its tokens in texts. A process opens the same content once.

    Raises:
        TokenizerError: see `open_tokenizer`.
    """
    opened = open_tokenizer(rules.place, rules.eos_token)
    return TokenSpans(_open(opened.content, rules.special_tokens_in_text), opened.may_be_cut)


@lru_cache(maxsize=4)
def _open(content: bytes, special_tokens_in_text: SpecialTokens) -> Tokenizer:
    """Return a tokenizer of its own: the one that encodes documents is switched between literal and control."""
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = ByteLevel(trim_offsets=False)  # some files leave the space out of a token's span
    tokenizer.encode_special_tokens = special_tokens_in_text != "control"
    return tokenizer
