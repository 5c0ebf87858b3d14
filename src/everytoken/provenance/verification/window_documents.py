"""Which documents the windows of a release's streams hold, told by its manifests alone.

Of the annotated stream it is the order of the documents, drawn again. Of the compact stream it is the index of
`everytoken.provenance.indexes.compact_index`, written into a temporary folder when it is first asked for.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Self

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import MadeStream, Span, StreamIndex, index_compact_stream, open_stream_index
from everytoken.provenance.releases import Release
from everytoken.provenance.verification.manifest_rows import annotated_order, named_document
from everytoken.shards import scratch_folder

SPLIT_OF = {"compact": "unannotated", "annotated": "annotated"}
_NAMED = 3


class WindowDocuments:
    """Documents of the windows of a release's streams; a context manager, whose end removes what it wrote."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._scratch = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.close()

    @cached_property
    def annotated(self) -> np.ndarray:
        """The document in each window of the annotated stream, int64 (windows,): 8 bytes a document."""
        return annotated_order(self._release, self._release.boundaries["annotated"]["rows"])

    @cached_property
    def compact(self) -> StreamIndex:
        """The index of the compact stream."""
        folder = self._scratch.enter_context(scratch_folder("everytoken-verify"))
        described = self._release.streams["compact"]
        tokenization = self._release.parameters("tokenization")
        index_compact_stream(
            folder,
            lengths=self._release.manifest("unannotated"),
            split="unannotated",
            stream=MadeStream(described["root_digest"], described["statistics"]),
            seq_length=tokenization["seq_length"],
            seed=tokenization["seed"],
        )
        return open_stream_index(folder)

    def spans(self, stream: str, window: int) -> list[Span]:
        """Return the documents of a window, and where.

        Raises:
            ProvenanceError: the manifests do not say it of this stream.
        """
        if stream == "compact":
            return self.compact.spans(window)
        if stream == "annotated":
            number = int(self.annotated[window])
            return [Span(number, 0, self._release.parameters("tokenization")["seq_length"] + 1, 0)]
        raise ProvenanceError(f"the manifests have no documents of the stream {stream!r}")

    def windows_of(self, stream: str, document: int) -> list[tuple[int, Span]]:
        """Return the windows of a document, and where in them; of the annotated stream by a pass over its order."""
        if stream == "compact":
            return self.compact.windows_of(document)
        (windows,) = np.nonzero(self.annotated == document)
        return [(int(window), span) for window in windows for span in self.spans(stream, int(window))]

    def named(self, stream: str, window: int) -> str:
        """Return in words, a line each, which documents a window holds; empty where the manifests do not say it."""
        if stream not in SPLIT_OF:
            return ""
        try:
            spans = self.spans(stream, window)
        except Exception as error:  # what would name the documents may be what is damaged
            return f"its documents cannot be told ({error})"
        names = [
            (f"at {span.at:,} to {span.until:,}: " if stream == "compact" else "")
            + named_document(self._release, SPLIT_OF[stream], span.document)
            for span in spans[:_NAMED]
        ]
        more = [f"and {len(spans) - _NAMED:,} more"] if len(spans) > _NAMED else []
        return "\n".join(["it holds", *(f"  {name}" for name in [*names, *more])])
