"""What decides the ids of a text: tokenizer, EOS, and what special tokens in the text become."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from everytoken.shards import Artifact, recorded_by_field

SpecialTokens = Literal["literal", "control", "error"]


class StoredTokenizer(Protocol):
    """A ``tokenizer.json`` that no pipeline made, with the digest that stands for it in recipes."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def root_digest(self) -> str:
        """Digest of its content."""


@recorded_by_field
@dataclass(frozen=True)
class EncodingRules:
    """A tokenizer and how it is used. A recipe records the three as parameters of the function that takes them.

    Attributes:
        tokenizer: the artifact, a file with its digest, or the path of a ``tokenizer.json``.
        eos_token: the token that ends a document.
        special_tokens_in_text: ``literal``: plain text; ``control``: their ids; ``error``: such a document is refused.
    """

    tokenizer: Artifact | StoredTokenizer | Path
    eos_token: str
    special_tokens_in_text: SpecialTokens

    @property
    def place(self) -> Artifact | Path:
        """What `everytoken.tokens.tokenizer.open_tokenizer` opens."""
        return self.tokenizer if isinstance(self.tokenizer, Artifact | Path) else self.tokenizer.path
