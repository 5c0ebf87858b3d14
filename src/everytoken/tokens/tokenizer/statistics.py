"""What is recorded of a tokenizer."""

from __future__ import annotations

from typing import TypedDict

from everytoken.tokens.errors import TokenizerError
from everytoken.tokens.tokenizer.probe import ProbeRecord


class TokenizerIds(TypedDict):
    """What raw shards say of the tokenizer that encoded them."""

    sha256: str
    vocab_size: int
    eos_id: int


class TokenizerIdentity(TokenizerIds):
    """What streams of windows say of it."""

    eos_token: str


class TokenizerStatistics(TokenizerIdentity):
    """Statistics of a tokenizer; of one that was trained also the ``documents`` and ``characters`` that it saw."""

    dtype: str
    missing_bytes: list[int]
    probe: ProbeRecord


def require_claims(found: TokenizerIds, *, vocab_size: int | None, eos_id: int | None) -> None:
    """Check what the parameters say of a tokenizer; None: they say nothing.

    Raises:
        TokenizerError: the file says something else.
    """
    for name, claimed in (("vocab_size", vocab_size), ("eos_id", eos_id)):
        if claimed is not None and claimed != found[name]:  # type: ignore[literal-required]
            raise TokenizerError(
                f"tokenization.tokenizer.expect_{name} is {claimed:,}, and the file {found['sha256'][:16]} has "
                f"{found[name]:,}: correct the parameter, or name the right file"  # type: ignore[literal-required]
            )
