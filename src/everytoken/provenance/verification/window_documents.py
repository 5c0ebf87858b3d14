"""Which documents the windows of a release's streams hold, told by its manifests alone.

Of a stream with one document a window it is the order of the documents, drawn again. Of a packed stream it is the index
of `everytoken.provenance.indexes.compact_index`, written into a temporary folder when it is first asked for.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import MadeStream, Span, StreamIndex, index_compact_stream, open_stream_index
from everytoken.provenance.releases import SPLITS, Release
from everytoken.provenance.verification.manifest_rows import named_document, window_order
from everytoken.shards import scratch_folder
from everytoken.tokens.streams import STREAM_KINDS, StreamKind

_NAMED = 3


def kind_in_manifests(stream: str) -> StreamKind | None:
    """Return the kind of a stream whose windows hold documents of one split; None where the manifests have them not."""
    kind = STREAM_KINDS.get(stream)
    return kind if kind is not None and kind.is_of_windows and kind.split in SPLITS else None


class WindowDocuments:
    """Documents of the windows of a release's streams; a context manager, whose end removes what it wrote."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._scratch = ExitStack()
        self._orders: dict[str, np.ndarray] = {}
        self._packed: dict[str, StreamIndex] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.close()

    def order(self, stream: str) -> np.ndarray:
        """Return the document in each window of a stream with one a window, int64 (windows,): 8 bytes a document."""
        if stream not in self._orders:
            kind = self._kind(stream)
            rows = self._release.boundaries[kind.split]["rows"]
            self._orders[stream] = window_order(self._release, kind, rows)
        return self._orders[stream]

    def _index(self, stream: str) -> StreamIndex:
        """Return the index of a packed stream."""
        if stream not in self._packed:
            kind, described = self._kind(stream), self._release.streams[stream]
            folder = self._scratch.enter_context(scratch_folder("everytoken-verify"))
            index_compact_stream(
                folder,
                lengths=self._release.manifest(kind.split),
                split=kind.split,
                stream=MadeStream(described["root_digest"], described["statistics"]),
                seq_length=self._release.parameters("tokenization")["seq_length"],
                seed=self._release.parameters(kind.pipeline)["seed"],
            )
            self._packed[stream] = open_stream_index(folder)
        return self._packed[stream]

    def _kind(self, stream: str) -> StreamKind:
        if (kind := kind_in_manifests(stream)) is None:
            raise ProvenanceError(f"the manifests have no documents of the stream {stream!r}")
        return kind

    def spans(self, stream: str, window: int) -> list[Span]:
        """Return the documents of a window, and where.

        Raises:
            ProvenanceError: the manifests do not say it of this stream.
        """
        if self._kind(stream).layout == "packed":
            return self._index(stream).spans(window)
        number = int(self.order(stream)[window])
        return [Span(number, 0, self._release.parameters("tokenization")["seq_length"] + 1, 0)]

    def windows_of(self, stream: str, document: int) -> list[tuple[int, Span]]:
        """Return the windows of a document, and where in them; where each has a window by a pass over their order."""
        if self._kind(stream).layout == "packed":
            return self._index(stream).windows_of(document)
        (windows,) = np.nonzero(self.order(stream) == document)
        return [(int(window), span) for window in windows for span in self.spans(stream, int(window))]

    def named(self, stream: str, window: int) -> str:
        """Return in words, a line each, which documents a window holds; empty where the manifests do not say it."""
        if (kind := kind_in_manifests(stream)) is None:
            return ""
        try:
            spans = self.spans(stream, window)
        except Exception as error:  # what would name the documents may be what is damaged
            return f"its documents cannot be told ({error})"
        names = [
            (f"at {span.at:,} to {span.until:,}: " if kind.layout == "packed" else "")
            + named_document(self._release, kind.split, span.document)
            for span in spans[:_NAMED]
        ]
        more = [f"and {len(spans) - _NAMED:,} more"] if len(spans) > _NAMED else []
        return "\n".join(["it holds", *(f"  {name}" for name in [*names, *more])])
