"""The checkpoints that a finished run keeps, as its ledger and MLflow record them: no places, no tensors read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from everytoken.training.checkpoints import CheckpointStore, ValidCheckpoint
from everytoken.training.step import HELD_OUT, HELD_OUT_FILE, HeldOutRecord, read_records, total_bits_per_byte


class KeptCheckpoint(TypedDict):
    """A checkpoint of a run.

    ``step``: steps done. ``sha256sums``: SHA-256 of its ``SHA256SUMS``, which stands for all its bytes. ``sha256``: of
    its files by name. ``held_out``: figures of the held-out documents, by the names that the history of the run gives
    them; empty where the run did not look at them after this step.
    """

    step: int
    sha256sums: str
    sha256: dict[str, str]
    held_out: dict[str, float]


def kept_checkpoints(store: CheckpointStore, newest: ValidCheckpoint) -> list[KeptCheckpoint]:
    """Return what the folder of a run keeps, the oldest first: the newest generations and the milestones.

    Args:
        newest: a checkpoint of this run; its records contain those of all earlier ones.
    """
    recorded = read_records(newest.folder / HELD_OUT_FILE, HeldOutRecord, HELD_OUT)
    curve = [HeldOutRecord(**values) for values in newest.state.get("held_out_curve", ())]  # version 0.1.0 had none
    return [
        KeptCheckpoint(
            step=step,
            sha256sums=content.digest,
            sha256=content.sums,
            held_out=_figures([record for record in (*recorded, *curve) if record.step + 1 == step]),
        )
        for step, content in store.kept()
    ]


def _figures(records: Sequence[HeldOutRecord]) -> dict[str, float]:
    total = {"held_out_bits_per_byte": total_bits_per_byte(records)} if len(records) > 1 else {}
    return {f"held_out_bits_per_byte.{record.source}": record.bits_per_byte for record in records} | total
