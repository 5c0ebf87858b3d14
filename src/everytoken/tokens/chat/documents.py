"""Which documents become chat windows, what the assistant says in each, and its tokens.

A document of a source that ``chats.sources`` names is a chat. It becomes no window when it was taken down
(``excluded``), when it is bad and ``include_bad`` is false (``is_bad``), or when the assistant says nothing in it
(``no_answer``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from everytoken.address import ADDRESS_COLUMNS, Address
from everytoken.corpus import excluded_rows
from everytoken.shards import Part
from everytoken.tokens.chat.conversations import ChatTokens, Spans, encode_chats, mark_ids, spans_after, spans_of_lines
from everytoken.tokens.chat.parameters import ChatParameters, SpansOfLines, SpansOfTurns
from everytoken.tokens.encoding import DocumentEncoder
from everytoken.tokens.errors import StreamError

SKIPPED_CHAT_REASONS = ("is_bad", "no_answer")
_EXCLUDED = "excluded"


class ChatDocument(NamedTuple):
    """A chat: its tokens, or why it becomes no window, one of `SKIPPED_CHAT_REASONS` or ``excluded``."""

    row: int  # in the part
    source: str
    chat: ChatTokens | str


def chats_of(
    part: Part, excluded: Mapping[Address, Any], encoder: DocumentEncoder, chats: ChatParameters
) -> Iterator[ChatDocument]:
    """Yield the chats of a part; those that have tokens in the order of their rows.

    Args:
        part: rows with ``text``, ``source``, ``is_bad`` and, for sources of the kind ``spans``, ``assistant_spans``.
        excluded: the addresses of the documents that were taken down.

    Raises:
        StreamError: a column is missing, or spans are not those of the text.
    """
    import pyarrow.compute as pc  # it costs 0.07 s, and `everytoken trace` needs none of it

    needed = _columns(part, excluded, chats)
    marks, wanted, first_row = mark_ids(encoder, chats.marks), pa.array(list(chats.rules), pa.string()), 0
    for batch in part.batches(needed):
        rows = np.flatnonzero(pc.is_in(batch.column("source"), wanted).to_numpy(zero_copy_only=False))
        kept = batch.take(pa.array(rows))
        found: list[tuple[int, str]] = []
        texts: list[str] = []
        spans: list[Spans] = []
        is_excluded = excluded_rows(kept, excluded).tolist()
        for row, document, gone in zip((rows + first_row).tolist(), kept.to_pylist(), is_excluded, strict=True):
            source, text = document["source"], document["text"]
            where = f"{part.name} row {row} (source {source})"
            if gone:
                yield ChatDocument(row, source, _EXCLUDED)
            elif not chats.include_bad and document["is_bad"]:
                yield ChatDocument(row, source, "is_bad")
            elif not (said := said_in(text, source, _pairs(document.get("assistant_spans")), chats, where)):
                yield ChatDocument(row, source, "no_answer")
            else:
                found.append((row, source))
                texts.append(text)
                spans.append(said)
        first_row += batch.num_rows
        encoded = encode_chats(encoder, texts, spans, marks=marks, turn_ends=chats.turn_ends) if texts else ()
        for (row, source), chat in zip(found, encoded, strict=True):
            yield ChatDocument(row, source, chat if chat.ends else "no_answer")


def _columns(part: Part, excluded: Mapping[Address, Any], chats: ChatParameters) -> list[str]:
    with_spans = any(isinstance(rule, SpansOfTurns) for rule in chats.rules.values())
    needed = ["text", "source", *([] if chats.include_bad else ["is_bad"])]
    needed += ["assistant_spans"] if with_spans and "assistant_spans" in part.schema.names else []
    needed += ADDRESS_COLUMNS[1:] if excluded else []
    if missing := [name for name in needed if name not in part.schema.names]:
        raise StreamError(f"{part.name} has no column {missing[0]!r}, only {part.schema.names}; give documents")
    return needed


def _pairs(spans: Sequence[Mapping[str, int]] | None) -> Spans | None:
    return None if spans is None else [(span["start"], span["end"]) for span in spans]


def said_in(text: str, source: str, assistant_spans: Spans | None, chats: ChatParameters, where: str) -> Spans:
    """Return what the assistant says in a text, by the rule of its source.

    Args:
        source: its source, one of ``chats.sources``.
        assistant_spans: start and end of each of its turns, for sources of the kind ``spans``.

    Raises:
        StreamError: the document has no spans, or not those of its text.
    """
    rule = chats.rules[source]
    if isinstance(rule, SpansOfLines):
        return spans_of_lines(text, rule)
    if not isinstance(rule, SpansOfTurns):
        return spans_after(text, rule)
    if assistant_spans is None:
        raise StreamError(
            f"{where} has no assistant_spans: it was not rendered from turns. Give its source another rule in "
            "chats.sources (lines, after), or null"
        )
    borders = [0, *(border for span in assistant_spans for border in span), len(text)]
    if borders != sorted(borders):
        raise StreamError(
            f"{where} has the assistant_spans {assistant_spans[:5]} in {len(text)} code points; expected spans in "
            "order, apart and inside the text. Make the documents again"
        )
    return [span for span in assistant_spans if span[0] < span[1]]
