"""Whether the files of a release are those that were released: SHA256SUMS, the ledger, and every file.

Three files say what the others are: ``SHA256SUMS`` (all but itself and ``ledger.json``), ``ledger.json`` (all but
itself), and the ledger's own checksum. Both must be in the one form in which they are written, so that no bit of them
is free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import SUMS_FILE, read_bounded, require_inside, require_path, require_regular
from everytoken.provenance.verification.file_threads import Hashing
from everytoken.provenance.verification.findings import require_equal, require_none
from everytoken.seeds import numpy_generator
from everytoken.shards import (
    LEDGER_FILE,
    ShardsError,
    artifact_ledger_text,
    file_sha256,
    parse_artifact_ledger,
    require_root_digest,
)

AGAIN = "copy the release again"
_SMALL = 64 << 20
_HEX = frozenset("0123456789abcdef")


def read_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by ``SHA256SUMS``, whose form must be the canonical one.

    That is what ``sha256sum -c`` reads: a line ``<64 lower-case hex digits>  <path>`` for each file, sorted by path.

    Raises:
        ProvenanceError: names the first line that is not so.
    """
    path = folder / SUMS_FILE
    sums: dict[str, str] = {}
    *lines, rest = read_bounded(path).decode("utf-8", "surrogateescape").split("\n")
    if rest:
        raise ProvenanceError(f"{path}: expected a newline at the end, found {rest[:80]!r}")
    last = ""
    for number, line in enumerate(lines, start=1):
        digest, name = line[:64], line[66:]
        if len(digest) < 64 or not _HEX.issuperset(digest) or line[64:66] != "  ":
            raise ProvenanceError(f"{path} line {number}: expected <SHA-256 in hex>  <path>, found {line[:100]!r}")
        parts = PurePosixPath(name).parts
        if not parts or name != PurePosixPath(name).as_posix() or parts[0] == "/" or ".." in parts or "\\" in name:
            raise ProvenanceError(f"{path} line {number}: expected a path inside the release, found {name!r}")
        require_path(name, f"{path} line {number}")
        if name <= last:
            raise ProvenanceError(f"{path} line {number}: expected paths in order, found {name!r} after {last!r}")
        sums[name], last = digest, name
    return sums


def read_canonical_ledger(path: Path) -> dict[str, Any]:
    """Return the ledger of an artifact; its bytes must be those that it is written as.

    Raises:
        ProvenanceError: it is none, was edited, or is written in another way.
    """
    content = read_bounded(path)
    try:
        ledger = parse_artifact_ledger(path)
        require_root_digest(path, ledger)
    except ShardsError as error:
        raise ProvenanceError(str(error)) from error
    written = artifact_ledger_text(ledger).encode()
    if written != content:
        at = next((i for i, (a, b) in enumerate(zip(written, content, strict=False)) if a != b), len(written))
        raise ProvenanceError(f"{path}: byte {at:,} is not what a ledger of this content has")
    return ledger


def recorded_sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by the ledger.

    Raises:
        ProvenanceError: see `read_canonical_ledger`.
    """
    files = read_canonical_ledger(folder / LEDGER_FILE)["files"]
    return {name: entry["sha256"] for name, entry in files.items() if name != SUMS_FILE}


def check_sums(folder: Path) -> str:
    """``SHA256SUMS`` is in its form, lists what is there, and nothing else is there."""
    sums = read_sums(folder)
    missing = [f"{folder / name} is missing: {AGAIN}" for name in sums if not (folder / name).is_file()]
    for listed in sums:
        if (folder / listed).is_file():
            require_inside(folder, listed)
    unlisted, hidden = [], 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_dir() or name.as_posix() in (SUMS_FILE, LEDGER_FILE) or name.as_posix() in sums:
            continue
        if any(part.startswith(".") for part in name.parts):
            hidden += 1
        else:
            unlisted.append(f"{path}: {SUMS_FILE} lists no such file")
    require_none(missing + unlisted)
    note = f", {hidden:,} hidden files that it does not list" if hidden else ""
    return f"{len(sums):,} files{note}"


def check_ledger(folder: Path, sums: Mapping[str, str]) -> str:
    """The ledger agrees with ``SHA256SUMS``; it also has the size of every file, and the digest of ``SHA256SUMS``."""
    path = folder / LEDGER_FILE
    if not path.exists():
        return f"there is none: {SUMS_FILE} alone says what the files are"
    ledger = read_canonical_ledger(path)
    files = ledger["files"]
    require_regular(folder / SUMS_FILE)
    faults = []
    if (found := file_sha256(folder / SUMS_FILE)) != files.get(SUMS_FILE, {}).get("sha256"):
        faults.append(f"{folder / SUMS_FILE}: its SHA-256 is {found[:16]}, the ledger has another")
    for name in sorted({*sums, *files} - {SUMS_FILE}):
        entry = files.get(name)
        if entry is None or name not in sums:
            faults.append(f"{name} is only in {LEDGER_FILE if entry else SUMS_FILE}")
        elif entry["sha256"] != sums[name]:
            faults.append(f"{name}: SHA-256 {sums[name][:16]} in {SUMS_FILE}, {entry['sha256'][:16]} in {LEDGER_FILE}")
        elif (folder / name).is_file() and (size := (folder / name).stat().st_size) != entry["bytes"]:
            faults.append(f"{folder / name}: expected {entry['bytes']:,} bytes, found {size:,}")
    require_none(faults)
    return f"{len(files):,} files, {sum(entry['bytes'] for entry in files.values()):,} bytes as recorded"


def check_digests(folder: Path, sums: Mapping[str, str], names: Collection[str], hashing: Hashing) -> str:
    """The files ``names`` have their SHA-256."""
    wanted = [name for name in sums if name in names and (folder / name).is_file()]
    require_none(hashing.wrong(folder, {name: sums[name] for name in wanted}))
    size = sum((folder / name).stat().st_size for name in wanted)
    return f"{len(wanted):,} of {len(sums):,} files have their SHA-256, {size:,} bytes"


def sampled_files(folder: Path, sums: Mapping[str, str], count: int, seed: int) -> set[str]:
    """Return files to hash where not all are: all that are no data, and ``count`` seeded ones of at most 64 MiB."""
    small = [name for name in sums if _size(folder / name) <= _SMALL]
    data = [name for name in small if name.endswith((".parquet", ".npy", ".idx"))]
    drawn: Sequence[int] = numpy_generator(seed, len(data)).permutation(len(data))[:count].tolist()
    return (set(small) - set(data)) | {data[i] for i in drawn}


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def open_array(path: Path, rows: int, kind: type[np.generic]) -> np.ndarray:
    """Map an array of NumPy, (rows,).

    Raises:
        ProvenanceError: it is none, or another one.
    """
    try:
        array: np.ndarray = np.load(path, mmap_mode="r" if rows else None)  # an empty file cannot be mapped
    except Exception as error:  # a damaged header raises what the parser of Python raises
        raise ProvenanceError(f"{path} is no array of NumPy, or is cut ({error})") from error
    require_equal(f"{path}: shape and type", (array.shape, array.dtype.name), ((rows,), np.dtype(kind).name))
    return array
