"""Tokens: tokenizers, encoded documents, streams of windows, and the order in which training reads them."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.errors import StreamError, TokenizerError, TokensError

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "StreamError",
    "TokenizerError",
    "TokensError",
]
