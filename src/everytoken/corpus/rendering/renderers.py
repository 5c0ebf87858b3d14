"""How one upstream record becomes one document: plain functions from a record to ``(id, text, stratum)``.

A *stratum* is the part of a source that the reports count by (a topic, a prompt, a subject). Texts are joined from
fields of the record as each docstring says and changed in no other way. The registry is `RENDERERS`; `Renderer` is
its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from everytoken.corpus.errors import BadRow
from everytoken.corpus.rendering.chats import read_chat
from everytoken.corpus.rendering.columns import Missing, value_at, value_or_none
from everytoken.corpus.rendering.meanings import Unread, fields_of_shape, unread_keys, why_unread, without_keys
from everytoken.corpus.rendering.templates import ConversationRenderer, apply_rules, render_turns, require_marks
from everytoken.corpus.rendering.trees import best_path, cut_tree, gather_tree
from everytoken.shards import canonical_json


class Identifier(NamedTuple):
    """An upstream id as text, with its JSON type: the number 1 and the string "1" are two ids."""

    text: str
    type: str


class RenderedDocument(NamedTuple):
    """What a renderer makes.

    ``assistant_spans``: for a chat, the half-open ranges of code points of the text that the assistant says.
    """

    id: Identifier | None
    text: str
    stratum: str
    assistant_spans: tuple[tuple[int, int], ...] | None = None


class NamedRenderer(BaseModel):
    """A renderer for one public file format; see the function of that name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["wikipedia_lead", "chat", "champ", "flan_cot"]


class DocumentRenderer(BaseModel):
    """The renderer for rows that hold a text. A column may be a path into objects: ``doc.text``.

    Attributes:
        id_columns: the id is the first of these that is present and not null; a list joins its members with ``/``
            and is present when all of them are. ``[id, blob_id, [repo_name, path]]`` reads Dolma and stack_edu. An id
            may be of any JSON type and is kept, see `identify`.
        stratum_column: column of the stratum, or null for one stratum ``all``. A row where it is null is of stratum
            ``no <column>``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["document"]
    text_column: str = "text"
    id_columns: tuple[str | tuple[str, ...], ...] = ("id",)
    stratum_column: str | None = None

    @property
    def columns(self) -> list[str]:
        """Every column that the renderer looks at, once."""
        ids = [name for entry in self.id_columns for name in ([entry] if isinstance(entry, str) else entry)]
        return list(dict.fromkeys([self.text_column, *ids, *([self.stratum_column] if self.stratum_column else [])]))


class JoinedRenderer(BaseModel):
    """The renderer for rows whose text is in several columns: their texts with ``separator`` between.

    ``id_columns`` and ``stratum_column`` are as in `DocumentRenderer`, but without ``id_columns`` there is no id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["joined"]
    text_columns: tuple[str, ...] = Field(min_length=1)
    separator: str
    id_columns: tuple[str | tuple[str, ...], ...] = ()
    stratum_column: str | None = None

    @property
    def columns(self) -> list[str]:
        """Every column that the renderer looks at, once."""
        ids = [name for entry in self.id_columns for name in ([entry] if isinstance(entry, str) else entry)]
        return list(dict.fromkeys([*self.text_columns, *ids, *([self.stratum_column] if self.stratum_column else [])]))


Renderer = Annotated[
    NamedRenderer | DocumentRenderer | JoinedRenderer | ConversationRenderer, Field(discriminator="kind")
]

_SPEAKERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def render_wikipedia_lead(key: str | None, record: Any, renderer: NamedRenderer) -> RenderedDocument:
    """Render ``{title, extract, topic}``: title, blank line, extract; the id is the key, the stratum the topic."""
    text = f"{_string(record, 'title')}\n\n{_string(record, 'extract')}"
    return RenderedDocument(_key(key), text, _string(record, "topic"))


def render_chat(key: str | None, record: Any, renderer: NamedRenderer) -> RenderedDocument:
    r"""Render a chat of chitchat-dataset: every message is one ``A: text`` after the other, joined by ``\n``.

    The speakers are A, B, ... in the order in which they first speak (3,150 of the 7,168 chats have one speaker, whom
    nobody answered). Nothing is dropped or merged: an empty message (33 in the data) is ``A: ``. Sender ids, times and
    ratings are not rendered; the prompt is the stratum (``no prompt`` when the chat has none) and not in the text,
    because the speakers saw it beside the chat and did not say it.
    """
    speakers: dict[str, str] = {}
    lines = []
    for turn in _field(record, "messages", list):
        if not isinstance(turn, list):
            raise BadRow("cannot_render", f"a turn of 'messages' is {type(turn).__name__}, expected a list of messages")
        for message in turn:
            sender = _string(message, "sender")
            if sender not in speakers and len(speakers) == len(_SPEAKERS):
                raise BadRow("cannot_render", f"the chat has over {len(_SPEAKERS)} senders")
            speaker = speakers.setdefault(sender, _SPEAKERS[len(speakers) % len(_SPEAKERS)])
            lines.append(f"{speaker}: {_string(message, 'text')}")
    prompt = "no prompt" if record.get("prompt") is None else _string(record, "prompt")
    return RenderedDocument(_key(key), "\n".join(lines), prompt)


def render_champ(key: str | None, record: Any, renderer: NamedRenderer) -> RenderedDocument:
    """Render a problem of champ-dataset: problem, blank line, solution steps one a line, blank line, ``Answer: ...``.

    The ``_text`` fields are the ``_raw_text`` fields without the ``@@`` around formulas, in every one of the 270
    problems and 1,626 steps, so they are what is read. The stratum is the category.
    """
    solution = _field(record, "solution", dict)
    steps = [_string(step, "_text") for step in _field(solution, "steps", list)]
    text = "\n\n".join([_string(record, "_text"), "\n".join(steps), f"Answer: {_string(record, '_answer')}"])
    return RenderedDocument(_key(key), text, _string(record, "category"))


def cut_worked_answers(key: str | None, record: Any) -> Iterator[dict[str, Any]]:
    r"""Cut a subject's prompt of lm-eval's ``flan_cot_fewshot`` into its questions with their worked answers.

    Every question begins with ``Q:`` at the start of a line after a blank line; the string ``Q:`` occurs nowhere else
    in the file, and 57 subjects give 282 questions (54 have five, three have four). What stands before the first
    question (one sentence that names the subject) and the newlines after each answer are not part of a question.

    Raises:
        BadRow: no question, or one without an answer.
    """
    if not isinstance(record, str):
        raise BadRow("cannot_render", f"the prompt of subject {key!r} is {type(record).__name__}, expected a string")
    questions = record.split("\n\nQ:")[1:]
    if not questions:
        raise BadRow(
            "cannot_render", f"the prompt of subject {key!r} has no line that begins with 'Q:' after a blank line"
        )
    for number, question in enumerate(questions):
        if "\nA:" not in question:
            raise BadRow("cannot_render", f"question {number} of subject {key!r} has no line that begins with 'A:'")
        yield {"subject": key, "number": number, "text": "Q:" + question.rstrip("\n")}


def render_flan_cot(key: str | None, record: Any, renderer: NamedRenderer) -> RenderedDocument:
    """Render one worked answer of `cut_worked_answers`; the id is ``subject/number``, the stratum the subject."""
    subject = _string(record, "subject")
    number = _field(record, "number", int)
    return RenderedDocument(Identifier(f"{subject}/{number}", "string"), _string(record, "text"), subject)


def render_document(key: str | None, record: Any, renderer: DocumentRenderer) -> RenderedDocument:
    """Render a row that holds its text; see `DocumentRenderer`."""
    text = _text(record, renderer.text_column)
    stratum = _stratum(record, renderer.stratum_column)
    return RenderedDocument(first_identifier(record, renderer.id_columns), text, stratum)


def render_joined(key: str | None, record: Any, renderer: JoinedRenderer) -> RenderedDocument:
    """Render a row whose text is in several columns; see `JoinedRenderer`."""
    text = renderer.separator.join(_text(record, column) for column in renderer.text_columns)
    stratum = _stratum(record, renderer.stratum_column)
    return RenderedDocument(first_identifier(record, renderer.id_columns), text, stratum)


def render_conversation(key: str | None, record: Any, renderer: ConversationRenderer) -> RenderedDocument:
    """Render a chat; see `ConversationRenderer`, and `everytoken.corpus.rendering.chats` for the shapes."""
    if not isinstance(record, dict):
        raise BadRow("cannot_render", f"the record is {type(record).__name__}, expected an object")
    identifier: Identifier | None
    try:
        fields = _fields(record, renderer)
        turns = read_chat(_with_meaning(fields, renderer), renderer.shape)
        if renderer.shape == "oasst_tree":
            path = _field(fields, "messages", list)
            described, identifier = path[0], _path_identifier(fields, path)
        else:
            described, identifier = record, first_identifier(record, renderer.id_columns)
        require_marks(turns, renderer.template)
        chat = render_turns(apply_rules(turns, renderer.rules), renderer.template)
    except BadRow as error:
        if not renderer.column_names:
            raise
        raise BadRow(error.reason, f"{error.detail} (column_names: {renderer.column_names})") from None
    return RenderedDocument(identifier, chat.text, _stratum(described, renderer.stratum_column), chat.assistant_spans)


def unread_of(
    record: Mapping[str, Any], columns: Sequence[str], renderer: ConversationRenderer
) -> Iterator[tuple[Unread, str]]:
    """Yield every key of a rendered chat that is not in its document: why, and its name after its level.

    Args:
        columns: of a table that were not read; each counts, whatever the row has in it.
    """
    named = {*_described(renderer), *renderer.column_names.values()}
    for kind, name in unread_keys(_fields(record, renderer), renderer.shape, renderer.passed_over):
        if name not in named:
            yield kind, name
    for name in sorted(set(renderer.column_names) & record.keys() - set(renderer.column_names.values())):
        if record[name] is not None:
            yield "ignored", name  # another column has its name
    for name in columns:
        yield "ignored" if name in renderer.passed_over or name in renderer.column_names else why_unread(name), name


def _fields(record: Mapping[str, Any], renderer: ConversationRenderer) -> dict[str, Any]:
    """Return a record under the names of the shape's fields; of a tree the path that is read, as ``messages``."""
    if renderer.shape != "oasst_tree":
        return renderer.fields_of(dict(record))
    if renderer.kind == "conversation_paths":
        return dict(record)
    tree = gather_tree(record)
    rest = {name: value for name, value in tree.items() if name != "prompt"}
    return {**rest, "messages": best_path(tree)}


def _described(renderer: ConversationRenderer) -> set[str]:
    """Return the columns of the id and the stratum, which say nothing that is rendered."""
    ids = {name for entry in renderer.id_columns for name in ([entry] if isinstance(entry, str) else entry)}
    return ids | ({renderer.stratum_column} if renderer.stratum_column else set())


def _with_meaning(fields: Mapping[str, Any], renderer: ConversationRenderer) -> Mapping[str, Any]:
    """Return a record without what a rule passes over, and without columns of the id and the stratum."""
    hidden = _described(renderer).difference(fields_of_shape(renderer.shape)) if renderer.shape != "oasst_tree" else ()
    kept = {name: value for name, value in fields.items() if name not in hidden} if hidden else fields
    return without_keys(kept, renderer.shape, renderer.passed_over)


RENDERERS: dict[str, Callable[[str | None, Any, Any], RenderedDocument]] = {
    "wikipedia_lead": render_wikipedia_lead,
    "chat": render_chat,
    "champ": render_champ,
    "flan_cot": render_flan_cot,
    "document": render_document,
    "joined": render_joined,
    "conversation": render_conversation,
    "conversation_paths": render_conversation,
    "conversation_messages": render_conversation,
}

# renderers of files where several records are one document: what names it; its records follow each other
GATHERED: dict[str, str] = {"conversation_messages": "message_tree_id"}

# renderers of files where one record holds several documents: rows are what the record is cut into
CUTS: dict[str, Callable[[str | None, Any], Iterator[dict[str, Any]]]] = {
    "flan_cot": cut_worked_answers,
    "conversation_paths": cut_tree,
}


def identify(value: Any) -> Identifier:
    """Return an id as text: a string as it is, any other JSON type as its canonical JSON.

    Of tables, a UUID in its usual form and bytes as hexadecimal digits, both in lower case.

    >>> identify("7"), identify(7), identify(True)
    (Identifier(text='7', type='string'), Identifier(text='7', type='integer'), Identifier(text='true', type='boolean'))
    """
    if isinstance(value, str):
        return Identifier(value, "string")
    if isinstance(value, UUID):
        return Identifier(str(value), "uuid")
    if isinstance(value, bytes):
        return Identifier(value.hex(), "bytes")
    kinds = {bool: "boolean", int: "integer", float: "number", list: "list", dict: "object"}
    if type(value) not in kinds:  # parquet has dates, whose text is a matter of taste
        raise BadRow("cannot_render", f"the id is {type(value).__name__}, expected a JSON value")
    try:
        return Identifier(canonical_json(value), kinds[type(value)])
    except (TypeError, ValueError):  # parquet has NaN, and lists of dates
        raise BadRow("cannot_render", f"the id is {value}, which is no JSON value") from None


def first_identifier(record: dict[str, Any], id_columns: Sequence[str | tuple[str, ...]]) -> Identifier | None:
    """Return the id of the first of ``id_columns`` that is present and not null, or None; see `DocumentRenderer`."""
    for entry in id_columns:
        if isinstance(entry, str):
            if (value := value_or_none(record, entry)) is not None:
                return identify(value)
            continue
        values = [value_or_none(record, name) for name in entry]
        if all(value is not None for value in values):
            return Identifier("/".join(identify(value).text for value in values), "joined")
    return None


def _path_identifier(tree: Mapping[str, Any], path: Sequence[Mapping[str, Any]]) -> Identifier:
    return Identifier(f"{_string(tree, 'message_tree_id')}/{_string(path[-1], 'message_id')}", "joined")


def _key(key: str | None) -> Identifier:
    if key is None:
        raise BadRow("cannot_render", "the record has no key (the file is a list), expected an object of records by id")
    return Identifier(key, "string")


def _text(record: dict[str, Any], column: str) -> str:
    try:
        text = value_at(record, column)
    except Missing:
        detail = f"the row has no column {column!r}; its columns are {sorted(record)[:20]}"
        raise BadRow("no_text", detail) from None
    if text is None:
        raise BadRow("text_null", f"{column!r} is null")
    if isinstance(text, bytes):  # a binary column of a table
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            detail = f"{column!r} is not valid UTF-8 ({error.reason} at byte {error.start})"
            raise BadRow("not_utf8", detail) from None
    if not isinstance(text, str):
        raise BadRow("text_not_string", f"{column!r} is {type(text).__name__}, expected str")
    return text


def _stratum(record: Any, column: str | None) -> str:
    if column is None:
        return "all"
    value = value_or_none(record, column)
    if value is None:
        return f"no {column}"
    if not isinstance(value, str):
        raise BadRow("cannot_render", f"{column!r} is {type(value).__name__}, expected str")
    return value


def _string(record: Any, name: str) -> str:
    value: str = _field(record, name, str)
    return value


def _field(record: Any, name: str, expected: type) -> Any:
    if not isinstance(record, dict):
        raise BadRow("cannot_render", f"found {type(record).__name__} where an object with {name!r} belongs")
    if name not in record:
        raise BadRow("cannot_render", f"there is no {name!r}; the fields are {sorted(record)[:20]}")
    if not isinstance(record[name], expected):
        raise BadRow("cannot_render", f"{name!r} is {type(record[name]).__name__}, expected {expected.__name__}")
    return record[name]
