"""What a token stands for, in bytes and as a text."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from functools import cached_property

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Bytes and texts of the tokens of a tokenizer, of bytes or of SentencePiece's kind."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items()}
        self.special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}

    def bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; none for an id without token."""
        spelled = self._tokenizer.id_to_token(token)
        if spelled is None:
            return b""
        if token in self._added:
            return self._added[token].encode()
        if self._is_byte_level:
            return bytes(_BYTES[character] for character in spelled)
        if one := _BYTE_TOKEN.fullmatch(spelled):
            return bytes([int(one[1], 16)])
        return str(spelled).replace("\u2581", " ").encode()

    def text(self, token: int) -> str:
        r"""Return the text of a token; ``bytes:\xe2`` where its bytes are no text, as OpenAI writes it."""
        if self._tokenizer.id_to_token(token) is None:
            return f"token_id:{token}"
        data = self.bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder = self._tokenizer.decoder
        return decoder is not None and '"ByteLevel"' in json.dumps(json.loads(decoder.__getstate__()))


class Offsets:
    """Places of tokens in their text, in characters; a token that continues a character has that one's place."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def add(self, tokens: Iterable[bytes]) -> list[int]:
        """Return where each of these tokens begins, which follow those before."""
        places = []
        for data in tokens:
            begun, _ = self._decoder.getstate()
            is_broken = bool(begun and data) and not 0x80 <= data[0] < 0xC0  # the text has a replacement character
            places.append(self._length + is_broken)
            self._length += len(self._decoder.decode(data))
        return places


def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character by which byte-level vocabularies spell it (GPT-2)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES = _bytes_of_characters()
