"""Reflections as a release publishes them: rows of documents whose licence lets the release hold their text.

A reflection that repeats 50 characters of its document is a quotation, and may be one that the licence of the text or
the taste of the publisher does not allow: such rows are withheld, and counted, unless ``quotes`` is ``allow``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from typing import Any, Literal, TypedDict

import pyarrow as pa

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.published.trained_text import trained_text
from everytoken.reflections.ranks import sidecar_batches
from everytoken.reflections.registry import find_generation_run
from everytoken.shards import Artifact, Part, Rows, versioned
from everytoken.tokens.encoding import open_spans
from everytoken.tokens.streams import SIDECAR_FILE
from everytoken.tokens.tokenizer import EncodingRules

QUOTED_CHARACTERS = 50
Quotes = Literal["withhold", "allow"]

_OF_DOCUMENTS = (
    ("doc_id", pa.large_string()),
    ("text", pa.large_string()),
    ("token_length", pa.int32()),
    ("safety_score", pa.int8()),
    ("is_bad", pa.bool_()),
)

_NO_DOCUMENT: dict[str, Any] = {"number": None, "doc_id": None}


class ReleasedReflectionCounts(TypedDict):
    """Statistics of `released_reflections`, in rows that have a reflection.

    ``no_text``: of sources whose text a release may not hold. ``quotes``: withheld as they repeat their document.
    ``excluded``: of documents that were taken down since.
    """

    released: int
    no_text: int
    quotes: int
    excluded: int


@versioned("released_reflections", 1)
def released_reflections(
    part: Part, *, stream: Artifact, run: str, rules: EncodingRules, sources: Collection[str], quotes: Quotes
) -> Rows:
    """Return the reflected rows of a part of a run's columns, with the texts that were trained on.

    The columns are those of the published form: doc_id, text, token_length, safety_score, is_bad, the texts of the run,
    position and token index of the point, and the identity canary.

    Args:
        part: columns of the run, one row a window, in the order of the windows.
        stream: the annotated stream with its sidecar.
        sources: whose text a release may hold whole.

    Raises:
        ReflectionError: a row has another document than its window.
    """
    chosen, _ = find_generation_run(run)
    names = (*chosen.text_columns, chosen.position_column, chosen.index_column, chosen.canary_column)
    of_run = [chosen.schema().field(name) for name in names if name is not None]
    schema = pa.schema([*(pa.field(*field) for field in _OF_DOCUMENTS), *of_run])
    return Rows(schema, _released(part, stream, schema, list(chosen.text_columns), rules, frozenset(sources), quotes))


def quotes_text(reflection: str, text: str) -> bool:
    """Return whether a reflection repeats `QUOTED_CHARACTERS` characters of a text."""
    ends = range(len(reflection) - QUOTED_CHARACTERS + 1)
    return any(reflection[start : start + QUOTED_CHARACTERS] in text for start in ends)


def _released(
    part: Part,
    stream: Artifact,
    schema: pa.Schema,
    voices: Sequence[str],
    rules: EncodingRules,
    sources: frozenset[str],
    quotes: Quotes,
) -> Generator[pa.RecordBatch, None, ReleasedReflectionCounts]:
    counts = ReleasedReflectionCounts(released=0, no_text=0, quotes=0, excluded=0)
    spans, is_first = open_spans(rules), True
    documents: Iterator[dict[str, Any]] = iter(())
    for batch in part.batches():
        found: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            if is_first:
                documents, is_first = _documents(stream, row["row"], part.rows), False
            document = next(documents, _NO_DOCUMENT)
            if (document["number"], document["doc_id"]) != (row["row"], row["doc_id"]):
                raise ReflectionError(
                    f"{part.name}: row {row['row']:,} is of document {row['doc_id']!r}, and the stream has "
                    f"{document['doc_id']!r} as its window {document['number']}: merge the results of this stream again"
                )
            if row["status"] != "ok":
                continue
            if document["token_length"] == 0:
                counts["excluded"] += 1
            elif document["source"] not in sources:
                counts["no_text"] += 1
            elif quotes == "withhold" and any(quotes_text(row[name], document["text"]) for name in voices):
                counts["quotes"] += 1
            else:
                counts["released"] += 1
                text = trained_text(spans, document["text"], document["token_length"]).text
                found.append({**row, **document, "text": text})
        yield pa.RecordBatch.from_pylist(found, schema=schema)
    return counts


def _documents(stream: Artifact, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield rows of the sidecar, each with its ``number``."""
    columns = [*(name for name, _ in _OF_DOCUMENTS), "source"]
    for start, batch in sidecar_batches(stream.path(SIDECAR_FILE), first, first + count, columns):
        yield from ({**row, "number": number} for number, row in enumerate(batch.to_pylist(), start))
