"""Whether streams are those that a release was made of: files, index, lengths, windows, sidecar.

The SHA-256 of a ``.bin`` says that all its tokens are right. Only where it is another one are the checksums of the
windows looked at, which say where; the index of the stream says which documents these windows hold.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from everytoken.provenance.releases import CHECKSUMS_FILE, VERIFICATION_FOLDER, window_checksums
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.provenance.verification.documents import (
    RELEASE_FAULTS,
    drawn_numbers,
    kind_in_manifests,
    named_document,
    window_order,
)
from everytoken.provenance.verification.release_files import read_canonical_ledger
from everytoken.provenance.verification.sidecar_checks import DocumentOrder, check_sidecar, check_sidecar_rows
from everytoken.provenance.verification.window_faults import checksum, first_change, told_by_checksum
from everytoken.shards import LEDGER_FILE
from everytoken.tokens.checks import open_array
from everytoken.tokens.streams import HEADER_BYTES, SIDECAR_FILE, TOKEN_LENGTHS_FILE, TokenizerFacts, stored_dtype


class RebuiltStream:
    """A stream in a folder, and what a release says of the stream of this name.

    Attributes:
        files: its files with bytes and SHA-256, as released; so are ``window``, tokens of one, and ``windows``.
        released: the folder of the release with what verifies it.
    """

    def __init__(self, name: str, folder: Path, checked: CheckedRelease) -> None:
        self.name, self.folder, self.checked, self.release = name, folder, checked, checked.release
        self.described: Mapping[str, Any] = self.release.streams[name]
        self.files: Mapping[str, Any] = self.described["files"]
        self.window = int(self.release.parameters("tokenization")["seq_length"]) + 1
        self.bin, self.released = folder / f"{name}.bin", checked.folder / VERIFICATION_FOLDER / name

    @property
    def windows(self) -> int:
        """How many there are, as released."""
        return int(self.described["statistics"]["windows"])

    @cached_property
    def facts(self) -> TokenizerFacts:
        """What the release says of its tokenizer."""
        return TokenizerFacts(**self.described["statistics"]["tokenizer"])

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

    @property
    def other_files(self) -> dict[str, Any]:
        """Files that no check of their own reads: raw shards and their manifest, a loss mask."""
        own = {self.bin.name, f"{self.name}.idx", TOKEN_LENGTHS_FILE, SIDECAR_FILE}
        return {name: entry for name, entry in self.files.items() if name not in own}

    def require_digests(self, entries: Mapping[str, Any]) -> None:
        """Check, where everything is read, the SHA-256 of those of these files that exist."""
        wanted = {name: entry["sha256"] for name, entry in entries.items() if (self.folder / name).is_file()}
        if self.checked.full:
            require_none([*self.checked.hashing.wrong(self.folder, wanted).values()])


def stream_checks(stream: RebuiltStream) -> Checks[RebuiltStream]:
    """Return the checks of a stream: those of the files that the release lists."""
    has = stream.files.keys()
    checks = (
        ("files", _check_files, True),
        ("ledger", _check_ledger, True),
        ("index", _check_index, stream.bin.name in has),
        ("lengths", _check_lengths, {stream.bin.name, TOKEN_LENGTHS_FILE} <= has),
        ("windows", _check_windows, stream.bin.name in has),
        ("sidecar", _check_sidecar, SIDECAR_FILE in has),
        ("other files", _check_others, bool(stream.other_files) and stream.checked.full),
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
    require_equal(f"{path}: root digest", ledger["root_digest"], stream.described["root_digest"])
    files = ledger["files"].items()
    require_none(wrong_sizes(stream.folder, {name: entry["bytes"] for name, entry in files}))
    checked_elsewhere = stream.files.keys() - {SIDECAR_FILE}
    stream.require_digests({name: entry for name, entry in files if name not in checked_elsewhere})
    return f"root digest {ledger['root_digest'][:16]} as released"


def _check_index(stream: RebuiltStream) -> str:
    path, released = stream.bin.with_suffix(".idx"), stream.released / f"{stream.name}.idx"
    require_equal(f"{path}: bytes", path.stat().st_size, released.stat().st_size)
    with path.open("rb") as one, released.open("rb") as other:
        if (found := one.read(HEADER_BYTES)) != (expected := other.read(HEADER_BYTES)):
            raise Mismatch(f"{path}: its first {HEADER_BYTES} bytes", expected.hex(), found.hex())
    entries, wanted = _index_arrays(path, stream.windows), slice(None) if stream.checked.full else stream.looked_at
    for what, right in _index_arrays(released, stream.windows).items():
        if (i := first_difference(entries[what][wanted], right[wanted])) is not None:
            window = i if stream.checked.full else int(stream.looked_at[i])
            raise Mismatch(f"{path}: {what} of window {window:,}", str(right[window]), str(entries[what][window]))
    return f"{len(stream.looked_at):,} of {stream.windows:,} windows as released"


def _index_arrays(path: Path, windows: int) -> dict[str, np.ndarray]:
    """Return what an index has for each window; and for documents, where the last ends."""
    starts, counts = [0, 4 * windows, 12 * windows], (windows, windows, windows + 1)
    kinds = {"length": "<i4", "place": "<i8", "document": "<i8"}
    return {
        what: np.memmap(path, kind, "r", HEADER_BYTES + start, (count,)) if count else np.empty(0, kind)
        for (what, kind), start, count in zip(kinds.items(), starts, counts, strict=True)
    }


def _check_lengths(stream: RebuiltStream) -> str:
    path, numbers = stream.folder / TOKEN_LENGTHS_FILE, stream.looked_at
    arrays = (open_array(one, stream.windows, np.int32) for one in (path, stream.released / TOKEN_LENGTHS_FILE))
    found, expected = (array[numbers] for array in arrays)
    if (i := first_difference(found, expected)) is not None:
        named = stream.checked.documents.named(stream.name, int(numbers[i]))
        raise Mismatch(f"{path} window {numbers[i]:,}", f"token_length {expected[i]}", str(found[i]), more=named)
    stream.require_digests({path.name: stream.files[path.name]})
    return f"{len(numbers):,} of {stream.windows:,} lengths as released"


def _check_windows(stream: RebuiltStream) -> str:
    path, sums = stream.bin, stream.released / CHECKSUMS_FILE
    if not stream.checked.full:
        crcs = open_array(sums, stream.windows, np.uint32)
        for window in stream.looked_at.tolist():
            if window >= len(stream.tokens):
                raise ProvenanceError(f"{path} ends before window {window:,}")
            if checksum(stream.tokens[window]) != int(crcs[window]):
                raise ProvenanceError(f"{path} {_fault(stream, window, int(crcs[window]))}")
        return f"{len(stream.looked_at):,} of {stream.windows:,} windows have their CRC-32"
    digest, found = stream.files[path.name]["sha256"], stream.checked.hashing.begin(path).result()
    if found == digest:
        return f"{stream.windows:,} windows of {stream.window:,} tokens, SHA-256 {digest[:16]}"
    fault = (
        _first_fault(stream, open_array(sums, stream.windows, np.uint32)) if sums.is_file() else "is not as released"
    )
    raise ProvenanceError(f"{path} {fault}\nSHA-256 of the file: expected {digest[:16]}, found {found[:16]}")


def _first_fault(stream: RebuiltStream, expected: np.ndarray) -> str:
    """Say which window is the first that is not as released, what it holds, and how many there are."""
    size = stream.tokens.dtype.itemsize * stream.window
    if (found := stream.bin.stat().st_size) != stream.windows * size:
        return f"ends in window {found // size:,}, expected {stream.windows:,} windows"
    first, count, at = None, 0, 0
    for sums in window_checksums(stream.bin, size):
        wrong = np.flatnonzero(sums != expected[at : at + len(sums)])
        first = at + int(wrong[0]) if first is None and len(wrong) else first
        count, at = count + len(wrong), at + len(sums)
    if first is None:
        return "has windows that all have their CRC-32"
    more = f"\nwindows that differ besides: {count - 1:,}" if count > 1 else ""
    return _fault(stream, first, int(expected[first])) + more


def _fault(stream: RebuiltStream, window: int, expected: int) -> str:
    """Say which token of a window differs, and in lines after that which documents the window holds."""
    change, note, documents = None, "", stream.checked.documents.named(stream.name, window)
    if (texts := stream.checked.texts) is not None and kind_in_manifests(stream.name):
        try:
            change = first_change(texts.window(stream.name, window), stream.tokens[window])
            note = "" if change else "its tokens are those of its texts: the checksum of the release is wrong"
        except RELEASE_FAULTS as error:  # the fault is named without what upstream would add to it
            note = f"its texts cannot be read again ({error})"
    change = change or told_by_checksum(stream.tokens[window], expected, stream.facts.vocab_size)
    said = ["is not as released", note] if change is None else [change.text, note, change.note]
    try:  # what names documents may be damaged too, which its own check says
        said.append("" if change is None else _token_of(stream, window, change.position))
        said.append(documents or _document_of(stream, window))
    except RELEASE_FAULTS:
        said.append(documents)
    return f"window {window:,} " + "\n".join(filter(None, said))


def _document_of(stream: RebuiltStream, window: int) -> str:
    """Name the document of a window of a padded stream that the manifests have none of."""
    if SIDECAR_FILE not in stream.files:
        return ""
    table = pq.read_table(stream.folder / SIDECAR_FILE, columns=["doc_id"])
    return f"it holds document {table.column('doc_id')[window].as_py()!r}"


def _token_of(stream: RebuiltStream, window: int, position: int) -> str:
    """Say which token of which document of a packed window that is."""
    kind = kind_in_manifests(stream.name)
    if kind is None or kind.layout != "packed":
        return ""
    spans = stream.checked.documents.index(stream.name).spans(window)
    (span,) = (one for one in spans if one.at <= position < one.until)
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


def _check_others(stream: RebuiltStream) -> str:
    names = list(stream.other_files)
    stream.require_digests(stream.other_files)
    return f"{', '.join(names[:3])}{' ...' if len(names) > 3 else ''}: SHA-256 as released"
