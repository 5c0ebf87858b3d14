"""Whether the files of a release are those that were released: SHA256SUMS, the ledger, and every file.

Three files say what the others are: ``SHA256SUMS`` (all but itself and ``ledger.json``), ``ledger.json`` (all but
itself), and the ledger's own checksum. Both must be in the one form in which they are written, so that no bit of them
is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everytoken.checks import require_files, require_none, wrong_sizes
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    BOUNDARIES_FILE,
    RECIPE_FILE,
    STREAMS_FILE,
    SUMS_FILE,
    UPSTREAM_FILE,
    open_release,
    read_bounded,
    read_sums,
    require_inside,
    require_regular,
)
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.seeds import numpy_generator
from everytoken.shards import LEDGER_FILE, artifact_ledger_text, file_sha256, parse_artifact_ledger, require_root_digest

_SMALL = 64 << 20


def _require_written(path: Path, written: str, what: str) -> None:
    """Check that the bytes of a file are those in which its content is written."""
    expected, found = written.encode("utf-8", "surrogateescape"), read_bounded(path)
    if found != expected:
        at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), len(expected))
        raise ProvenanceError(f"{path}: byte {at:,} is not what {what} of this content has")


def check_sums(checked: CheckedRelease) -> str:
    """``SHA256SUMS`` is in its form, lists what is there, and nothing else is there."""
    folder = checked.folder
    checked.sums = sums = read_sums(folder)
    written = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    _require_written(folder / SUMS_FILE, written, "a sorted list")
    for listed in sums:
        if (folder / listed).is_file():
            require_inside(folder, listed)
    again = ": copy the release again"
    hidden = require_files(folder, dict.fromkeys(sums), f"{SUMS_FILE} lists", remedy=again, own=(SUMS_FILE,))
    note = f", {hidden:,} hidden files that it does not list" if hidden else ""
    return f"{len(sums):,} files{note}"


def read_canonical_ledger(path: Path) -> dict[str, Any]:
    """Return the ledger of an artifact; its bytes must be those that it is written as.

    Raises:
        ProvenanceError: it is written in another way.
        DamagedStore: it is none, or was edited.
    """
    read_bounded(path)
    ledger = parse_artifact_ledger(path)
    require_root_digest(path, ledger)
    _require_written(path, artifact_ledger_text(ledger), "a ledger")
    return ledger


def check_ledger(checked: CheckedRelease) -> str:
    """The ledger agrees with ``SHA256SUMS``; it also has the size of every file, and the digest of ``SHA256SUMS``."""
    folder, path = checked.folder, checked.folder / LEDGER_FILE
    if not path.exists():
        return f"there is none: {SUMS_FILE} alone says what the files are"
    files = read_canonical_ledger(path)["files"]
    digests = {name: entry["sha256"] for name, entry in files.items()}
    if not checked.sums:  # SHA256SUMS is damaged or missing
        checked.sums = {name: digest for name, digest in digests.items() if name != SUMS_FILE}
    require_regular(folder / SUMS_FILE)
    sums = {**checked.sums, SUMS_FILE: file_sha256(folder / SUMS_FILE)}
    faults = []
    for name in sorted(sums.keys() | digests.keys()):
        said, found = (listed.get(name, "none") for listed in (digests, sums))
        if said != found:
            faults.append(f"{folder / name}: SHA-256 {said[:16]} in {LEDGER_FILE}, found {found[:16]}")
    sizes = {name: entry["bytes"] for name, entry in files.items()}
    require_none(faults + wrong_sizes(folder, sizes))
    return f"{len(files):,} files, {sum(sizes.values()):,} bytes as recorded"


def check_digests(checked: CheckedRelease) -> str:
    """Files have their SHA-256: all, or the sampled ones."""
    folder, sums = checked.folder, checked.sums
    sizes = {name: (folder / name).stat().st_size for name in sums if (folder / name).is_file()}
    if checked.sampled is not None:
        chosen = _sampled_files(sizes, checked.sampled, checked.seed)
        sizes = {name: size for name, size in sizes.items() if name in chosen}
    require_none([*checked.hashing.wrong(folder, {name: sums[name] for name in sizes}).values()])
    return f"{len(sizes):,} of {len(sums):,} files have their SHA-256, {sum(sizes.values()):,} bytes"


def _sampled_files(sizes: dict[str, int], count: int, seed: int) -> set[str]:
    """Return files to hash where not all are: all that are no data, and ``count`` seeded ones of at most 64 MiB."""
    small = [name for name, size in sizes.items() if size <= _SMALL]
    data = [name for name in small if name.endswith((".parquet", ".npy", ".idx"))]
    drawn: Sequence[int] = numpy_generator(seed, len(data)).permutation(len(data))[:count].tolist()
    return (set(small) - set(data)) | {data[i] for i in drawn}


def check_release(checked: CheckedRelease) -> str:
    """Its JSON files can be opened and have their form."""
    for name in (RECIPE_FILE, UPSTREAM_FILE, BOUNDARIES_FILE, SUMS_FILE, STREAMS_FILE):
        require_regular(checked.folder / name)
    release = open_release(checked.folder)
    said = f"digest {release.digest}, streams {', '.join(release.streams) or 'none'}"
    checked.opened = release
    return f"{release.recipe['format']}, {said}"
