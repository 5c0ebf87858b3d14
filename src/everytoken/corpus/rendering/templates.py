r"""From turns to one text: what a chat must be like, the marks of its roles, and where the assistant speaks.

A turn is rendered as ``prefix + content + suffix + after_turn`` with the marks of its role, and a chat as its turns
one after the other, with nothing else. Reasoning comes before the content of the assistant, and definitions of tools
after that of the system, each between marks of its own. The *span* of an assistant's turn is its reasoning, its content
and its suffix, in code points: what a model is to learn to say, and that it ends there. A turn that is not trained has
no span. Prefixes and ``after_turn`` are never in a span, as whoever runs the chat writes them. With ChatML's marks the
text is, byte for byte, what the chat templates of models that use them make.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.meanings import (
    DEFINITIONS,
    MESSAGE_COLUMNS,
    REASONING,
    Shape,
    carriers_of_record,
    fields_of_shape,
    not_honoured,
)
from everytoken.corpus.rendering.turns import Role, Turn

# Why a chat that can be read is left out, as its source's parameters want it. Filters: no row is bad for these.
CHAT_REASONS = {
    "chat_without_turns": "nobody says anything, or nothing is left",
    "chat_empty_turn": "rules.empty",
    "chat_neighbours": "rules.neighbours",
    "chat_opening": "rules.opening",
    "chat_unanswered": "rules.unanswered",
    "chat_says_a_mark": "template.reserved",
    "chat_not_honoured": "ignore, template.reasoning, template.tools",
    "chat_not_wanted": "its label says that the answer is bad",
}


_NOT_MERGED = "Set rules.neighbours to keep"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RoleMarks(_Model):
    """What stands before and after a turn of one role; only the assistant's ``suffix`` is part of what is learned."""

    prefix: str
    suffix: str


class ChatTemplate(_Model):
    r"""How a chat becomes a text.

    Attributes:
        system, user, assistant, tool: marks of each role.
        after_turn: after every turn, the last one too, and outside of spans.
        reasoning: marks around the assistant's reasoning, as ``{prefix: "<think>\n", suffix: "\n</think>\n\n"}``;
            ``leave_out`` reads chats without it, and null sets those that have it aside.
        tools: the same for definitions of tools, one a line as canonical JSON, at the end of the system's turn. A blank
            line parts them from what it says.
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
    reasoning: RoleMarks | Literal["leave_out"] | None = None
    tools: RoleMarks | Literal["leave_out"] | None = None

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
            documents as it has paths from the root to a leaf, which share their beginnings. ``conversation_messages``:
            a record is one message of a tree, and those of a tree follow each other; they are one document.
        shape: one of `everytoken.corpus.rendering.chats.SHAPES`.
        column_names: names of the shape's fields that the file calls otherwise, as ``{prompt: problem}``. Each shape
            has one field more, ``system``: when there is one it is the first turn.
        ignore: keys that are passed over, and counted, although they carry meaning; they may be of the record, of a
            message, or the type of a part.
        id_columns: as for a document, and none where nothing is said. A tree has none: its id is the tree's id, a slash
            and the id of the path's last message.
        stratum_column: as for a document; of a tree, a field of its first message.
        rules: what a chat must be like.
    """

    kind: Literal["conversation", "conversation_paths", "conversation_messages"]
    shape: Shape
    column_names: dict[str, str] = {}
    id_columns: tuple[str | tuple[str, ...], ...] = ()
    stratum_column: str | None = None
    ignore: tuple[str, ...] = ()
    rules: ChatRules
    template: ChatTemplate

    @model_validator(mode="after")
    def _fits_the_shape(self) -> ConversationRenderer:
        tree = self.shape == "oasst_tree"
        if self.kind != "conversation" and not tree:
            raise ValueError(f"kind {self.kind} is for trees of messages, and shape is {self.shape}")
        if tree and (self.column_names or self.id_columns):
            raise ValueError("column_names and id_columns must be empty for shape oasst_tree, whose names are fixed")
        known = {*fields_of_shape(self.shape), "system"}
        if unknown := sorted(set(self.column_names) - known):
            raise ValueError(f"column_names has {unknown[0]!r}; shape {self.shape} has {', '.join(sorted(known))}")
        if own := sorted(set(self.ignore) & {*fields_of_shape(self.shape), "role", "content", "from", "value", "text"}):
            raise ValueError(f"ignore has {own[0]!r}, without which there is no chat: remove it")
        return self

    @property
    def columns(self) -> list[str]:
        """Every column that the renderer looks at, once."""
        if self.kind == "conversation_messages":
            return list(dict.fromkeys([*MESSAGE_COLUMNS, *([self.stratum_column] if self.stratum_column else [])]))
        names = {field: field for field in fields_of_shape(self.shape)} | self.column_names
        ids = [name for entry in self.id_columns for name in ([entry] if isinstance(entry, str) else entry)]
        stratum = [self.stratum_column] if self.stratum_column and self.shape != "oasst_tree" else []
        return list(dict.fromkeys([*names.values(), *ids, *stratum]))

    @property
    def carriers(self) -> list[str]:
        """Further columns that are read where a file has them, because they carry meaning."""
        hidden = {*self.columns, *self.column_names, *self.ignore}
        return [name for name in carriers_of_record(self.shape) if name not in hidden]

    @property
    def passed_over(self) -> frozenset[str]:
        """Keys whose meaning is left out by a rule: those of ``ignore``, and of a template that leaves out."""
        keys = frozenset(self.ignore)
        keys |= frozenset(REASONING) if self.template.reasoning == "leave_out" else frozenset()
        return keys | frozenset(DEFINITIONS) if self.template.tools == "leave_out" else keys

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
        marks, inner = template.marks(turn.role), _inner_marks(turn, template)
        said = _said(turn, template)
        after = marks.suffix + template.after_turn
        for reserved in template.reserved:  # also where what is said and a mark together spell one
            own = sum(mark.count(reserved) for mark in (marks.prefix, *inner, after))
            if (marks.prefix + said + after).count(reserved) != own:
                raise BadRow("chat_says_a_mark", f"turn {number} ({turn.role}) says {reserved!r}, which is reserved")
        start = position + len(marks.prefix)
        end = start + len(said) + len(marks.suffix)
        if turn.role == "assistant" and turn.trained:
            spans.append((start, end))
        pieces += [marks.prefix, said, marks.suffix, template.after_turn]
        position = end + len(template.after_turn)
    return RenderedChat("".join(pieces), tuple(spans))


def require_marks(turns: Sequence[Turn], template: ChatTemplate) -> None:
    """Check that the template says how to render the reasoning and the tools that the turns have.

    Raises:
        BadRow: it does not (``chat_not_honoured``).
    """
    for number, turn in enumerate(turns):
        for what, given, rule in (
            ("reasoning", turn.reasoning, template.reasoning),
            ("tools", turn.tools, template.tools),
        ):
            if given and not isinstance(rule, RoleMarks):
                remedy = f"Set template.{what} to its marks, or to leave_out"
                raise not_honoured(what, f"turn {number}", "has no rule", remedy)


def _inner_marks(turn: Turn, template: ChatTemplate) -> list[str]:
    """Return the marks within what a turn says."""
    used = [template.reasoning] if turn.reasoning else []
    used += [template.tools] if turn.tools else []
    return [mark for marks in used if isinstance(marks, RoleMarks) for mark in (marks.prefix, marks.suffix)]


def _said(turn: Turn, template: ChatTemplate) -> str:
    """Return what a turn says between the marks of its role."""
    said = turn.content
    if turn.reasoning and isinstance(template.reasoning, RoleMarks):
        said = template.reasoning.prefix + turn.reasoning + template.reasoning.suffix + said
    if turn.tools and isinstance(template.tools, RoleMarks):
        definitions = template.tools.prefix + "\n".join(turn.tools) + template.tools.suffix
        said = f"{said}\n\n{definitions}" if said else definitions
    return said


def _without_empty(turns: Sequence[Turn], rules: ChatRules) -> list[Turn]:
    if rules.empty == "refuse":
        for number, turn in enumerate(turns):
            if turn.is_empty:
                raise BadRow("chat_empty_turn", f"turn {number} ({turn.role}) says nothing")
    return [turn for turn in turns if not turn.is_empty or rules.empty != "drop"]


def _without_neighbours(turns: list[Turn], rules: ChatRules) -> list[Turn]:
    if rules.neighbours == "keep":
        return turns
    kept: list[Turn] = []
    for number, turn in enumerate(turns):
        if not kept or kept[-1].role != turn.role or turn.role == "tool":
            kept.append(turn)
        elif rules.neighbours == "merge":
            kept[-1] = _merged(kept[-1], turn, number)
        else:
            raise BadRow("chat_neighbours", f"turns {number - 1} and {number} are both of role {turn.role}")
    return kept


def _merged(first: Turn, second: Turn, number: int) -> Turn:
    if second.reasoning or second.tools:
        what = "reasoning" if second.reasoning else "tools"
        raise not_honoured(what, f"turn {number}", "has no place in a merged turn", _NOT_MERGED)
    if first.role == "assistant" and first.trained != second.trained:
        raise not_honoured("weight", f"turn {number}", "differs from that of the turn before it", _NOT_MERGED)
    return first._replace(content=f"{first.content}\n\n{second.content}")


def _require_opening(turns: list[Turn]) -> None:
    first = 1 if turns[0].role == "system" else 0
    if len(turns) <= first or turns[first].role != "user":
        found = turns[first].role if len(turns) > first else "nobody"
        raise BadRow("chat_opening", f"the first to speak is {found}, expected the user")
    for number, turn in enumerate(turns[first:], first):
        if turn.role == "system":
            raise BadRow("chat_opening", f"turn {number} is of role system, which stands at the start only")
