"""What a checkpoint was trained on and what came out, as plain data for a report."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from itertools import groupby
from typing import Any

import pandas as pd

from everytoken.shards import Artifact
from everytoken.training.run.statistics import TrainedStatistics
from everytoken.training.step import (
    HELD_OUT,
    HELD_OUT_FILE,
    SAMPLES_FILE,
    HeldOutRecord,
    read_records,
    total_bits_per_byte,
)

_NOT_SHOWN = ("held_out_curve", "task_curve", "kept")


class CheckpointDescription(TrainedStatistics):
    """Statistics of a checkpoint, its digest, rows of the tables next to it, and what was measured.

    ``held_out``: the curve by step and source. ``held_out_total``: of all sources by step; empty where one is all.
    ``tasks``: figures of tasks by step, with version and hash of each task.
    """

    digest: str
    held_out: list[dict[str, Any]]
    held_out_total: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    texts: list[dict[Hashable, Any]]
    measured: Mapping[str, Any]


def describe_checkpoint(checkpoint: Artifact) -> CheckpointDescription:
    """Return what was trained: figures, the samples and windows read, held-out bits per byte, texts, and by whom."""
    curve = held_out_curve(checkpoint)
    return {
        **checkpoint.statistics_as(TrainedStatistics),
        "digest": checkpoint.root_digest,
        "held_out": [{"step": r.step, "source": r.source, "bits_per_byte": r.bits_per_byte} for r in curve],
        "held_out_total": [
            {"step": step, "bits_per_byte": total_bits_per_byte(records)}
            for step, records in ((step, list(group)) for step, group in groupby(curve, key=lambda r: r.step))
            if len(records) > 1
        ],
        "tasks": list(checkpoint.measured.get("task_curve", ())),  # version 0.1.0 had none
        "texts": pd.read_parquet(checkpoint.path(SAMPLES_FILE)).to_dict("records"),
        "measured": {name: value for name, value in checkpoint.measured.items() if name not in _NOT_SHOWN},
    }


def held_out_curve(checkpoint: Artifact) -> list[HeldOutRecord]:
    """Return the held-out losses by step and source: those of the result, and those that were measured for the curve.

    A checkpoint of version 0.1.0 has the first alone.
    """
    recorded = read_records(checkpoint.path(HELD_OUT_FILE), HeldOutRecord, HELD_OUT)
    measured = [HeldOutRecord(**values) for values in checkpoint.measured.get("held_out_curve", ())]
    return sorted([*recorded, *measured], key=lambda record: (record.step, record.source))
