"""What a checkpoint was trained on and what came out, as plain data for a report."""

from __future__ import annotations

from typing import Any

import pandas as pd

from everytoken.shards import Artifact
from everytoken.training.step import HELD_OUT_FILE, SAMPLES_FILE


def describe_checkpoint(checkpoint: Artifact) -> dict[str, Any]:
    """Return what was trained: figures, the samples and windows read, held-out bits per byte, texts, and by whom."""
    held_out = pd.read_parquet(checkpoint.path(HELD_OUT_FILE))
    return {
        **checkpoint.statistics,
        "digest": checkpoint.root_digest,
        "held_out": held_out[["step", "source", "bits_per_byte"]].to_dict("records"),
        "texts": pd.read_parquet(checkpoint.path(SAMPLES_FILE)).to_dict("records"),
        "measured": checkpoint.measured,
    }
