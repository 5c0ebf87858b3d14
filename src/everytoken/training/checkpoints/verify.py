"""Verify the files of a folder with a model: before it is exported, continued or generates text, and for a user."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from everytoken.checks import READ_FAULTS, Check, run_checks
from everytoken.shards import LEDGER_FILE, ArtifactStore
from everytoken.training.checkpoints.checkpoint_folder import (
    CHECKPOINT_SUMS_FILE,
    STATE_FILE,
    verify_checkpoint,
    verify_files,
)
from everytoken.training.errors import CheckpointError


def require_intact(folder: Path) -> None:
    """Compare the files of a checkpoint with the digests beside them, where there are some.

    A checkpoint of a run has ``SHA256SUMS``, an artifact its ledger; a folder that was imported has neither.

    Raises:
        CheckpointError: a file of a run's checkpoint is not what was written, missing or too many.
        ShardsError: a file of an artifact is not.
    """
    if (folder / CHECKPOINT_SUMS_FILE).exists():
        verify_files(folder)
    elif (folder / LEDGER_FILE).exists():
        ArtifactStore(folder).load().verify()


def find_step_folders(folder: Path) -> list[Path]:
    """Return the checkpoints that runs keep while they train, in ``folder`` or below, in order of their paths."""
    if any((folder / name).is_file() for name in (STATE_FILE, CHECKPOINT_SUMS_FILE)):
        return [folder]
    return sorted(path for path in folder.glob("**/step_*") if path.is_dir())


def step_checks(folder: Path, *, full: bool, covers: str) -> Iterator[Check]:
    """Check a checkpoint that a run keeps: its files exist, and, when ``full``, have their SHA-256."""
    check = partial(_check_step, full=full)
    yield from run_checks((("checkpoint", check),), folder, (CheckpointError, *READ_FAULTS), covers=covers)


def _check_step(folder: Path, *, full: bool) -> dict[str, int]:
    step, _, content = verify_checkpoint(folder, full=full)
    return {"steps": step, "files": len(content.sizes)}
