"""One folder of a checkpoint: the files of its writer, ``state.json``, and ``SHA256SUMS`` over all of them.

`sha256sum -c SHA256SUMS` verifies it too, but for files that are too many. `everytoken.training.checkpoints.store`
keeps several of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken.checks import Mismatch
from everytoken.shards import ShardsError, canonical_json, file_sha256, in_threads, plain_json
from everytoken.training.errors import CheckpointError

STATE_FILE = "state.json"
CHECKPOINT_SUMS_FILE = "SHA256SUMS"
_FORMAT = "everytoken-training-state/1"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")  # what sha256sum does not escape
_SUM = re.compile(rf"([0-9a-f]{{64}})  ({_PLAIN_NAME.pattern})")
_COPIED = 1 << 22  # bytes at a time


@dataclass(frozen=True)
class Content:
    """The bytes of a checkpoint: SHA-256 of ``SHA256SUMS``; SHA-256 and size of each file that it lists."""

    digest: str
    sums: dict[str, str]
    sizes: dict[str, int]

    def looks_unchanged(self, folder: Path) -> bool:
        """Return whether names, sizes and ``SHA256SUMS`` of ``folder`` are these; the files are not read."""
        try:
            sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.name != CHECKPOINT_SUMS_FILE}
            return sizes == self.sizes and file_sha256(folder / CHECKPOINT_SUMS_FILE) == self.digest
        except OSError:
            return False


def step_name(step: int) -> str:
    """Return the name of the folder of a step."""
    return f"step_{step:09d}"


def state_document(step: int, state: Mapping[str, Any]) -> str:
    """Return what ``state.json`` holds; raise ``CheckpointError`` for a state that JSON does not give back."""
    if step < 0:
        raise CheckpointError(f"a checkpoint of step {step}: expected 0 or more steps done")
    try:
        plain = plain_json(state, "state")
    except ShardsError as error:
        raise CheckpointError(f"the checkpoint of step {step} cannot be written: {error}") from error
    return canonical_json({"format": _FORMAT, "step": step, "state": plain}) + "\n"


def complete(folder: Path, document: str) -> Content:
    """Add ``state.json`` and ``SHA256SUMS`` to the files in ``folder``."""
    paths = sorted(folder.iterdir())
    for path in paths:
        if path.is_symlink() or not path.is_file() or not _PLAIN_NAME.fullmatch(path.name):
            raise CheckpointError(
                f"{path}: a checkpoint holds only files, with names of letters, digits, '.', '-' and '_'"
            )
        if path.name in (STATE_FILE, CHECKPOINT_SUMS_FILE):
            raise CheckpointError(f"{path}: this file is written by the store; give the other one another name")
    (folder / STATE_FILE).write_text(document, encoding="utf-8")
    names = sorted([*(path.name for path in paths), STATE_FILE])
    sums = _hash_files(folder, names)
    data = "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode()
    (folder / CHECKPOINT_SUMS_FILE).write_bytes(data)
    return Content(hashlib.sha256(data).hexdigest(), sums, {name: (folder / name).stat().st_size for name in names})


def copy_files(original: Path, content: Content, folder: Path) -> None:
    """Copy a checkpoint into the empty ``folder``; raise ``CheckpointError`` when what is read is not ``content``."""
    expected = {**content.sums, CHECKPOINT_SUMS_FILE: content.digest}
    for name, expected_sum in expected.items():
        digest = hashlib.sha256()
        with (original / name).open("rb") as source, (folder / name).open("wb") as target:
            while block := source.read(_COPIED):
                digest.update(block)
                target.write(block)
        if digest.hexdigest() != expected_sum:
            raise CheckpointError(
                f"{original / name} is not what was written: expected SHA-256 {expected_sum}, found "
                f"{digest.hexdigest()}"
            )


def look_alike(first: Path, second: Path) -> bool:
    """Return whether two folders have the same names, sizes and ``SHA256SUMS``; their other files are not read."""
    try:
        sizes = [{path.name: path.stat().st_size for path in folder.iterdir()} for folder in (first, second)]
        return (
            sizes[0] == sizes[1]
            and (first / CHECKPOINT_SUMS_FILE).read_bytes() == (second / CHECKPOINT_SUMS_FILE).read_bytes()
        )
    except OSError:
        return False


def verify_checkpoint(folder: Path, *, full: bool = True) -> tuple[int, dict[str, Any], Content]:
    """Read all of a checkpoint; return its step, its state and its content.

    Args:
        full: compare the SHA-256 of every file; else only the names of the files.

    Raises:
        CheckpointError: a file is missing, too many, or not what was written; with expected and found.
    """
    content = verify_files(folder, full=full)
    try:
        step, state = _parse_state(folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: expected a whole checkpoint, found: {error}") from error
    return step, state, content


def verify_files(folder: Path, *, full: bool = True) -> Content:
    """Read all files of a checkpoint, wherever it was copied to; return its content; errors of `verify_checkpoint`."""
    try:
        sums_bytes = (folder / CHECKPOINT_SUMS_FILE).read_bytes()
        sums = _parse_sums(folder / CHECKPOINT_SUMS_FILE, sums_bytes)
        names = {path.name for path in folder.iterdir()} - {CHECKPOINT_SUMS_FILE}
        for name in sorted(sums.keys() ^ names):
            listed = ("a file", "none")
            unlisted = (f"no such file ({CHECKPOINT_SUMS_FILE} does not list it)", "one")
            raise Mismatch(str(folder / name), *(listed if name in sums else unlisted))
        for name, found in _hash_files(folder, sums if full else ()).items():
            if found != sums[name]:
                raise Mismatch(str(folder / name), f"SHA-256 {sums[name]}", found)
        sizes = {name: (folder / name).stat().st_size for name in sums}
    except Mismatch as error:
        raise CheckpointError(str(error)) from error
    except OSError as error:
        raise CheckpointError(f"{folder}: expected a whole checkpoint, found: {error}") from error
    return Content(hashlib.sha256(sums_bytes).hexdigest(), sums, sizes)


def _parse_sums(path: Path, data: bytes) -> dict[str, str]:
    *lines, rest = data.decode("ascii", errors="replace").split("\n")
    matches = [match for line in lines if (match := _SUM.fullmatch(line))]
    sums = {match[2]: match[1] for match in matches}
    if rest or len(sums) != len(lines) or STATE_FILE not in sums:
        raise CheckpointError(
            f"{path}: expected whole lines '<SHA-256>  <name>', one of them of {STATE_FILE}, found {len(data)} bytes "
            "that are not"
        )
    return sums


def _parse_state(folder: Path) -> tuple[int, dict[str, Any]]:
    path = folder / STATE_FILE
    try:
        document = json.loads(path.read_bytes())
        found_format, step, state = document["format"], int(document["step"]), document["state"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: expected format, step and state, found none ({error!r})") from error
    if (found_format, step_name(step)) != (_FORMAT, folder.name):
        raise CheckpointError(
            f"{path}: expected {_FORMAT!r} of {folder.name}, found {found_format!r} of {step_name(step)}: another "
            "version wrote it, or the folder was renamed"
        )
    return step, state


def _hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    listed = list(names)
    return dict(zip(listed, in_threads(file_sha256, [folder / name for name in listed]), strict=True))
