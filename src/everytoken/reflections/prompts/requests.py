"""What a generator is asked about a row of the annotated split, and the rows that it is not asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from everytoken.address import Address
from everytoken.reflections.points import Fact

SkippedStatus = Literal["gated", "empty_context", "excluded"]


class AskedRow(Protocol):
    """A row that a generator is asked about: its number among the rows of the run, and the id of its document."""

    @property
    def number(self) -> int:
        """Number of the row."""

    @property
    def doc_id(self) -> str | None:
        """Id of the document; None where upstream has none."""


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

    row: AskedRow
    status: SkippedStatus
