"""What of a document the assistant says, and how chats become windows: parameters, without the code that computes.

``spans``: the document brings its ``assistant_spans``, as every chat does that Ingestion rendered from turns (renderers
``conversation``, ``conversation_paths`` and ``conversation_messages``). ``lines`` and ``after`` read them from the text
of other documents.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from everytoken.shards import UNRECORDED
from everytoken.tagged_unions import keys_of_the_chosen_kind


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpansOfTurns(_Parameters):
    """The assistant says the ``assistant_spans`` of the document."""

    kind: Literal["spans"]


class SpansOfLines(_Parameters):
    r"""Speakers without roles, a line each: ``A: Hello\nB: Hi``.

    A line begins what a speaker says with his name, a colon and a space; a line that begins otherwise goes on with what
    was said before. Lines of one speaker that follow each other are one turn, and the marks of its later lines are a
    part of what he says. A turn of the assistant begins after its first colon (so that the space belongs to the first
    word, as it does in running text) and ends before the newline of the next speaker. A turn of nothing but white space
    is no turn of the assistant.

    ``speakers``: all names. ``assistant``: those who are the assistant.
    """

    kind: Literal["lines"]
    speakers: tuple[Annotated[str, Field(min_length=1)], ...]
    assistant: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _assistant_speaks(self) -> Self:
        if unknown := sorted(set(self.assistant) - set(self.speakers)):
            raise ValueError(f"assistant names {unknown}, the speakers are {list(self.speakers)}; add them there")
        return self


class SpansAfter(_Parameters):
    """One question, one answer: the assistant says all that follows the first ``mark`` of the text.

    The answer of a text that lacks the mark, or ends with it but for white space, is empty: the document is set aside.
    """

    kind: Literal["after"]
    mark: str = Field(min_length=1)


ChatRule = Annotated[SpansOfTurns | SpansOfLines | SpansAfter, Field(discriminator="kind")]
_RULES: dict[str, type[BaseModel]] = {"spans": SpansOfTurns, "lines": SpansOfLines, "after": SpansAfter}


class ChatParameters(_Parameters):
    """Which documents are chats, and how they become windows.

    ``seed``: of the order of the windows. ``sources``: by name, how the assistant's part is found; null leaves a source
    out. ``include_bad``: whether documents with ``is_bad`` take part. ``turn_ends``: what follows each turn of the
    assistant and is learned with it: ``eos``, or ``template`` (nothing: the suffix of the template, which is inside
    the spans, ends it). ``marks``: special tokens of the template, as ``<|im_start|>``: where a chat spells one it
    becomes that token; every other special token that a chat spells is plain text. Give only such marks as the template
    of Ingestion reserves, or a user's text can end his turn. ``context_tokens``: what a window of a chat that is longer
    than a window may repeat of the one before, see `everytoken.tokens.chat.windows`. ``template``: the source in whose
    form one talks with the model; null: all sources have the same.
    """

    seed: int = Field(ge=0)
    sources: dict[str, ChatRule | None]
    include_bad: bool = False
    turn_ends: Literal["eos", "template"] = "eos"
    marks: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    context_tokens: int = Field(gt=0)
    template: Annotated[str | None, UNRECORDED] = None

    @field_validator("sources", mode="before")
    @classmethod
    def _keys_of_the_chosen_rules(cls, sources: Any) -> Any:
        if not isinstance(sources, dict):
            return sources
        return {name: keys_of_the_chosen_kind(rule, _RULES) for name, rule in sources.items()}

    @property
    def rules(self) -> dict[str, SpansOfTurns | SpansOfLines | SpansAfter]:
        """The rules of the sources that are not left out."""
        return {name: rule for name, rule in self.sources.items() if rule is not None}
