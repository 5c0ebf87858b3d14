"""What a token spells: the bytes that a byte-level token stands for, and the characters that they are."""

from __future__ import annotations

from functools import lru_cache

from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer, byte_symbols


def bytes_of_token(tokenizer: DocumentTokenizer, token: int) -> bytes:
    """Return the bytes of text that an id stands for; of an added token, its spelling; none of an id without token."""
    added = _added(tokenizer)
    if token in added:
        return added[token].encode()
    symbols = tokenizer.tokenizer.id_to_token(token)
    return b"" if symbols is None else bytes(_bytes_of_symbols()[symbol] for symbol in symbols)


def decoded(spelled: bytes) -> str | None:
    """Return bytes as text; None when they are not whole characters."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return None


@lru_cache(maxsize=4)
def _added(tokenizer: DocumentTokenizer) -> dict[int, str]:
    return {token: str(one.content) for token, one in tokenizer.tokenizer.get_added_tokens_decoder().items()}


@lru_cache(maxsize=1)
def _bytes_of_symbols() -> dict[str, int]:
    return {symbol: byte for byte, symbol in byte_symbols().items()}
