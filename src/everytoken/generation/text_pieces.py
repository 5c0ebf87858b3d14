"""Tokens to text as they come: whole characters only, and nothing that may become a text that ends the reply."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class TextPieces:
    """Text of one reply.

    All pieces together are what the tokenizer decodes all tokens to, up to the first text of ``stop``.

    Args:
        stop: texts that end it; a special token is compared as it is spelled, though it is not shown.
        shows_special: whether special tokens are part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], *, shows_special: bool) -> None:
        self._tokenizer, self._stop, self._shows_special = tokenizer, tuple(stop), shows_special
        self._stream = DecodeStream(skip_special_tokens=not shows_special)
        self._special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._ids: list[int] = []
        self._held = ""  # decoded, and may be the begin of a text that ends it
        self.text = ""
        self.is_stopped = self._is_cut = False

    def add(self, token: int) -> str:
        """Take a token; return the text that is certain now."""
        if token in self._special and self._tokenizer.id_to_token(token) in self._stop:
            self.is_stopped = True
            return ""
        self._ids.append(token)
        self._held += self._stream.step(self._tokenizer, token) or ""
        return self._release(self._certain())

    def finish(self) -> str:
        """Return the text that was held back, with a replacement character for bytes that are no whole one."""
        if not self._is_cut:
            decoded = self._tokenizer.decode(self._ids, skip_special_tokens=not self._shows_special)
            self._held = decoded[len(self.text) :]
        return self._release(len(self._held))

    def _certain(self) -> int:
        """Return how many of the held characters cannot be of a text that ends the reply."""
        if (at := self._found()) is not None:
            self.is_stopped = self._is_cut = True
            self._held = self._held[:at]
            return at
        lengths = range(len(self._held), 0, -1)
        begins = (n for n in lengths if any(stop.startswith(self._held[-n:]) for stop in self._stop))
        return len(self._held) - next(begins, 0)

    def _found(self) -> int | None:
        places = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        return min(places, default=None)

    def _release(self, count: int) -> str:
        piece, self._held = self._held[:count], self._held[count:]
        self.text += piece
        return piece
