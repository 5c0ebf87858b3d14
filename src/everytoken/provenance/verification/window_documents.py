"""Which documents the windows of a release's streams hold, by its manifests alone.

They answer through the index of the stream, which is written into a temporary folder when it is first asked for.
"""

from __future__ import annotations

from contextlib import ExitStack

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes import WINDOW_INDEXES, MadeStream, StreamIndex, open_stream_index
from everytoken.provenance.releases import SPLITS, Release
from everytoken.provenance.verification.manifest_rows import RELEASE_FAULTS, named_document
from everytoken.shards import scratch_folder
from everytoken.tokens.streams import STREAM_KINDS, StreamKind

_NAMED = 3


def kind_in_manifests(stream: str) -> StreamKind | None:
    """Return the kind of a stream whose windows hold documents of one split; None where the manifests have them not."""
    kind = STREAM_KINDS.get(stream)
    return kind if kind is not None and kind.is_of_windows and kind.split in SPLITS else None


class WindowDocuments:
    """Documents of the windows of a release's streams; `close` removes what it wrote."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._scratch = ExitStack()
        self._indexes: dict[str, StreamIndex] = {}

    def close(self) -> None:
        """Remove the indexes."""
        self._scratch.close()

    def index(self, stream: str) -> StreamIndex:
        """Return the index of a stream.

        Raises:
            ProvenanceError: the manifests do not have its documents, or are damaged.
        """
        if stream not in self._indexes:
            if (kind := kind_in_manifests(stream)) is None:
                raise ProvenanceError(f"the manifests have no documents of the stream {stream!r}")
            described = self._release.streams[stream]
            folder = self._scratch.enter_context(scratch_folder("everytoken-verify"))
            WINDOW_INDEXES[kind.layout](
                folder,
                lengths=self._release.manifest(kind.split),
                split=kind.split,
                stream=MadeStream(described["root_digest"], described["statistics"]),
                seq_length=self._release.parameters("tokenization")["seq_length"],
                seed=self._release.parameters(kind.pipeline)["seed"],
            )
            self._indexes[stream] = open_stream_index(folder)
        return self._indexes[stream]

    def named(self, stream: str, window: int) -> str:
        """Return in words, a line each, which documents a window holds; empty where the manifests do not have them."""
        if (kind := kind_in_manifests(stream)) is None:
            return ""
        try:
            spans = self.index(stream).spans(window)
        except RELEASE_FAULTS as error:  # what names the documents may be damaged too
            return f"its documents cannot be told ({error})"
        names = [
            (f"at {span.at:,} to {span.until:,}: " if kind.layout == "packed" else "")
            + named_document(self._release, kind.split, span.document)
            for span in spans[:_NAMED]
        ]
        more = [f"and {len(spans) - _NAMED:,} more"] if len(spans) > _NAMED else []
        return "\n".join(["it holds", *(f"  {name}" for name in [*names, *more])])
