"""The index of chat windows: every chat begins a window of its own, a long one becomes several.

Where a chat is cut depends on where its turns begin and end, so the chats are encoded again; their windows are not made
(`everytoken.tokens.chat.windows`). A span counts tokens of the chat as it was encoded: its leading EOS is token 0, and
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
from typing import ClassVar, Final

import numpy as np

from everytoken.corpus import excluded_addresses
from everytoken.provenance.indexes.arrays import ArrayWriter, map_array, smallest_type, write_permutation
from everytoken.provenance.indexes.document_numbers import DocumentNumbers, numbers_of
from everytoken.provenance.indexes.index_folder import Made, WindowsDescription, describe_windows, require_same_counts
from everytoken.provenance.indexes.spans import Span, StreamIndex
from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, Built, Shards, versioned
from everytoken.tokens.chat import ChatParameters, ChatStatistics, chats_of, cut_chat
from everytoken.tokens.encoding import open_encoder
from everytoken.tokens.tokenizer import EncodingRules

CHATS: Final = "chats"
_DOCUMENTS, _FIRSTS, _ENDS, _CUTS, _WINDOWS = "documents.npy", "firsts.npy", "ends.npy", "cuts.npy", "windows.npy"
_POSITION = np.dtype("<u4")  # a chat of more tokens than that is in no memory


@versioned("index_chat_windows", 1)
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
        documents: what the windows were made of, by split.
        order: the splits in the order in which they were made of them.
        stream: the windows; their statistics say how many, of how many chats and tokens.

    Raises:
        ProvenanceError: the documents and parameters are not those of the windows.
    """
    encoder = open_encoder(EncodingRules(tokenizer, eos_token, "literal"))
    splits, window = {name: documents[name] for name in order}, seq_length + 1
    numbers, used, tokens = numbers_of(splits), 0, 0
    with ExitStack() as files:
        kinds = {_DOCUMENTS: smallest_type(len(numbers)), _FIRSTS: _POSITION, _ENDS: _POSITION}
        writers = [files.enter_context(ArrayWriter(folder / name, kind)) for name, kind in kinds.items()]
        for split, shards in splits.items():
            excluded = {part.name: excluded_addresses(part) for part in exclusions or ()}
            first_row = numbers.first_of(split)
            for part in shards:
                for row, _, chat in chats_of(part, excluded.get(part.name, {}), encoder, chats):
                    if isinstance(chat, str):
                        continue
                    cuts = np.array([*cut_chat(chat.starts, chat.ends, window, chats.context_tokens)], np.int64)
                    columns = (np.full(len(cuts), first_row + row), cuts[:, 0], cuts[:, 1])
                    for writer, values in zip(writers, columns, strict=True):
                        writer.append(values)
                    used, tokens = used + 1, tokens + int((cuts[:, 1] - cuts[:, 0]).sum())
                first_row += part.rows
    windows = writers[0].count
    found = {"used": used, "windows": windows, "tokens": tokens}
    require_same_counts(CHATS, found, stream.statistics_as(ChatStatistics))
    with ExitStack() as files:
        kind = smallest_type(windows)
        as_cut, as_written = (files.enter_context(ArrayWriter(folder / name, kind)) for name in (_CUTS, _WINDOWS))
        write_permutation(numpy_generator(chats.seed).permutation(windows), as_cut, as_written)
    return Built(describe_windows(folder, CHATS, stream, numbers, windows=windows, window=window, tokens=tokens))


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
    def open(folder: Path, described: WindowsDescription, numbers: DocumentNumbers) -> ChatIndex:
        """Map the files that `index_chat_windows` wrote."""
        return ChatIndex(
            described["stream"],
            described["windows"],
            described["window"],
            numbers,
            *(map_array(folder / name, described["windows"]) for name in (_DOCUMENTS, _FIRSTS, _ENDS, _CUTS, _WINDOWS)),
        )

    def tokens_of(self, document: int) -> None:
        """See `StreamIndex`: of a chat the spans of its windows are kept, and not its length."""
        return None

    def _spans(self, window: int) -> Iterator[Span]:
        yield self._span(int(self.cuts[window]), window)

    def _windows_of(self, document: int) -> Iterator[tuple[int, Span]]:
        begin, end = bisect_left(self.document_of_cut, document), bisect_right(self.document_of_cut, document)
        for cut in range(begin, end):
            window = int(self.window_of_cut[cut])
            yield window, self._span(cut, window)

    def _span(self, cut: int, window: int) -> Span:
        holds = max(cut, window) < self.windows
        holds = holds and int(self.window_of_cut[cut]) == window and int(self.cuts[window]) == cut
        self._require(holds, f"by {_CUTS} and {_WINDOWS}, cut {cut:,} and window {window:,} are not the same")
        near = self.document_of_cut[max(0, cut - 1) : cut + 2].tolist()
        self._require(near == sorted(near), f"{_DOCUMENTS} does not ascend at cut {cut:,}")
        first, end = int(self.firsts[cut]), int(self.ends[cut])
        self._require(first < end <= first + self.window, f"cut {cut:,} has the tokens [{first:,}, {end:,})")
        return Span(int(self.document_of_cut[cut]), first, end, 0)
