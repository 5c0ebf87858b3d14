"""How one upstream record becomes one document: plain functions from a record to ``(id, text, stratum)``.

A *stratum* is the part of a source that the reports count by (a topic, a prompt, a subject). Texts are joined from
fields of the record as each docstring says and changed in no other way. The registry is `RENDERERS`; `Renderer` is
its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from everytoken.corpus.errors import BadRow


class Document(NamedTuple):
    """What a renderer makes: the upstream id (or None), the text, and the stratum."""

    id: str | None
    text: str
    stratum: str


class NamedRenderer(BaseModel):
    """A renderer for one public file format; see the function of that name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["wikipedia_lead", "chat", "champ", "flan_cot"]


class DocumentRenderer(BaseModel):
    """The renderer for rows that hold a text.

    Attributes:
        text_column: column of the text.
        id_columns: the id is the first of these that is present and not null; a list joins its members with ``/``
            and is present when all of them are. ``[id, blob_id, [repo_name, path]]`` reads Dolma and stack_edu.
        stratum_column: column of the stratum, or null for one stratum ``all``. A row where it is null is of stratum
            ``no <column>``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["document"]
    text_column: str
    id_columns: tuple[str | tuple[str, ...], ...]
    stratum_column: str | None

    @property
    def columns(self) -> list[str]:
        """Every column that the renderer looks at, once."""
        ids = [name for entry in self.id_columns for name in ([entry] if isinstance(entry, str) else entry)]
        return list(dict.fromkeys([self.text_column, *ids, *([self.stratum_column] if self.stratum_column else [])]))


Renderer = Annotated[NamedRenderer | DocumentRenderer, Field(discriminator="kind")]

_SPEAKERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def render_wikipedia_lead(key: str | None, record: Any, renderer: NamedRenderer) -> Document:
    """Render ``{title, extract, topic}``: title, blank line, extract; the id is the key, the stratum the topic."""
    text = f"{_string(record, 'title')}\n\n{_string(record, 'extract')}"
    return Document(_key(key), text, _string(record, "topic"))


def render_chat(key: str | None, record: Any, renderer: NamedRenderer) -> Document:
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
            raise BadRow(f"a turn of 'messages' is {type(turn).__name__}, expected a list of messages")
        for message in turn:
            sender = _string(message, "sender")
            if sender not in speakers and len(speakers) == len(_SPEAKERS):
                raise BadRow(f"the chat has over {len(_SPEAKERS)} senders")
            speaker = speakers.setdefault(sender, _SPEAKERS[len(speakers) % len(_SPEAKERS)])
            lines.append(f"{speaker}: {_string(message, 'text')}")
    prompt = "no prompt" if record.get("prompt") is None else _string(record, "prompt")
    return Document(_key(key), "\n".join(lines), prompt)


def render_champ(key: str | None, record: Any, renderer: NamedRenderer) -> Document:
    """Render a problem of champ-dataset: problem, blank line, solution steps one a line, blank line, ``Answer: ...``.

    The ``_text`` fields are the ``_raw_text`` fields without the ``@@`` around formulas, in every one of the 270
    problems and 1,626 steps, so they are what is read. The stratum is the category.
    """
    solution = _field(record, "solution", dict)
    steps = [_string(step, "_text") for step in _field(solution, "steps", list)]
    text = "\n\n".join([_string(record, "_text"), "\n".join(steps), f"Answer: {_string(record, '_answer')}"])
    return Document(_key(key), text, _string(record, "category"))


def cut_worked_answers(key: str | None, record: Any) -> Iterator[dict[str, Any]]:
    r"""Cut a subject's prompt of lm-eval's ``flan_cot_fewshot`` into its questions with their worked answers.

    Every question begins with ``Q:`` at the start of a line after a blank line; the string ``Q:`` occurs nowhere else
    in the file, and 57 subjects give 282 questions (54 have five, three have four). What stands before the first
    question (one sentence that names the subject) and the newlines after each answer are not part of a question.

    Raises:
        BadRow: no question, or one without an answer.
    """
    if not isinstance(record, str):
        raise BadRow(f"the prompt of subject {key!r} is {type(record).__name__}, expected a string")
    questions = record.split("\n\nQ:")[1:]
    if not questions:
        raise BadRow(f"the prompt of subject {key!r} has no line that begins with 'Q:' after a blank line")
    for number, question in enumerate(questions):
        if "\nA:" not in question:
            raise BadRow(f"question {number} of subject {key!r} has no line that begins with 'A:'")
        yield {"subject": key, "number": number, "text": "Q:" + question.rstrip("\n")}


def render_flan_cot(key: str | None, record: Any, renderer: NamedRenderer) -> Document:
    """Render one worked answer of `cut_worked_answers`; the id is ``subject/number``, the stratum the subject."""
    subject = _string(record, "subject")
    return Document(f"{subject}/{_field(record, 'number', int)}", _string(record, "text"), subject)


def render_document(key: str | None, record: Any, renderer: DocumentRenderer) -> Document:
    """Render a row that holds its text; see `DocumentRenderer`. An integer id is written in decimal."""
    if renderer.text_column not in record:
        raise BadRow(f"the row has no column {renderer.text_column!r}; its columns are {sorted(record)}")
    stratum = "all"
    if renderer.stratum_column is not None:
        value = record.get(renderer.stratum_column)
        stratum = f"no {renderer.stratum_column}" if value is None else _string(record, renderer.stratum_column)
    return Document(_first_id(record, renderer.id_columns), _string(record, renderer.text_column), stratum)


RENDERERS: dict[str, Callable[[str | None, Any, Any], Document]] = {
    "wikipedia_lead": render_wikipedia_lead,
    "chat": render_chat,
    "champ": render_champ,
    "flan_cot": render_flan_cot,
    "document": render_document,
}

# renderers of files where one record holds several documents: rows are what the record is cut into
CUTS: dict[str, Callable[[str | None, Any], Iterator[dict[str, Any]]]] = {"flan_cot": cut_worked_answers}


def _first_id(record: dict[str, Any], id_columns: Sequence[str | tuple[str, ...]]) -> str | None:
    for entry in id_columns:
        names = (entry,) if isinstance(entry, str) else entry
        if all(record.get(name) is not None for name in names):
            return "/".join(_id_text(record[name], name) for name in names)
    return None


def _id_text(value: Any, name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise BadRow(f"the id column {name!r} is {type(value).__name__}, expected a string or an integer")


def _key(key: str | None) -> str:
    if key is None:
        raise BadRow("the record has no key (the file is a list), expected an object of records by id")
    return key


def _string(record: Any, name: str) -> str:
    value: str = _field(record, name, str)
    return value


def _field(record: Any, name: str, expected: type) -> Any:
    if not isinstance(record, dict):
        raise BadRow(f"found {type(record).__name__} where an object with {name!r} belongs")
    if name not in record:
        raise BadRow(f"there is no {name!r}; the fields are {sorted(record)}")
    if not isinstance(record[name], expected):
        raise BadRow(f"{name!r} is {type(record[name]).__name__}, expected {expected.__name__}")
    return record[name]
