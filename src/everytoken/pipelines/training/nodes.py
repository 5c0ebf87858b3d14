"""Training: one model on the interleaved windows of the streams."""

from typing import Any

import pandas as pd
from plotly.graph_objects import Figure

from everytoken.parameters import TokenizationParameters, TrainingParameters
from everytoken.reports import loss_figure
from everytoken.shards import Artifact, plan_artifact
from everytoken.training.artifacts import HISTORY_FILE, train


def train_model(
    compact_stream: Artifact,
    annotated_stream: Artifact,
    tokenizer: Artifact,
    tokenization: TokenizationParameters,
    parameters: TrainingParameters,
) -> Artifact:
    """Train on compact and annotated windows in proportion to the streams' sizes."""
    return plan_artifact(
        train,
        streams=[compact_stream, annotated_stream],
        weights=None,
        tokenizer=tokenizer,
        eos_token=tokenization.eos_token,
        model=parameters.model,
        training=parameters.optimisation,
    )


def report_training(checkpoint: Artifact) -> tuple[dict[str, Any], dict[str, list[float]], Figure]:
    """Return the run's figures, the history by step, and the loss curve."""
    history = pd.read_parquet(checkpoint.path(HISTORY_FILE))
    numbers = {name: value for name, value in checkpoint.statistics.items() if isinstance(value, int | float)}
    speed = {f"measured_{name}": checkpoint.measured[name] for name in ("seconds", "tokens_per_second")}
    series = {name: history[name].tolist() for name in ("step", "loss", "lr", "grad_norm")}
    rates = dict(checkpoint.measured["tokens_per_second_by_step"])
    series["tokens_per_second"] = [rates.get(step) for step in series["step"]]
    return {**numbers, **speed}, series, loss_figure(series["step"], {"loss": series["loss"]})
