"""What can go wrong with canary documents."""

from __future__ import annotations

from everytoken.tokens.errors import TokensError


class CanaryError(TokensError):
    """Canary documents cannot be read, or not be made into a stream as the parameters say."""
