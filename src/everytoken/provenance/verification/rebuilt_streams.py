"""Whether streams are those that a release was made of: files, index, lengths, windows, sidecar.

The SHA-256 of a ``.bin`` says that all its tokens are right. Only where it is another one are the checksums of the
windows looked at, which say where. ``documents`` windows are looked at where not everything is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import CHECKSUMS_FILE, VERIFICATION_FOLDER, Release, window_checksums
from everytoken.provenance.verification.file_checks import open_array, read_canonical_ledger
from everytoken.provenance.verification.file_threads import Hashing
from everytoken.provenance.verification.findings import Finding, finding, require_equal, require_none
from everytoken.provenance.verification.manifest_rows import drawn_numbers, named_document
from everytoken.provenance.verification.sidecar_checks import DocumentOrder, check_sidecar, check_sidecar_rows
from everytoken.provenance.verification.upstream_checks import UpstreamTexts
from everytoken.provenance.verification.window_documents import WindowDocuments, kind_in_manifests
from everytoken.provenance.verification.window_faults import checksum, first_change, told_by_checksum
from everytoken.shards import LEDGER_FILE
from everytoken.tokens.streams import HEADER_BYTES, SIDECAR_FILE, TOKEN_LENGTHS_FILE, TokenizerFacts, stored_dtype

_READ = 1 << 24


@dataclass(frozen=True)
class RebuiltStream:
    """A stream, and what a release says of it.

    Attributes:
        name: of the stream.
        folder: where it lies.
        release: the release.
        sampled: how many windows are looked at; None: everything is read.
        seed: of the windows that are looked at.
        documents: tells which documents a window has.
        upstream: gives their texts, or None.
        hashing: hashes files.
        missing_in_release: its files that are not there, with the check that names them.
    """

    name: str
    folder: Path
    release: Release
    sampled: int | None
    seed: int
    documents: WindowDocuments
    upstream: UpstreamTexts | None
    hashing: Hashing
    missing_in_release: Mapping[Path, str]

    def checks(self) -> Iterator[Finding]:
        """Yield a finding for each thing that must hold; a file that is missing is named by ``files`` alone."""
        yield self._finding("files", self._check_files)
        yield self._finding("ledger", self._check_ledger)
        if f"{self.name}.bin" in self._files:
            yield self._finding("index", self._check_index)
            if TOKEN_LENGTHS_FILE in self._files:
                yield self._finding("lengths", self._check_lengths)
            yield self._finding("windows", self._check_windows)
        if SIDECAR_FILE in self._files:
            yield self._finding("sidecar", self._check_sidecar)
        if self.sampled is None and self._others:
            yield self._finding("other files", self._check_others)

    def _finding(self, what: str, run: Any) -> Finding:
        return finding(f"{self.name} {what}", run, {} if what == "files" else self.missing)

    @cached_property
    def missing(self) -> dict[Path, str]:
        """Files that are not there, of the release and of the stream, each with the check that names it."""
        own = {self.folder / name: f"{self.name} files" for name in self._files}
        return {**self.missing_in_release, **{path: check for path, check in own.items() if not path.is_file()}}

    @property
    def _described(self) -> Mapping[str, Any]:
        described: Mapping[str, Any] = self.release.streams[self.name]
        return described

    @property
    def _files(self) -> Mapping[str, Any]:
        files: Mapping[str, Any] = self._described["files"]
        return files

    @property
    def _verification(self) -> Path:
        return self.release.path / VERIFICATION_FOLDER / self.name

    @property
    def _others(self) -> dict[str, str]:
        own = {f"{self.name}.bin", f"{self.name}.idx", TOKEN_LENGTHS_FILE, SIDECAR_FILE}
        return {name: entry["sha256"] for name, entry in self._files.items() if name not in own}

    @property
    def _window(self) -> int:
        return int(self.release.parameters("tokenization")["seq_length"]) + 1

    @property
    def _facts(self) -> TokenizerFacts:
        return TokenizerFacts(**self._described["statistics"]["tokenizer"])

    @cached_property
    def _windows(self) -> int:
        return int(self._described["statistics"]["windows"])

    @cached_property
    def tokens(self) -> np.ndarray:
        """The windows as far as the file goes, (n, window)."""
        path, kind = self.folder / f"{self.name}.bin", stored_dtype(self._facts.dtype)
        whole = path.stat().st_size // (self._window * kind.itemsize)
        if not whole:
            return np.empty((0, self._window), kind)
        return np.memmap(path, kind, "r", shape=(whole, self._window))

    @cached_property
    def _looked_at(self) -> list[int]:
        """Numbers of the windows of the sample, with the first and the last."""
        if not self._windows or self.sampled is None:
            return []
        drawn = drawn_numbers(self._windows, self.sampled, self.seed)
        numbers: list[int] = np.unique(np.concatenate([[0, self._windows - 1], drawn])).tolist()
        return numbers

    def _check_files(self) -> str:
        faults = []
        for name, entry in sorted(self._files.items()):
            path = self.folder / name
            if not path.is_file():
                faults.append(f"{path} is missing")
            elif name != SIDECAR_FILE and (size := path.stat().st_size) != entry["bytes"]:
                faults.append(f"{path}: expected {entry['bytes']:,} bytes, found {size:,}")
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and not name.startswith(".") and name != LEDGER_FILE and name not in self._files:
                faults.append(f"{path}: the release knows no such file of this stream")
        require_none(faults)
        return f"{len(self._files):,} files, {sum(entry['bytes'] for entry in self._files.values()):,} bytes"

    def _check_ledger(self) -> str:
        path = self.folder / LEDGER_FILE
        if not path.exists():
            return "there is none; the release says what the files are"
        ledger = read_canonical_ledger(path)
        require_equal(f"{path}: root digest", ledger["root_digest"], self._described["root_digest"])
        faults, hashed = [], {}
        for name, entry in ledger["files"].items():
            if (file := self.folder / name).is_file() and file.stat().st_size != entry["bytes"]:
                faults.append(f"{file}: expected {entry['bytes']:,} bytes, found {file.stat().st_size:,}")
            elif file.is_file() and (name == SIDECAR_FILE or name not in self._files):
                hashed[name] = entry["sha256"]
        if self.sampled is None:
            faults += self.hashing.wrong(self.folder, hashed)
        require_none(faults)
        return f"root digest {ledger['root_digest'][:16]} as released"

    def _check_index(self) -> str:
        path, released = self.folder / f"{self.name}.idx", self._verification / f"{self.name}.idx"
        require_equal(f"{path}: bytes", path.stat().st_size, released.stat().st_size)
        if not path.stat().st_size:
            return "0 bytes"
        found, expected = (np.memmap(one, np.uint8, "r") for one in (path, released))
        if self.sampled is None:
            spans = [(at, min(at + _READ, len(found))) for at in range(0, len(found), _READ)]
        else:
            of_window = ((w * 4, self._windows * 4 + w * 8, self._windows * 12 + w * 8) for w in self._looked_at)
            spans = [
                (0, HEADER_BYTES),
                *((HEADER_BYTES + at, HEADER_BYTES + at + 8) for ats in of_window for at in ats),
            ]
        for start, end in spans:
            if (wrong := found[start:end] != expected[start:end]).any():
                at = start + int(np.argmax(wrong))
                raise ProvenanceError(
                    f"{path} byte {at:,} ({self._index_entry(at)}): expected {expected[at]}, found {found[at]}"
                )
        return f"{self._windows:,} windows, {sum(end - start for start, end in spans):,} bytes as released"

    def _index_entry(self, at: int) -> str:
        at -= HEADER_BYTES
        for what, width in (("length", 4), ("place", 8), ("document", 8)):
            if 0 <= at < width * self._windows:
                return f"{what} of window {at // width:,}"
            at -= width * self._windows
        return "its header" if at < 0 else "the end of its documents"

    def _check_lengths(self) -> str:
        path, released = self.folder / TOKEN_LENGTHS_FILE, self._verification / TOKEN_LENGTHS_FILE
        found, expected = (open_array(one, self._windows, np.int32) for one in (path, released))
        numbers = np.arange(self._windows) if self.sampled is None else np.array(self._looked_at, np.int64)
        if (wrong := found[numbers] != expected[numbers]).any():
            window = int(numbers[np.argmax(wrong)])
            raise ProvenanceError(
                f"{path} window {window:,}: expected token_length {expected[window]}, found {found[window]}\n"
                + self.documents.named(self.name, window)
            )
        if self.sampled is None:
            require_none(self.hashing.wrong(self.folder, {path.name: self._files[path.name]["sha256"]}))
        return f"{len(numbers):,} of {self._windows:,} lengths as released"

    def _check_windows(self) -> str:
        path, sums = self.folder / f"{self.name}.bin", self._verification / CHECKSUMS_FILE
        if self.sampled is not None:
            expected = open_array(sums, self._windows, np.uint32)
            for window in self._looked_at:
                if window >= len(self.tokens):
                    raise ProvenanceError(f"{path} ends before window {window:,}")
                if checksum(self.tokens[window]) != int(expected[window]):
                    raise ProvenanceError(f"{path} {self._fault(window, int(expected[window]))}")
            return f"{len(self._looked_at):,} of {self._windows:,} windows have their CRC-32"
        digest = self._files[path.name]["sha256"]
        if (found := self.hashing.sha256(path)) == digest:
            return f"{self._windows:,} windows of {self._window:,} tokens, SHA-256 {digest[:16]}"
        fault = (
            self._first_fault(open_array(sums, self._windows, np.uint32)) if sums.is_file() else "is not as released"
        )
        raise ProvenanceError(f"{path} {fault}\nSHA-256 of the file: expected {digest[:16]}, found {found[:16]}")

    def _first_fault(self, expected: np.ndarray) -> str:
        """Say which window is the first that is not as released, what it holds, and how many there are."""
        path, size = self.folder / f"{self.name}.bin", self.tokens.dtype.itemsize * self._window
        if path.stat().st_size != self._windows * size:
            return f"ends in window {path.stat().st_size // size:,}, expected {self._windows:,} windows"
        first, others, window = None, 0, 0
        for found in window_checksums(path, size):
            wrong = np.flatnonzero(found != expected[window : window + len(found)])
            if len(wrong) and first is None:
                first = window + int(wrong[0])
            others += len(wrong)
            window += len(found)
        if first is None:
            return "has windows that all have their CRC-32"
        more = f"\nwindows that differ besides: {others - 1:,}" if others > 1 else ""
        return self._fault(first, int(expected[first])) + more

    def _fault(self, window: int, expected: int) -> str:
        """Say which token of a window differs, and in lines after that which documents the window holds."""
        change, note = None, ""
        if self.upstream is not None and kind_in_manifests(self.name):
            try:
                change = first_change(self.upstream.window(self.name, window, self.documents), self.tokens[window])
                note = "" if change else "its tokens are those of its texts: the checksum of the release is wrong"
            except Exception as error:  # the fault is named without what upstream would add to it
                note = f"its texts cannot be read again ({error})"
        change = change or told_by_checksum(self.tokens[window], expected, self._facts.vocab_size)
        said = [
            f"window {window:,} {'is not as released' if change is None else change.text}",
            note,
            "" if change is None else change.note,
            "" if change is None else self._token_of(window, change.position),
            self.documents.named(self.name, window) or self._of_sidecar(window),
        ]
        return "\n".join(filter(None, said))

    def _of_sidecar(self, window: int) -> str:
        """Name the document of a window of a padded stream that the manifests have none of."""
        if SIDECAR_FILE not in self._files:
            return ""
        try:
            table = pq.read_table(self.folder / SIDECAR_FILE, columns=["doc_id"])
            return f"it holds document {table.column('doc_id')[window].as_py()!r}"
        except Exception:  # the sidecar is damaged too, which its own check names
            return ""

    def _token_of(self, window: int, position: int) -> str:
        """Say which token of which document of a packed window that is."""
        kind = kind_in_manifests(self.name)
        if kind is None or kind.layout != "packed":
            return ""
        try:
            spans = self.documents.spans(self.name, window)
            (span,) = (one for one in spans if one.at <= position < one.until)
        except Exception:  # the manifests are damaged too, which their own checks name
            return ""
        token = span.first + position - span.at
        return f"token {token:,} of {named_document(self.release, kind.split, span.document)}"

    def _check_sidecar(self) -> str:
        path, entry = self.folder / SIDECAR_FILE, self._files[SIDECAR_FILE]
        kind = kind_in_manifests(self.name)
        documents = None if kind is None else DocumentOrder(self.release, kind.split, self.documents.order(self.name))
        if self.sampled is None:
            said = check_sidecar(path, entry["content_digest"], documents)
            same_file = self.hashing.sha256(path) == entry["sha256"]
            return said if same_file else f"{said}, in a file of other bytes (as other versions write it)"
        if documents is None:
            return "not looked at: the manifest has none of its documents"
        return check_sidecar_rows(path, self._looked_at, documents)

    def _check_others(self) -> str:
        """Files that no other check reads: raw shards and their manifest, a loss mask."""
        there = {name: digest for name, digest in self._others.items() if (self.folder / name).is_file()}
        require_none(self.hashing.wrong(self.folder, there))
        return f"{', '.join(list(there)[:3])}{' ...' if len(there) > 3 else ''}: SHA-256 as released"
