"""The folder of an index of a stream: ``index.json`` says what it is, arrays beside it hold the maps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, Protocol, TypedDict, TypeVar, cast

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.document_numbers import (
    FIRST_ROWS_FILE,
    DocumentNumbers,
    SplitCounts,
    read_numbers,
    write_numbers,
)
from everytoken.shards import (
    LEDGER_FILE,
    Artifact,
    Record,
    ShardsError,
    file_sha256,
    read_artifact_ledger,
    statistics_as,
    stub_of,
    write_text,
)
from everytoken.system_errors import raise_trouble

DESCRIPTION_FILE = "index.json"
STREAM_INDEX_FORMAT = "everytoken-stream-index/1"

_SMALL = 64 << 20  # bytes that are hashed in a twentieth of a second
_NUMBERS = {
    **dict.fromkeys(("compact", "padded", "reflected", "chats"), ("windows", "window", "tokens")),
    "flat": ("tokens", "shard_size_tokens"),
}


WindowKind = Literal["compact", "padded", "reflected", "chats"]


class StreamDescription(TypedDict):
    """What ``index.json`` of every index of a stream says, and its statistics."""

    stream: str  # its root digest
    tokens: int
    splits: list[SplitCounts]
    documents: NotRequired[int]  # in the statistics alone


class WindowsDescription(StreamDescription):
    """Of windows of ``window`` tokens each."""

    kind: WindowKind
    windows: int
    window: int


class FlatDescription(StreamDescription):
    """Of tokens without windows.

    ``shards`` and ``stored_tokens``, all in them, where these are not the documents one after the other.
    """

    kind: Literal["flat"]
    shard_size_tokens: int
    shards: NotRequired[int]
    stored_tokens: NotRequired[int]


Description = TypeVar("Description", WindowsDescription, FlatDescription)


class _OfStream(TypedDict, total=False):
    stream: str


class Made(Protocol):
    """What an index needs to know of its stream: a made artifact, or what is said about one elsewhere."""

    @property
    def root_digest(self) -> str:
        """Digest of the stream."""

    def statistics_as(self, kind: type[Record]) -> Record:
        """Return what its writer counted."""


@dataclass(frozen=True)
class MadeStream:
    """A stream of which only the ledger is looked at: its files are not verified again when its index is made."""

    root_digest: str
    statistics: Mapping[str, Any]

    def statistics_as(self, kind: type[Record]) -> Record:
        """See `Artifact.statistics_as`."""
        return statistics_as(self.statistics, kind, f"stream {self.root_digest[:16]}")


def made_stream(stream: Artifact) -> MadeStream:
    """Return what an index needs to know of a stream."""
    return MadeStream(stream.root_digest, stream.statistics)


def stream_of(artifact: Artifact) -> str | None:
    """Return the root digest of the stream that an artifact is the index of; None when it is no such index."""
    return artifact.statistics_as(_OfStream).get("stream")


def require_same_counts(stream: str, found: Mapping[str, int], statistics: Mapping[str, object]) -> None:
    """Check that the documents are those of the stream, by what both count.

    Raises:
        ProvenanceError: they are not.
    """
    for name, value in found.items():
        if (expected := statistics[name]) != value:
            raise ProvenanceError(
                f"{stream} stream: its ledger says {name} = {expected:,}, the documents and parameters given make "
                f"{value:,}: they are not those that it was made from. Run the pipeline that makes the stream again"
            )


def write_description(folder: Path, described: Description, numbers: DocumentNumbers) -> Description:
    """Write ``index.json``; return the statistics of the index."""
    write_text(folder / DESCRIPTION_FILE, json.dumps({"format": STREAM_INDEX_FORMAT, **described}, indent=1) + "\n")
    described["documents"] = len(numbers)
    return described


def describe_windows(
    folder: Path, kind: WindowKind, stream: Made, numbers: DocumentNumbers, *, windows: int, window: int, tokens: int
) -> WindowsDescription:
    """Write what describes an index of windows, and ``first_rows.npy``; return its statistics."""
    described = WindowsDescription(
        kind=kind,
        stream=stream.root_digest,
        windows=windows,
        window=window,
        tokens=tokens,
        splits=write_numbers(folder, numbers),
    )
    return write_description(folder, described, numbers)


def read_description(folder: Path) -> tuple[WindowsDescription | FlatDescription, DocumentNumbers]:
    """Return what ``index.json`` of an index of a stream says, and the numbers of its documents.

    Raises:
        ProvenanceError: the folder is no such index.
    """
    described, numbers = read_index(folder, STREAM_INDEX_FORMAT, "a stream")
    return cast(WindowsDescription | FlatDescription, described), numbers


def read_index(folder: Path, expected: str, of: str) -> tuple[dict[str, Any], DocumentNumbers]:
    """Return ``index.json`` of an index, whose form is checked, and the numbers of its documents.

    Args:
        of: what that is an index of, for the message.

    Raises:
        ProvenanceError: the folder is no such index.
    """
    path = folder / DESCRIPTION_FILE
    try:
        _require_recorded(folder)
        described: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if described["format"] != expected:
            raise ValueError(f"its format is {described['format']!r}, expected {expected!r}")
        _check_form(described)
        return described, read_numbers(folder, described["splits"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, ShardsError) as error:
        raise_trouble(error)
        what = f"{path.name} has no {error}" if isinstance(error, KeyError) else error
        raise ProvenanceError(f"{folder} is no index of {of} ({what}); run the pipeline that makes it") from None


def _check_form(described: Mapping[str, Any]) -> None:
    counts = [described[name] for name in (_NUMBERS[described["kind"]] if "kind" in described else ("ids",))]
    counts += [described[name] for name in ("shards", "stored_tokens") if name in described]
    texts = [described["stream"]] if "kind" in described else list(described["id_types"])
    for split in described["splits"]:
        counts += [split["parts"], split["documents"]]
        texts += [split["name"], *([] if "kind" in described else [split["digest"], *split["part_names"]])]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError(f"its numbers are {counts[:10]}")
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"its names and digests are {texts[:10]}")


def _require_recorded(folder: Path) -> None:
    """Check files by the SHA-256 in the ledger of the index: all of a small one, else those that every answer needs.

    What is in the large arrays is compared where it is looked up. While an index is made it has no ledger.
    """
    if not (folder / LEDGER_FILE).is_file():
        return
    files = read_artifact_ledger(folder / LEDGER_FILE)["files"]
    small = sum(entry["bytes"] for entry in files.values()) <= _SMALL
    for name in files if small else (DESCRIPTION_FILE, FIRST_ROWS_FILE):
        if stub_of(folder / name).exists():
            continue  # its blocks are checked when they are read
        expected, found = files[name]["sha256"], file_sha256(folder / name)
        if found != expected:
            raise ValueError(f"{name} has the SHA-256 {found[:16]}, expected {expected[:16]}: it is damaged")


def folder_of(index: Artifact | Path) -> Path:
    """Return the folder of an index, given as such or as its artifact.

    Raises:
        ProvenanceError: the artifact is only planned.
    """
    folder = index if isinstance(index, Path) else index.folder
    if folder is None:
        raise ProvenanceError("the index is only planned; run the pipeline that makes it")
    return folder
