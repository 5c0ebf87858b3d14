"""The text of a document that a model was trained on: up to the end of the last token that its window has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer


class TrainedText(NamedTuple):
    """A text as a window has it, and its content tokens."""

    text: str
    tokens: int


@dataclass(frozen=True, eq=False)
class TrainedTexts:
    """Cuts texts where their windows end."""

    tokenizer: Tokenizer

    def kept(self, texts: Sequence[str], lengths: Sequence[int | None]) -> Iterator[TrainedText]:
        """Yield each text up to the end of its token number ``length - 1``; None: the whole text."""
        for text, length, encoding in zip(
            texts, lengths, self.tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True
        ):
            if length is None or len(encoding) <= length:
                yield TrainedText(text, len(encoding))
            else:
                yield TrainedText(text[: encoding.offsets[length - 1][1]] if length else "", length)


def open_trained_texts(rules: EncodingRules) -> TrainedTexts:
    """Open the tokenizer of a stream for `TrainedTexts`."""
    opened = open_tokenizer(rules.place, rules.eos_token)
    tokenizer = Tokenizer.from_buffer(opened.content)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None  # that of byte-level models takes the space from the range of its word
    tokenizer.encode_special_tokens = rules.special_tokens_in_text != "control"
    return TrainedTexts(tokenizer)
