"""The index of chat windows: every chat begins a window of its own, a long one becomes several.

Where a chat is cut depends on where its turns begin and end, so the chats are encoded again; their windows are not made
(`everytoken.tokens.chat_windows`). A span counts tokens of the chat as it was encoded: its leading EOS is token 0, and
each turn of the assistant has its EOS. Windows of one chat may repeat tokens as context, and leave some out.

As cut, windows are in the order of their documents: ``documents.npy``, ``firsts.npy`` and ``ends.npy`` have the span of
each. ``cuts.npy`` and ``windows.npy`` map between these and the windows of the stream. Size: 20 bytes a window, where
there are fewer than 2**32 documents and windows (16 below 2**16); documents take nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.corpus.exclusion import Address, excluded_addresses, excluded_rows
from everytoken.provenance.indexes.arrays import ArrayWriter, map_array, smallest_type, write_permutation
from everytoken.provenance.indexes.document_numbers import DocumentNumbers, numbers_of
from everytoken.provenance.indexes.index_folder import Made, require_same, write_description
from everytoken.provenance.indexes.spans import Span, StreamIndex
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Built, Part, Shards, versioned
from everytoken.tokens.chat_parameters import ChatParameters, SpansOfLines, SpansOfTurns
from everytoken.tokens.chat_windows import cut_chat
from everytoken.tokens.chats import ChatTokens, Spans, encode_chats, mark_ids, spans_after, spans_of_lines
from everytoken.tokens.encoding import DocumentEncoder, open_encoder

CHATS = "chats"
_DOCUMENTS, _FIRSTS, _ENDS, _CUTS, _WINDOWS = "documents.npy", "firsts.npy", "ends.npy", "cuts.npy", "windows.npy"
_POSITION = np.dtype("<u4")  # a chat of more tokens than that is in no memory


@versioned(1)
def index_chat_windows(
    folder: Path,
    *,
    documents: Mapping[str, Shards],
    order: tuple[str, ...],
    exclusions: Shards | None,
    stream: Made,
    tokenizer: Artifact,
    eos_token: str,
    chats: ChatParameters,
    seq_length: int,
) -> Built:
    """Write the index of chat windows.

    Memory: a batch of rows, and 12 bytes a window.

    Args:
        folder: where the files go.
        documents: what the windows were made of, by split.
        order: the splits in the order in which they were made of them.
        exclusions: with which they were made.
        stream: the windows; their statistics say how many, of how many chats and tokens.
        tokenizer: encodes them.
        eos_token: with which they were made.
        chats: with which they were made.
        seq_length: with which they were made.

    Raises:
        ProvenanceError: the documents and parameters are not those of the windows.
    """
    encoder = open_encoder(tokenizer, eos_token, special_tokens_in_text="literal")
    splits, window = {name: documents[name] for name in order}, seq_length + 1
    numbers, used, tokens = numbers_of(splits), 0, 0
    with ExitStack() as files:
        kinds = {_DOCUMENTS: smallest_type(len(numbers)), _FIRSTS: _POSITION, _ENDS: _POSITION}
        writers = [files.enter_context(ArrayWriter(folder / name, kind)) for name, kind in kinds.items()]
        for split, shards in splits.items():
            excluded = {part.name: excluded_addresses(part) for part in exclusions or ()}
            first_row = numbers.first_of(split)
            for part in shards:
                for row, chat in _chats_of(part, excluded.get(part.name, {}), encoder, chats):
                    cuts = np.array([*cut_chat(chat.starts, chat.ends, window, chats.context_tokens)], np.int64)
                    columns = (np.full(len(cuts), first_row + row), cuts[:, 0], cuts[:, 1])
                    for writer, values in zip(writers, columns, strict=True):
                        writer.append(values)
                    used, tokens = used + 1, tokens + int((cuts[:, 1] - cuts[:, 0]).sum())
                first_row += part.rows
    windows = writers[0].count
    require_same(CHATS, {"used": used, "windows": windows, "tokens": tokens}, stream.statistics)
    with ExitStack() as files:
        kind = smallest_type(windows)
        as_cut, as_written = (files.enter_context(ArrayWriter(folder / name, kind)) for name in (_CUTS, _WINDOWS))
        write_permutation(numpy_generator(chats.seed).permutation(windows), as_cut, as_written)
    return Built(write_description(folder, CHATS, stream, numbers, windows=windows, window=window, tokens=tokens))


def _chats_of(
    part: Part, excluded: Mapping[Address, Any], encoder: DocumentEncoder, chats: ChatParameters
) -> Iterator[tuple[int, ChatTokens]]:
    """Yield the row of each chat of a part that became windows, and its tokens."""
    rules, names = chats.rules, part.schema.names
    marks, wanted, first_row = mark_ids(encoder, chats.marks), pa.array(list(rules), pa.string()), 0
    needed = ["text", "source", *(name for name in ("is_bad", "assistant_spans") if name in names)]
    for batch in part.batches([*needed, *(["shard_index", "row"] if excluded else [])]):
        of_chats = pc.is_in(batch.column("source"), wanted).to_numpy(zero_copy_only=False)
        rows, texts, spans = [], [], []
        for row in np.flatnonzero(of_chats & ~excluded_rows(batch, excluded)).tolist():
            (document,) = batch.slice(row, 1).to_pylist()
            if (chats.include_bad or not document["is_bad"]) and (found := _spans_of(document, chats)):
                rows.append(first_row + row)
                texts.append(document["text"])
                spans.append(found)
        encoded = encode_chats(encoder, texts, spans, marks=marks, turn_ends=chats.turn_ends) if texts else ()
        yield from ((row, chat) for row, chat in zip(rows, encoded, strict=True) if chat.ends)
        first_row += batch.num_rows


def _spans_of(document: Mapping[str, Any], chats: ChatParameters) -> Spans:
    rule = chats.rules[document["source"]]
    if isinstance(rule, SpansOfLines):
        return spans_of_lines(document["text"], rule)
    if isinstance(rule, SpansOfTurns):
        said = ((span["start"], span["end"]) for span in document["assistant_spans"])
        return [(start, end) for start, end in said if start < end]
    return spans_after(document["text"], rule)


@dataclass(frozen=True, eq=False)
class ChatIndex(StreamIndex):
    """See the module."""

    kind: ClassVar[str] = CHATS

    document_of_cut: np.ndarray
    firsts: np.ndarray
    ends: np.ndarray
    cuts: np.ndarray
    window_of_cut: np.ndarray

    @staticmethod
    def open(folder: Path, described: dict[str, Any], numbers: DocumentNumbers) -> ChatIndex:
        """Map the files that `index_chat_windows` wrote."""
        return ChatIndex(
            described["stream"],
            described["windows"],
            described["window"],
            numbers,
            *(map_array(folder / name) for name in (_DOCUMENTS, _FIRSTS, _ENDS, _CUTS, _WINDOWS)),
        )

    def _spans(self, window: int) -> Iterator[Span]:
        yield self._span(int(self.cuts[window]))

    def _windows_of(self, document: int) -> Iterator[tuple[int, Span]]:
        begin, end = bisect_left(self.document_of_cut, document), bisect_right(self.document_of_cut, document)
        for cut in range(begin, end):
            yield int(self.window_of_cut[cut]), self._span(cut)

    def _span(self, cut: int) -> Span:
        return Span(int(self.document_of_cut[cut]), int(self.firsts[cut]), int(self.ends[cut]), 0)
