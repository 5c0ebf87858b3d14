"""Is a folder with a model what was written? Asked before it is exported, continued or listened to."""

from __future__ import annotations

from pathlib import Path

from everytoken.shards import LEDGER_FILE, ArtifactStore
from everytoken.training.checkpoints.checkpoint_folder import CHECKPOINT_SUMS_FILE, verify_files


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
