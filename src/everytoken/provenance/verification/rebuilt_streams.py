"""Whether streams are those that a release was made of: files, index, lengths, windows, sidecar.

The SHA-256 of a ``.bin`` says that all its tokens are right. Only where it is another one are the checksums of the
windows looked at, which say where; the index of the stream says which documents these windows hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from everytoken.checks import (
    Checks,
    Mismatch,
    first_difference,
    require_equal,
    require_files,
    require_none,
    wrong_sizes,
)
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import CHECKSUMS_FILE, VERIFICATION_FOLDER, Release, window_checksums
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.provenance.verification.manifest_rows import RELEASE_FAULTS, drawn_numbers, named_document, window_order
from everytoken.provenance.verification.release_files import read_canonical_ledger
from everytoken.provenance.verification.sidecar_checks import DocumentOrder, check_sidecar, check_sidecar_rows
from everytoken.provenance.verification.window_documents import kind_in_manifests
from everytoken.provenance.verification.window_faults import checksum, first_change, told_by_checksum
from everytoken.shards import LEDGER_FILE
from everytoken.tokens.checks import open_array
from everytoken.tokens.streams import HEADER_BYTES, SIDECAR_FILE, TOKEN_LENGTHS_FILE, TokenizerFacts, stored_dtype


@dataclass(frozen=True)
class RebuiltStream:
    """A stream in a folder, and what a release says of the stream of this name."""

    name: str
    folder: Path
    checked: CheckedRelease

    @property
    def release(self) -> Release:
        """The release."""
        return self.checked.release

    @property
    def files(self) -> Mapping[str, Any]:
        """Bytes and SHA-256 of its files, as released."""
        files: Mapping[str, Any] = self.release.streams[self.name]["files"]
        return files

    @property
    def bin(self) -> Path:
        """Its tokens."""
        return self.folder / f"{self.name}.bin"

    @property
    def released(self) -> Path:
        """The folder of the release with what verifies it."""
        return self.release.path / VERIFICATION_FOLDER / self.name

    @property
    def window(self) -> int:
        """Tokens of a window."""
        return int(self.release.parameters("tokenization")["seq_length"]) + 1

    @property
    def windows(self) -> int:
        """How many there are, as released."""
        return int(self.release.streams[self.name]["statistics"]["windows"])

    @property
    def facts(self) -> TokenizerFacts:
        """What the release says of its tokenizer."""
        return TokenizerFacts(**self.release.streams[self.name]["statistics"]["tokenizer"])

    @cached_property
    def tokens(self) -> np.ndarray:
        """The windows as far as the file goes, (n, window)."""
        kind = stored_dtype(self.facts.dtype)
        whole = self.bin.stat().st_size // (self.window * kind.itemsize)
        if not whole:
            return np.empty((0, self.window), kind)
        return np.memmap(self.bin, kind, "r", shape=(whole, self.window))

    @cached_property
    def looked_at(self) -> np.ndarray:
        """Numbers of the windows of the sample, with the first and the last; all where everything is read."""
        if not self.windows or self.checked.sampled is None:
            return np.arange(self.windows)
        drawn = drawn_numbers(self.windows, self.checked.sampled, self.checked.seed)
        return np.unique(np.concatenate([[0, self.windows - 1], drawn]))

    def require_digests(self, names: Mapping[str, Any]) -> None:
        """Check the SHA-256 of the files that exist; entries of a ledger by name."""
        wanted = {name: entry["sha256"] for name, entry in names.items() if (self.folder / name).is_file()}
        require_none([*self.checked.hashing.wrong(self.folder, wanted).values()])


def stream_checks(stream: RebuiltStream) -> Checks[RebuiltStream]:
    """Return the checks of a stream: those of the files that the release lists."""
    has, is_full = stream.files.keys(), stream.checked.full
    checks = (
        ("files", _check_files, True),
        ("ledger", _check_ledger, True),
        ("index", _check_index, stream.bin.name in has),
        ("lengths", _check_lengths, {stream.bin.name, TOKEN_LENGTHS_FILE} <= has),
        ("windows", _check_windows, stream.bin.name in has),
        ("sidecar", _check_sidecar, SIDECAR_FILE in has),
        ("other files", _check_others, bool(_others(stream)) and is_full),
    )
    return [(f"{stream.name} {what}", check) for what, check, is_made in checks if is_made]


def _check_files(stream: RebuiltStream) -> str:
    sizes = {name: entry["bytes"] for name, entry in sorted(stream.files.items())}
    any_size = {SIDECAR_FILE: None} if SIDECAR_FILE in sizes else {}  # another pyarrow writes other bytes
    require_files(stream.folder, {**sizes, **any_size}, "the release knows")
    return f"{len(sizes):,} files, {sum(sizes.values()):,} bytes"


def _check_ledger(stream: RebuiltStream) -> str:
    path = stream.folder / LEDGER_FILE
    if not path.exists():
        return "there is none; the release says what the files are"
    ledger = read_canonical_ledger(path)
    require_equal(f"{path}: root digest", ledger["root_digest"], stream.release.streams[stream.name]["root_digest"])
    require_none(wrong_sizes(stream.folder, {name: entry["bytes"] for name, entry in ledger["files"].items()}))
    if stream.checked.full:  # other files have their check
        own = ledger["files"].items()
        stream.require_digests({name: entry for name, entry in own if name == SIDECAR_FILE or name not in stream.files})
    return f"root digest {ledger['root_digest'][:16]} as released"


def _check_index(stream: RebuiltStream) -> str:
    path, released = stream.bin.with_suffix(".idx"), stream.released / f"{stream.name}.idx"
    require_equal(f"{path}: bytes", path.stat().st_size, released.stat().st_size)
    found, expected = (np.memmap(one, np.uint8, "r") for one in (path, released))
    looked_at: slice | np.ndarray = slice(None)
    if not stream.checked.full:
        entries = (
            start + width * stream.looked_at[:, None] + np.arange(width)
            for _, start, width in _index_parts(stream.windows)
        )
        looked_at = np.concatenate([np.arange(HEADER_BYTES), *map(np.ravel, entries)])
    if (i := first_difference(found[looked_at], expected[looked_at])) is not None:
        at = i if isinstance(looked_at, slice) else int(looked_at[i])
        place = f"{path} byte {at:,} ({_index_entry(at, stream.windows)})"
        raise Mismatch(place, str(expected[at]), str(found[at]))
    return f"{stream.windows:,} windows, {len(found[looked_at]):,} bytes as released"


def _index_parts(windows: int) -> list[tuple[str, int, int]]:
    """Return what an index has for each window: name, first byte, bytes a window."""
    return [
        ("length", HEADER_BYTES, 4),
        ("place", HEADER_BYTES + 4 * windows, 8),
        ("document", HEADER_BYTES + 12 * windows, 8),
    ]


def _index_entry(at: int, windows: int) -> str:
    for what, start, width in _index_parts(windows):
        if start <= at < start + width * windows:
            return f"{what} of window {(at - start) // width:,}"
    return "its header" if at < HEADER_BYTES else "the end of its documents"


def _check_lengths(stream: RebuiltStream) -> str:
    path = stream.folder / TOKEN_LENGTHS_FILE
    numbers = stream.looked_at
    found, expected = (
        open_array(one, stream.windows, np.int32)[numbers] for one in (path, stream.released / TOKEN_LENGTHS_FILE)
    )
    if (i := first_difference(found, expected)) is not None:
        window = int(numbers[i])
        named = stream.checked.documents.named(stream.name, window)
        raise Mismatch(f"{path} window {window:,}", f"token_length {expected[i]}", str(found[i]), more=named)
    if stream.checked.full:
        stream.require_digests({path.name: stream.files[path.name]})
    return f"{len(numbers):,} of {stream.windows:,} lengths as released"


def _check_windows(stream: RebuiltStream) -> str:
    path, sums = stream.bin, stream.released / CHECKSUMS_FILE
    if not stream.checked.full:
        expected = open_array(sums, stream.windows, np.uint32)
        for window in stream.looked_at.tolist():
            if window >= len(stream.tokens):
                raise ProvenanceError(f"{path} ends before window {window:,}")
            if checksum(stream.tokens[window]) != int(expected[window]):
                raise ProvenanceError(f"{path} {_fault(stream, window, int(expected[window]))}")
        return f"{len(stream.looked_at):,} of {stream.windows:,} windows have their CRC-32"
    digest, found = stream.files[path.name]["sha256"], stream.checked.hashing.begin(path).result()
    if found == digest:
        return f"{stream.windows:,} windows of {stream.window:,} tokens, SHA-256 {digest[:16]}"
    fault = "is not as released"
    if sums.is_file():
        fault = _first_fault(stream, open_array(sums, stream.windows, np.uint32))
    raise ProvenanceError(f"{path} {fault}\nSHA-256 of the file: expected {digest[:16]}, found {found[:16]}")


def _first_fault(stream: RebuiltStream, expected: np.ndarray) -> str:
    """Say which window is the first that is not as released, what it holds, and how many there are."""
    size = stream.tokens.dtype.itemsize * stream.window
    if (found := stream.bin.stat().st_size) != stream.windows * size:
        return f"ends in window {found // size:,}, expected {stream.windows:,} windows"
    sums = np.concatenate([np.empty(0, np.uint32), *window_checksums(stream.bin, size)])
    wrong = np.flatnonzero(sums != expected)
    if not len(wrong):
        return "has windows that all have their CRC-32"
    more = f"\nwindows that differ besides: {len(wrong) - 1:,}" if len(wrong) > 1 else ""
    return _fault(stream, int(wrong[0]), int(expected[wrong[0]])) + more


def _fault(stream: RebuiltStream, window: int, expected: int) -> str:
    """Say which token of a window differs, and in lines after that which documents the window holds."""
    change, note, texts = None, "", stream.checked.texts
    if texts is not None and kind_in_manifests(stream.name):
        try:
            change = first_change(texts.window(stream.name, window), stream.tokens[window])
            note = "" if change else "its tokens are those of its texts: the checksum of the release is wrong"
        except RELEASE_FAULTS as error:  # the fault is named without what upstream would add to it
            note = f"its texts cannot be read again ({error})"
    change = change or told_by_checksum(stream.tokens[window], expected, stream.facts.vocab_size)
    said = [
        f"window {window:,} {'is not as released' if change is None else change.text}",
        note,
        "" if change is None else change.note,
        "" if change is None else _token_of(stream, window, change.position),
        stream.checked.documents.named(stream.name, window) or _of_sidecar(stream, window),
    ]
    return "\n".join(filter(None, said))


def _of_sidecar(stream: RebuiltStream, window: int) -> str:
    """Name the document of a window of a padded stream that the manifests have none of."""
    if SIDECAR_FILE not in stream.files:
        return ""
    try:
        table = pq.read_table(stream.folder / SIDECAR_FILE, columns=["doc_id"])
        return f"it holds document {table.column('doc_id')[window].as_py()!r}"
    except RELEASE_FAULTS:  # the sidecar is damaged too, which its own check names
        return ""


def _token_of(stream: RebuiltStream, window: int, position: int) -> str:
    """Say which token of which document of a packed window that is."""
    kind = kind_in_manifests(stream.name)
    if kind is None or kind.layout != "packed":
        return ""
    try:
        spans = stream.checked.documents.index(stream.name).spans(window)
        (span,) = (one for one in spans if one.at <= position < one.until)
    except RELEASE_FAULTS:  # the manifests are damaged too, which their own checks name
        return ""
    token = span.first + position - span.at
    return f"token {token:,} of {named_document(stream.release, kind.split, span.document)}"


def _check_sidecar(stream: RebuiltStream) -> str:
    path, entry, documents = stream.folder / SIDECAR_FILE, stream.files[SIDECAR_FILE], None
    if (kind := kind_in_manifests(stream.name)) is not None:
        order = window_order(stream.release, kind, stream.release.boundaries[kind.split]["rows"])
        documents = DocumentOrder(stream.release, kind.split, order)
    if stream.checked.full:
        said = check_sidecar(path, entry["content_digest"], documents)
        same_file = stream.checked.hashing.begin(path).result() == entry["sha256"]
        return said if same_file else f"{said}, in a file of other bytes (as other versions write it)"
    if documents is None:
        return "not looked at: the manifest has none of its documents"
    return check_sidecar_rows(path, stream.looked_at.tolist(), documents)


def _others(stream: RebuiltStream) -> dict[str, Any]:
    own = {stream.bin.name, f"{stream.name}.idx", TOKEN_LENGTHS_FILE, SIDECAR_FILE}
    return {name: entry for name, entry in stream.files.items() if name not in own}


def _check_others(stream: RebuiltStream) -> str:
    """Files that no other check reads: raw shards and their manifest, a loss mask."""
    names = list(_others(stream))
    stream.require_digests(_others(stream))
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}: SHA-256 as released"
