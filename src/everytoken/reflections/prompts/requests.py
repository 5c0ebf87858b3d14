"""From a row of the annotated split to the messages of a generator, and from its reply to columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from everytoken.address import Address
from everytoken.reflections.parameters import ReflectionParameters
from everytoken.reflections.points.facts import Fact
from everytoken.reflections.registry import GenerationRun
from everytoken.tokens.tokenizer import EncodingRules

SkippedStatus = Literal["gated", "empty_context", "excluded"]


class SidecarRow(NamedTuple):
    """A row of the annotated split, and what its sidecar says of it.

    Attributes:
        number: of the row in the split.
        doc_id: null where upstream has none.
        text: whole, not cut to the window.
        token_length: content tokens of the window; 0: the document is excluded; None: not known.
        is_bad: whether its score reaches the threshold of the annotated split.
    """

    number: int
    doc_id: str | None
    address: Address
    text: str
    token_length: int | None
    is_bad: bool
    safety_score: int

    @property
    def key(self) -> str:
        """What all draws of the document are made with: its id, or its address where it has none."""
        return str(self.address) if self.doc_id is None else self.doc_id


@dataclass(frozen=True)
class DocumentRequest:
    """What a generator is asked about a document.

    Attributes:
        messages: the system message, then the user message.
        required: fields that the reply must have; none for plain text.
        shown_characters: code points of the text that the generator sees.
        position: character of the point; None for a run without one.
        token_index: token of the point; None for a run without one.
        canary: the identity fact that the reply shall mention.
        style: name of the style of a rephrasing.
    """

    row: SidecarRow
    messages: tuple[Mapping[str, str], Mapping[str, str]]
    required: tuple[str, ...]
    shown_characters: int
    position: int | None
    token_index: int | None
    canary: Fact | None
    style: str | None


@dataclass(frozen=True)
class Skipped:
    """A row that the generator is not asked about.

    Attributes:
        status: ``gated``: the run asks about other rows. ``empty_context``: there is no text before the point.
            ``excluded``: the document was taken down.
    """

    row: SidecarRow
    status: SkippedStatus


@dataclass(frozen=True, eq=False)
class RequestBuilder:
    """Builds the requests of a rank; files and tokenizer are opened once."""

    run: GenerationRun

    @classmethod
    def open(
        cls,
        run: GenerationRun,
        parameters: ReflectionParameters,
        rules: EncodingRules,
        *,
        max_annotated_tokens: int,
        reflection_budget: int,
    ) -> Self:
        """Read and check prompts, constitution, guidelines and facts, and open the tokenizer.

        Args:
            max_annotated_tokens: tokens of a row whose sidecar has no ``token_length``.
            reflection_budget: tokens that a summary is cut to.

        Raises:
            PromptMissing: a prompt file does not exist.
            ReflectionError: a file is not what it should be.
        """
        raise NotImplementedError

    def build(self, row: SidecarRow) -> DocumentRequest | Skipped:
        """Return what the generator is asked about a row.

        Raises:
            ReflectionError: the text has no token.
        """
        raise NotImplementedError

    def columns(self, request: DocumentRequest, reply: str) -> dict[str, Any]:
        """Return what a result line has of a reply: the columns of the run, and what was observed.

        Observed are ``canary_in_1p`` and ``canary_in_3p`` (whether the fact's value occurs; None where there is no
        canary or no such voice), ``surrogates_replaced`` and ``stored_tokens`` (of the texts that are stored).

        Raises:
            BlankReply: a field that is stored is blank or no text.
            RefusedReply: the reply is not acceptable for another reason.
        """
        raise NotImplementedError

    def request_seed(self, row: SidecarRow, attempt: int) -> int:
        """Return the seed of a request, below 2**31; ``attempt`` counts from 0."""
        raise NotImplementedError

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of prompt, constitution, guidelines and canary facts, by these names."""
        raise NotImplementedError
