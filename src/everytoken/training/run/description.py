"""What a checkpoint was trained on and what came out, as plain data for a report."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from everytoken.shards import Artifact
from everytoken.training.run.statistics import TrainedStatistics
from everytoken.training.step import HELD_OUT_FILE, SAMPLES_FILE


class CheckpointDescription(TrainedStatistics):
    """Statistics of a checkpoint, its digest, rows of the tables beside it, and what was measured."""

    digest: str
    held_out: list[dict[Hashable, Any]]
    texts: list[dict[Hashable, Any]]
    measured: Mapping[str, Any]


def describe_checkpoint(checkpoint: Artifact) -> CheckpointDescription:
    """Return what was trained: figures, the samples and windows read, held-out bits per byte, texts, and by whom."""
    held_out = pd.read_parquet(checkpoint.path(HELD_OUT_FILE))
    return {
        **checkpoint.statistics_as(TrainedStatistics),
        "digest": checkpoint.root_digest,
        "held_out": held_out[["step", "source", "bits_per_byte"]].to_dict("records"),
        "texts": pd.read_parquet(checkpoint.path(SAMPLES_FILE)).to_dict("records"),
        "measured": checkpoint.measured,
    }
