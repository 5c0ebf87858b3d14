r"""From turns to one text: what a chat must be like, the marks of its roles, and where the assistant speaks.

A turn is rendered as ``prefix + content + suffix + after_turn`` with the marks of its role, and a chat as its turns
one after the other, with nothing else. The *span* of an assistant's turn is its content and its suffix, in code
points: what a model is to learn to say, and that it ends there. Prefixes and ``after_turn`` are never in a span, as
whoever runs the chat writes them. With ChatML's marks the text is, byte for byte, what the chat templates of models
that use them make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.chats import SHAPES, Role, Shape, Turn

# Why a chat that can be read is left out, as its source's parameters want it. Filters: no row is bad for these.
CHAT_REASONS = {
    "chat_without_turns": "nobody says anything, or nothing is left",
    "chat_empty_turn": "rules.empty",
    "chat_neighbours": "rules.neighbours",
    "chat_opening": "rules.opening",
    "chat_unanswered": "rules.unanswered",
    "chat_says_a_mark": "template.reserved",
}


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleMarks(_Model):
    """What stands before and after a turn of one role; only the assistant's ``suffix`` is part of what is learned."""

    prefix: str
    suffix: str


class ChatTemplate(_Model):
    """How a chat becomes a text.

    Attributes:
        system, user, assistant, tool: marks of each role.
        after_turn: after every turn, the last one too, and outside of spans.
        reserved: strings that nobody in a chat may say. A turn with one of them is refused: a tokenizer that knows
            ``<|im_end|>`` as one token would read a user's text as the end of a turn and what follows as the
            assistant's. So this is the list of the marks that are special tokens; an empty list takes everything
            literally, which is right for marks that are ordinary words (``User: ``), where a ban would lose good text
            and protect nothing.
    """

    system: RoleMarks
    user: RoleMarks
    assistant: RoleMarks
    tool: RoleMarks
    after_turn: str
    reserved: tuple[str, ...]

    @model_validator(mode="after")
    def _reserve_something(self) -> ChatTemplate:
        if "" in self.reserved:
            raise ValueError("reserved holds an empty string, which every text contains: remove it")
        return self

    def marks(self, role: Role) -> RoleMarks:
        """Return the marks of a role."""
        marks: RoleMarks = getattr(self, role)
        return marks


class ChatRules(_Model):
    """What is done with chats that are not a clean exchange, in this order.

    A chat that is refused is set aside with its reason (`CHAT_REASONS`), as a document that a filter leaves out; it is
    not a bad row.

    Attributes:
        empty: turns that say nothing at all (white space is something): keep them, drop them, or refuse the chat.
        neighbours: turns of one role that follow each other: keep them, merge their contents with a blank line
            between, or refuse the chat. Answers of several tools to one turn stay as they are.
        opening: ``user``: at most one system turn, at the start, and then the user; ``any``: as it comes.
        unanswered: turns after the assistant's last one: keep them, cut them off, or refuse the chat. A chat where
            the assistant says nothing is refused unless they are kept.
    """

    empty: Literal["keep", "drop", "refuse"]
    neighbours: Literal["keep", "merge", "refuse"]
    opening: Literal["any", "user"]
    unanswered: Literal["keep", "cut", "refuse"]


class ConversationRenderer(_Model):
    """The renderer for chats.

    Attributes:
        kind: ``conversation``: a record is one document. ``conversation_paths``: a tree of messages is as many
            documents as it has paths from the root to a leaf, which share their beginnings.
        shape: one of `everytoken.corpus.rendering.chats.SHAPES`.
        column_names: names of the shape's fields that the file calls otherwise, as ``{prompt: problem}``. Each shape
            has one field more, ``system``, which is read only when it is named here: when there is one it is the
            first turn.
        id_columns: as for a document, and none where nothing is said. A tree has none: its id is the tree's id, a slash
            and the id of the path's last message.
        stratum_column: as for a document; of a tree, a field of its first message.
        rules: what a chat must be like.
        template: how it becomes a text.
    """

    kind: Literal["conversation", "conversation_paths"]
    shape: Shape
    column_names: dict[str, str] = {}
    id_columns: tuple[str | tuple[str, ...], ...] = ()
    stratum_column: str | None = None
    rules: ChatRules
    template: ChatTemplate

    @model_validator(mode="after")
    def _fits_the_shape(self) -> ConversationRenderer:
        tree = self.shape == "oasst_tree"
        if self.kind == "conversation_paths" and not tree:
            raise ValueError(f"kind conversation_paths is for trees of messages, and shape is {self.shape}")
        if tree and (self.column_names or self.id_columns):
            raise ValueError("column_names and id_columns must be empty for shape oasst_tree, whose names are fixed")
        known = {*SHAPES[self.shape].fields, "system"}
        if unknown := sorted(set(self.column_names) - known):
            raise ValueError(f"column_names has {unknown[0]!r}; shape {self.shape} has {', '.join(sorted(known))}")
        return self

    @property
    def columns(self) -> list[str]:
        """Every column that the renderer looks at, once."""
        names = {field: field for field in SHAPES[self.shape].fields} | self.column_names
        ids = [name for entry in self.id_columns for name in ([entry] if isinstance(entry, str) else entry)]
        stratum = [self.stratum_column] if self.stratum_column and self.shape != "oasst_tree" else []
        return list(dict.fromkeys([*names.values(), *ids, *stratum]))

    def fields_of(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return the record under the names of the shape's fields."""
        if not self.column_names:
            return record
        taken = set(self.column_names.values())
        own = {name: value for name, value in record.items() if name not in taken and name not in self.column_names}
        return own | {field: record[column] for field, column in self.column_names.items() if column in record}


class RenderedChat(NamedTuple):
    """A chat as text, with half-open ranges of code points, one for each turn of the assistant, in order."""

    text: str
    assistant_spans: tuple[tuple[int, int], ...]


def with_system(turns: list[Turn], system: Any) -> list[Turn]:
    """Put the value of a system column before the turns; null and empty are none."""
    if system is None or system == "":
        return turns
    if not isinstance(system, str):
        raise BadRow("cannot_render", f"the system column is {type(system).__name__}, expected a string or null")
    return [Turn("system", system), *turns]


def apply_rules(turns: Sequence[Turn], rules: ChatRules) -> list[Turn]:
    """Return the turns as the rules want them.

    Raises:
        BadRow: the rules refuse the chat, or nothing is left of it; the reason is one of `CHAT_REASONS`.
    """
    kept = _without_empty(turns, rules)
    kept = _without_neighbours(kept, rules)
    if not kept:
        raise BadRow("chat_without_turns", f"of {len(turns)} turns none is left" if turns else "it has no turns")
    if rules.opening == "user":
        _require_opening(kept)
    if rules.unanswered != "keep":
        answered = max((number for number, turn in enumerate(kept) if turn.role == "assistant"), default=-1) + 1
        if not answered:
            raise BadRow("chat_unanswered", f"the assistant says nothing in {len(kept)} turns")
        if answered < len(kept) and rules.unanswered == "refuse":
            raise BadRow("chat_unanswered", f"the last of {len(kept)} turns is of role {kept[-1].role}")
        kept = kept[:answered]
    return kept


def render_turns(turns: Sequence[Turn], template: ChatTemplate) -> RenderedChat:
    """Render turns; see the module's docstring.

    Raises:
        BadRow: a turn says something that the template reserves (``chat_says_a_mark``, a filter as well).
    """
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    position = 0
    for number, turn in enumerate(turns):
        marks = template.marks(turn.role)
        after = marks.suffix + template.after_turn
        for reserved in template.reserved:  # also where what is said and a mark together spell one
            own = marks.prefix.count(reserved) + after.count(reserved)
            if (marks.prefix + turn.content + after).count(reserved) != own:
                raise BadRow("chat_says_a_mark", f"turn {number} ({turn.role}) says {reserved!r}, which is reserved")
        start = position + len(marks.prefix)
        end = start + len(turn.content) + len(marks.suffix)
        if turn.role == "assistant":
            spans.append((start, end))
        pieces += [marks.prefix, turn.content, marks.suffix, template.after_turn]
        position = end + len(template.after_turn)
    return RenderedChat("".join(pieces), tuple(spans))


def _without_empty(turns: Sequence[Turn], rules: ChatRules) -> list[Turn]:
    if rules.empty == "refuse":
        for number, turn in enumerate(turns):
            if not turn.content:
                raise BadRow("chat_empty_turn", f"turn {number} ({turn.role}) says nothing")
    return [turn for turn in turns if turn.content or rules.empty != "drop"]


def _without_neighbours(turns: list[Turn], rules: ChatRules) -> list[Turn]:
    if rules.neighbours == "keep":
        return turns
    kept: list[Turn] = []
    for number, turn in enumerate(turns):
        if not kept or kept[-1].role != turn.role or turn.role == "tool":
            kept.append(turn)
        elif rules.neighbours == "merge":
            kept[-1] = Turn(turn.role, f"{kept[-1].content}\n\n{turn.content}")
        else:
            raise BadRow("chat_neighbours", f"turns {number - 1} and {number} are both of role {turn.role}")
    return kept


def _require_opening(turns: list[Turn]) -> None:
    first = 1 if turns[0].role == "system" else 0
    if len(turns) <= first or turns[first].role != "user":
        found = turns[first].role if len(turns) > first else "nobody"
        raise BadRow("chat_opening", f"the first to speak is {found}, expected the user")
    for number, turn in enumerate(turns[first:], first):
        if turn.role == "system":
            raise BadRow("chat_opening", f"turn {number} is of role system, which stands at the start only")
