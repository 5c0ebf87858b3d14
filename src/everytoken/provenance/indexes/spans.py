"""What an index of a stream answers: which tokens of which documents a window holds, and where a document is.

Documents are known by number (`everytoken.provenance.indexes.document_numbers`). The tokens of a document are its
content and then its EOS, which is token number ``token_length``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.document_numbers import DocumentNumbers


@dataclass(frozen=True)
class Span:
    """Tokens of a document in a window.

    Attributes:
        first: the first of its tokens that the window has, from 0.
        end: behind the last.
        at: position of the first in the window, so the last is at position ``until - 1``.
    """

    document: int
    first: int
    end: int
    at: int

    @property
    def until(self) -> int:
        """Behind the position of its last token in the window."""
        return self.at + self.end - self.first


@dataclass(frozen=True)
class ReflectionPlace:
    """Where the reflection of a document is in a window: positions [at, until), the marker before it included."""

    document: int
    at: int
    until: int


@dataclass(frozen=True, eq=False)
class StreamIndex(ABC):
    """The map between windows and documents, both ways; every answer takes O(log n) steps.

    Attributes:
        stream: root digest of the stream that it is of.
        window: tokens of each, padding included.
    """

    kind: ClassVar[str]

    stream: str
    windows: int
    window: int
    numbers: DocumentNumbers

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits over which documents are numbered, one after the other."""
        return self.numbers.splits

    @property
    def documents(self) -> int:
        """Documents of all splits, also those that are in no window."""
        return len(self.numbers)

    def spans(self, window: int) -> list[Span]:
        """Return what a window holds, by position; padding has no span.

        Raises:
            ProvenanceError: there is no such window.
        """
        if not 0 <= window < self.windows:
            raise ProvenanceError(f"the stream has {self.windows:,} windows, asked for window {window:,}")
        return list(self._spans(window))

    def reflection(self, window: int) -> ReflectionPlace | None:
        """Return the reflection between the spans of a window's document; None if the window has no reflection."""
        return None

    def windows_of(self, document: int) -> list[tuple[int, Span]]:
        """Return the windows with tokens of a document, in the order of its tokens; none when all lie in a remainder.

        Raises:
            ProvenanceError: there is no such document.
        """
        self.numbers.part_of(document)  # the error
        return list(self._windows_of(document))

    @abstractmethod
    def tokens_of(self, document: int) -> int | None:
        """Return the tokens of a document in all windows and remainders, EOS included; None where it is not kept."""

    def _require(self, holds: bool, what: str) -> None:
        require_consistent_index(holds, f"the index of the stream {self.stream[:16]}", what)

    @abstractmethod
    def _spans(self, window: int) -> Iterator[Span]: ...

    @abstractmethod
    def _windows_of(self, document: int) -> Iterator[tuple[int, Span]]: ...


def require_consistent_index(holds: bool, index: str, what: str) -> None:
    """Check what two arrays of an index both say: an entry that was changed is never an answer.

    Raises:
        ProvenanceError: they contradict each other.
    """
    if not holds:
        raise ProvenanceError(
            f"{index} contradicts itself: {what}. It is damaged: `everytoken verify --full` names the file. Run the "
            "pipeline that makes the index again"
        )
