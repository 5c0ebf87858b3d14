"""The checkpoints of a run: several generations on disk, each whole or not there, each proved by its digests.

``<run>/step_000000010/`` is a checkpoint (see `everytoken.training.checkpoints.checkpoint_folder`); nothing else may
stand in a run's folder.

Writing. A checkpoint is written beside its place, hashed, flushed to disk and renamed; then the same for the copy under
the mirror. One process at a time writes a run's folder. A killed save leaves a temporary that the next one removes, and
a copy that failed is made up for by the next run (`CheckpointStore.complete_mirror`).

Which stay. In each of the two places: the one just written; from the newest down to the second that is good; all whose
step is a multiple of ``milestone_steps``. Others are deleted, once the new one is whole in both. Good is what this
process wrote or read in full, if names, sizes and ``SHA256SUMS`` are the same still; any other is read in full, once.
So a damaged checkpoint does not count as one of the two, and a save seldom reads old tensors.

Reading. From the newest to the oldest, at each step the run's folder before the mirror: the first in which every file
has its SHA-256 and none is missing or too many. What is passed over is logged, with the reason.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from everytoken.shards import StoreBusy, atomic_folder, fsync_folder, remove_temporaries, sole_writer
from everytoken.training.checkpoints.checkpoint_folder import (
    Content,
    complete,
    copy_files,
    look_alike,
    state_document,
    step_name,
    verify_checkpoint,
    verify_files,
)
from everytoken.training.errors import CheckpointError

logger = logging.getLogger(__name__)

_STEP = re.compile(r"step_(\d{9,})")
_TEMPORARY = re.compile(r"\.step_\d{9,}\.\d+(\.old)?\.tmp")
_GENERATIONS = 2


@dataclass(frozen=True)
class ValidCheckpoint:
    """A checkpoint that verified.

    ``state`` is what was given to `CheckpointStore.save`; ``digest`` is the SHA-256 of its ``SHA256SUMS``, and so
    stands for all its bytes; ``skipped`` says of each newer one (or copy) why it was passed over.
    """

    step: int
    folder: Path
    state: dict[str, Any]
    digest: str
    skipped: tuple[str, ...] = ()


class CheckpointStore:
    """The checkpoints of one run.

    Args:
        root: the folder of this run, and of nothing else.
        mirror: the folder of the copies, best on another disk; None for none.
        milestone_steps: checkpoints at its multiples stay for good; None for none.
    """

    def __init__(self, root: Path, *, mirror: Path | None, milestone_steps: int | None) -> None:
        if milestone_steps is not None and milestone_steps < 1:
            raise CheckpointError(f"milestone_steps is {milestone_steps}, expected at least 1, or None for none")
        if mirror is not None and _one_holds_the_other(root.resolve(), mirror.resolve()):
            raise CheckpointError(f"the mirror {mirror} and the run's folder {root} must not hold each other")
        self.root, self.mirror, self.milestone_steps = root, mirror, milestone_steps
        self._locked = False
        self._known: dict[Path, Content] = {}  # what this process wrote or read in full

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer of this run; hold it around `newest` and the training that follows.

        Makes the folder and removes what killed saves left there. `save` does the same when nobody holds it.

        Raises:
            CheckpointError: another process writes this run, or the folder holds other things or cannot be made.
        """
        if self._locked:
            yield
            return
        with _sole_writer(self.root):
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def save(self, step: int, files: Callable[[Path], None], state: Mapping[str, Any]) -> str:
        """Write the checkpoint of ``step`` whole, copy it to the mirror, delete those that need not stay.

        A step that is there already with the same bytes is kept; a damaged one is replaced.

        Args:
            files: writes its files, and no folder, into the empty folder that it is given.
            state: plain JSON, no NaN.

        Returns:
            The digest of the checkpoint, as in `ValidCheckpoint`.

        Raises:
            CheckpointError: it could not be written, and those before it are as they were; or it is whole, but its copy
                could not be written, or an old one not be deleted. The message says which.
        """
        document = state_document(step, state)

        def write(folder: Path) -> Content:
            files(folder)
            return complete(folder, document)

        with self.writing():
            original = self.root / step_name(step)
            try:
                content = self._put(original, write)
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{original}: the checkpoint could not be written: {error} ({_free(self.root)}). Those before it "
                    "are as they were: free space or mend the disk, then run the same command again; it goes on from "
                    "the newest"
                ) from error
            if self.mirror is not None:
                self._save_copy(original, content, self.mirror)
            self._prune(self.root, step)
            return content.digest

    def newest(self) -> ValidCheckpoint | None:
        """Return the newest checkpoint that verifies, of the run's folder and the mirror; None when there are none.

        Raises:
            CheckpointError: there are some and none verifies, or a folder holds other things.
        """
        places = [place for place in (self.root, self.mirror) if place is not None]
        found = [(step, -rank, place / step_name(step)) for rank, place in enumerate(places) for step in _steps(place)]
        skipped: list[str] = []
        for _, _, folder in sorted(found, reverse=True):
            try:
                step, state, content = verify_checkpoint(folder)
            except CheckpointError as error:
                logger.warning("skipped a checkpoint: %s", error)
                skipped.append(str(error))
            else:
                self._known[folder] = content
                return ValidCheckpoint(step, folder, state, content.digest, tuple(skipped))
        if skipped:
            raise CheckpointError(
                f"{self.root}: none of {len(skipped)} checkpoints verifies:\n  "
                + "\n  ".join(skipped)
                + "\nBring a good one back from elsewhere, or move these away to train from the first step"
            )
        return None

    def kept(self) -> list[tuple[int, Content]]:
        """Return step and content of each checkpoint in the run's folder, the oldest first.

        Only names and ``SHA256SUMS`` are read. A checkpoint that lacks a file is left out, with a warning.
        """
        found = []
        for step in sorted(_steps(self.root)):
            try:
                found.append((step, verify_files(self.root / step_name(step), full=False)))
            except CheckpointError as error:
                logger.warning("a damaged checkpoint is not recorded: %s", error)
        return found

    def complete_mirror(self) -> None:
        """Copy to the mirror what it should have and does not: a copy failed, or its process was killed.

        What is there with the same names, sizes and ``SHA256SUMS`` is not read. Removes what killed copies left.

        Raises:
            CheckpointError: a copy could not be written.
        """
        if self.mirror is None:
            return
        with self.writing():
            missing = self._missing_copies(self.mirror)
            for folder in missing:
                logger.info("copying %s to the mirror %s, which lacks it", folder, self.mirror)
                self._save_copy(folder, self._known[folder], self.mirror)
            if not missing and self.mirror.exists():
                with _sole_writer(self.mirror):
                    return  # its temporaries are gone

    def _missing_copies(self, mirror: Path) -> list[Path]:
        """Return the good checkpoints that would stay, without a copy that looks like them; the newest first."""
        good, missing = 0, []
        for step in sorted(_steps(self.root), reverse=True):
            if good >= _GENERATIONS and (self.milestone_steps is None or step % self.milestone_steps):
                continue
            folder = self.root / step_name(step)
            copied = look_alike(folder, mirror / folder.name)
            if copied or self._is_good(folder):
                good += 1
                missing += [] if copied else [folder]
        return missing

    def _put(self, target: Path, write: Callable[[Path], Content]) -> Content:
        """Let ``write`` fill a folder that then takes the name ``target``."""
        try:
            with atomic_folder(target) as folder:
                content = write(folder)
                _check_replaceable(target, content)
        except _AlreadyThere:
            logger.info("%s is there with the same bytes", target)
        self._known[target] = content
        return content

    def _save_copy(self, original: Path, content: Content, mirror: Path) -> None:
        def write(folder: Path) -> Content:
            copy_files(original, content, folder)
            return content

        step = int(original.name.removeprefix("step_"))
        try:
            with _sole_writer(mirror):
                self._put(mirror / original.name, write)
                self._prune(mirror, step)
        except (OSError, CheckpointError) as error:
            raise CheckpointError(
                f"{original} is written, its copy in the mirror {mirror} is not: {error} ({_free(mirror)}). Mend the "
                "mirror, or set checkpoints.mirror to another folder or null; then run the same command again: it goes "
                f"on from step {max(int(known.name.removeprefix('step_')) for known in self._known)}"
            ) from error

    def _prune(self, place: Path, written: int) -> None:
        """Delete what is older than the second good checkpoint and neither a milestone nor the one just written."""
        good = 0
        for step in sorted(_steps(place), reverse=True):
            folder = place / step_name(step)
            if good < _GENERATIONS:
                good += self._is_good(folder)
            elif step != written and (self.milestone_steps is None or step % self.milestone_steps):
                self._known.pop(folder, None)
                _delete(folder, place / step_name(written))

    def _is_good(self, folder: Path) -> bool:
        if folder in self._known:
            return self._known[folder].looks_unchanged(folder)
        try:
            self._known[folder] = verify_checkpoint(folder)[2]
        except CheckpointError as error:
            logger.warning("a damaged checkpoint does not count as one of the newest: %s", error)
            return False
        return True


class _AlreadyThere(Exception):
    """The checkpoint that is to take its place is there, byte for byte."""


def _check_replaceable(target: Path, content: Content) -> None:
    """Raise unless ``target`` is not there, or damaged: a good one keeps its place, for there may be no other."""
    if not target.exists():
        return
    try:
        there = verify_checkpoint(target)[2]
    except CheckpointError as error:
        logger.warning("a damaged checkpoint is replaced: %s", error)
        return
    if there.digest == content.digest:
        raise _AlreadyThere
    differing = [name for name in sorted(there.sums | content.sums) if there.sums.get(name) != content.sums.get(name)]
    raise CheckpointError(
        f"{target} is there and verifies: expected the same bytes to write again, found others in "
        f"{', '.join(differing)}. To keep the new ones, move the old folder away"
    )


@contextmanager
def _sole_writer(place: Path) -> Iterator[None]:
    """Hold the lock of ``place``, made if need be and cleared of the temporaries of killed saves."""
    with ExitStack() as lock:
        try:
            _make_folder(place)
            lock.enter_context(sole_writer(place))
            _steps(place)  # before anything is deleted
            remove_temporaries(place)
        except StoreBusy as error:
            raise CheckpointError(
                f"{place}: another process trains this run and writes its checkpoints there; wait for it, or stop it"
            ) from error
        except OSError as error:
            raise CheckpointError(f"{place}: no checkpoint can be written: {error}; give another folder") from error
        yield


def _make_folder(place: Path) -> None:
    missing = [folder for folder in (place, *place.parents) if not folder.exists()]
    place.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        fsync_folder(folder.parent)


def _steps(place: Path) -> list[int]:
    """Return the steps of the checkpoints in ``place``, good or not; raise ``CheckpointError`` for anything else."""
    try:
        paths = list(place.iterdir()) if place.exists() else []
    except OSError as error:
        raise CheckpointError(f"{place}: expected a folder of checkpoints: {error}; give another folder") from error
    steps, foreign = [], []
    for path in paths:
        match = _STEP.fullmatch(path.name)
        if match and path.name == step_name(int(match[1])) and path.is_dir() and not path.is_symlink():
            steps.append(int(match[1]))
        elif not _TEMPORARY.fullmatch(path.name):
            foreign.append(path.name)
    if foreign:
        raise CheckpointError(
            f"{place}: expected the checkpoints of one run and nothing else, found {sorted(foreign)[:5]}; move these "
            "away, or give another folder"
        )
    return steps


def _delete(folder: Path, newer: Path) -> None:
    """Delete a checkpoint: it goes at once, its bytes after it."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.old.tmp")
    try:
        folder.replace(aside)
        shutil.rmtree(aside)
    except OSError as error:
        raise CheckpointError(
            f"{newer} is whole, but {folder}, which need not stay, cannot be deleted: {error}. Mend that, then run the "
            "same command again"
        ) from error


def _one_holds_the_other(first: Path, second: Path) -> bool:
    return first.is_relative_to(second) or second.is_relative_to(first)


def _free(place: Path) -> str:
    try:
        return f"{shutil.disk_usage(place).free:,} bytes are free"
    except OSError:
        return "its free space is unknown"
