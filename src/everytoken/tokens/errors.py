"""What can go wrong with tokens: messages say what, where, what was expected and found, and what to do."""

from __future__ import annotations


class TokensError(Exception):
    """Base of the errors of this package."""


class TokenizerError(TokensError):
    """A tokenizer cannot be trained or used, or it loses more text than is allowed."""


class StreamError(TokensError):
    """A token stream, or what it is to be made from, is not what it should be."""
