"""Indexes of streams: from a window to the documents in it, and from a document to its windows.

``open_stream_index(artifact).spans(window)`` and ``.windows_of(document)`` answer from memory-mapped arrays
(`everytoken.provenance.indexes.spans`). An index is made from the lengths of the documents and the seeds of the stream;
no token is read. There is one module for each kind of stream.
"""

from __future__ import annotations

from pathlib import Path

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.chat_index import ChatIndex, index_chat_windows
from everytoken.provenance.indexes.compact_index import CompactIndex, index_compact_stream
from everytoken.provenance.indexes.flat_index import FLAT, FlatIndex, flat_index_of_documents
from everytoken.provenance.indexes.index_folder import MadeStream, folder_of, made_stream, read_description
from everytoken.provenance.indexes.padded_index import PaddedIndex, index_padded_stream
from everytoken.provenance.indexes.raw_shards_index import index_raw_shards
from everytoken.provenance.indexes.reflected_index import ReflectedIndex
from everytoken.provenance.indexes.spans import Span, StreamIndex
from everytoken.shards import Artifact

__all__ = [
    "WINDOW_INDEXES",
    "FlatIndex",
    "MadeStream",
    "Span",
    "StreamIndex",
    "flat_index_of_documents",
    "index_chat_windows",
    "index_compact_stream",
    "index_padded_stream",
    "index_raw_shards",
    "made_stream",
    "open_flat_index",
    "open_stream_index",
]

WINDOW_INDEXES = {"packed": index_compact_stream, "padded": index_padded_stream}
"""What writes the index of windows of documents of one split, by the layout of the stream."""

_KINDS = {kind.kind: kind for kind in (CompactIndex, PaddedIndex, ReflectedIndex, ChatIndex)}


def open_stream_index(index: Artifact | Path, seq_length: int | None = None) -> StreamIndex:
    """Open the index of a stream.

    Args:
        seq_length: predictions of a window, where the stream is flat tokens that a run cuts; else not looked at.

    Raises:
        ProvenanceError: it is no index, or one of flat tokens and ``seq_length`` is not given.
    """
    folder = folder_of(index)
    described, numbers = read_description(folder)
    if described["kind"] != FLAT:
        return _KINDS[described["kind"]].open(folder, described, numbers)
    if seq_length is None:
        raise ProvenanceError(f"{folder} is the index of flat tokens: say how many predictions a window makes")
    return FlatIndex.open(folder, described, numbers).windows_of_length(seq_length)


def open_flat_index(index: Artifact | Path) -> FlatIndex:
    """Open the index of raw shards, to ask for ranges of tokens.

    Raises:
        ProvenanceError: it is no index of flat tokens.
    """
    folder = folder_of(index)
    described, numbers = read_description(folder)
    if described["kind"] != FLAT:
        raise ProvenanceError(f"{folder} is the index of a {described['kind']} stream, expected one of flat tokens")
    return FlatIndex.open(folder, described, numbers)
