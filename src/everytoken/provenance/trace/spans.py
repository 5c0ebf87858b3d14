"""What a part of a window is from: a record for each kind of stream, by what is known of its documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from everytoken.provenance.lookup import DocumentRecord, LocatedTokens, ReflectionText


@dataclass(frozen=True, eq=False)
class _Span(ABC):
    """Tokens of one document in a window.

    Attributes:
        at, end: positions [at, end) in the window.
        first: number of the first in the document; its EOS is the last token of a document.
        counted: how many of the tokens count in the loss, as targets; None where the index of a stream that is gone
            does not tell.
        taken_down: whether EOS stands where the document's tokens were.
    """

    taken_down: ClassVar[bool] = False

    at: int
    end: int
    first: int
    document: int
    counted: int | None

    @property
    def last(self) -> int:
        """Behind the last of the document's tokens that the window has."""
        return self.first + self.end - self.at

    @property
    def length(self) -> int | None:
        """Tokens of the document, EOS included, in all windows, where they are known."""
        return None

    @property
    def characters(self) -> tuple[int, int] | None:
        """Characters [start, end) of the document's text that the tokens are made from, where there is a text."""
        return None

    @property
    def document_characters(self) -> int | None:
        """Characters of the document's text, where there is one."""
        return None

    @property
    def uncut_tokens(self) -> int | None:
        """Tokens of the document before it was cut to the cap, where that is known."""
        return None

    @property
    def has_eos(self) -> bool:
        """Whether the document's end is known to be in the window."""
        return False

    @property
    def is_cut(self) -> bool:
        """Whether the text goes on behind the document's last token: it was longer than the cap."""
        return False

    @abstractmethod
    def document_json(self) -> dict[str, object]:
        """Return what is known of the document, as plain JSON."""

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON; what is not known is null."""
        return {
            "positions": [self.at, self.end],
            "tokens": [self.first, self.last],
            "document_tokens": self.length,
            "characters": None if self.characters is None else list(self.characters),
            "document_characters": self.document_characters,
            "uncut_tokens": self.uncut_tokens,
            "cut_to_cap": self.is_cut,
            "has_eos": self.has_eos,
            "counted_in_loss": self.counted,
            "taken_down": self.taken_down,
            "document": self.document_json(),
        }


@dataclass(frozen=True, eq=False)
class _RecordedSpan(_Span):
    """Tokens of a document whose record is known."""

    record: DocumentRecord

    def document_json(self) -> dict[str, object]:
        """Return the record of the document."""
        return self.record.to_json()


@dataclass(frozen=True, eq=False)
class TextSpan(_RecordedSpan):
    """Tokens of a document whose text was read, encoded and compared.

    Attributes:
        located: all its tokens with their characters.
        text: of the document; None where it was not asked for.
    """

    located: LocatedTokens
    text: str | None

    @property
    def length(self) -> int:
        """Tokens of the document, EOS included, in all windows."""
        return len(self.located.ids)

    @property
    def characters(self) -> tuple[int, int] | None:
        """Characters [start, end) of the document's text that the tokens are made from."""
        return self.located.range(self.first, self.last)

    @property
    def document_characters(self) -> int:
        """Characters of the document's text."""
        return self.located.characters

    @property
    def uncut_tokens(self) -> int:
        """Tokens of the document before it was cut to the cap."""
        return self.located.whole_length

    @property
    def has_eos(self) -> bool:
        """Whether the document's end is in the window."""
        return self.last == self.length

    @property
    def is_cut(self) -> bool:
        """Whether the text goes on behind the document's last token: it was longer than the cap."""
        return self.located.whole_length > self.length and not self.located.ends_at_turn


@dataclass(frozen=True, eq=False)
class TakenDownSpan(_RecordedSpan):
    """The place of a document that was taken down: EOS in every position."""

    taken_down: ClassVar[bool] = True


@dataclass(frozen=True, eq=False)
class NumberedSpan(_Span):
    """Tokens of a document that is known by its number alone, in a stream that another program wrote.

    Attributes:
        file: input file and the number in it, where that is known.
        tokens: of the document, in all windows.
    """

    file: tuple[str, int] | None
    tokens: int

    @property
    def length(self) -> int:
        """Tokens of the document, EOS included, in all windows."""
        return self.tokens

    def document_json(self) -> dict[str, object]:
        """Return the number of the document, and its file."""
        return {"number": self.document, "file": None if self.file is None else list(self.file)}


@dataclass(frozen=True, eq=False)
class IndexSpan(_RecordedSpan):
    """Where the tokens of a document were in a stream that is gone; no id was compared."""


@dataclass(frozen=True, eq=False)
class ReflectionSpan(_RecordedSpan):
    """A reflection that a model wrote about a document, in the middle or at the end of its tokens.

    Attributes:
        record: of the document; its ``reflection`` says who wrote it.
        reflection: with its text; None in a stream that is gone.
    """

    reflection: ReflectionText | None

    @property
    def length(self) -> int:
        """Tokens of the reflection, the marker included."""
        return self.end - self.at

    @property
    def uncut_tokens(self) -> int | None:
        """Tokens of the reflection before it was cut to the budget."""
        return None if self.reflection is None else self.reflection.uncut_tokens

    @property
    def is_cut(self) -> bool:
        """Whether the text goes on behind the budget."""
        return self.reflection is not None and self.reflection.uncut_tokens > self.length


TracedSpan = TextSpan | TakenDownSpan | NumberedSpan | IndexSpan | ReflectionSpan
