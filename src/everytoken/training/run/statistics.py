"""What the ledgers of checkpoints and generated texts say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from everytoken.tokens.order import StreamRange


class TrainedStatistics(TypedDict):
    """Statistics of `train`."""

    parameters: int
    parameters_sha256: str
    steps: int
    batch_size: int
    seq_length: int
    tokens: int
    loss_tokens: int
    skipped_steps: int
    first_loss: float
    final_loss: float
    mean_loss_last_tenth: float
    samples: list[int]
    streams: Mapping[str, StreamRange]


class GeneratedStatistics(TypedDict):
    """Statistics of `generate_texts`."""

    prompts: int
    tokens: int
