"""Training: one model on the interleaved windows of the streams."""

import pandas as pd
from plotly.graph_objects import Figure

from everytoken.parameters import TokenizationParameters, TrainingParameters
from everytoken.reports import training_figure
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.streams import STREAM_KINDS, chosen_streams
from everytoken.training.run import CheckpointDescription, describe_checkpoint, train
from everytoken.training.step import HISTORY_FILE, term_names


def train_model(
    tokenizer: Artifact,
    held_out_documents: Shards,
    tokenization: TokenizationParameters,
    parameters: TrainingParameters,
    **made: Artifact | None,
) -> Artifact:
    """Train on the windows of the chosen streams; by default in proportion to the streams' sizes.

    Raw shards have no windows of their own: theirs have the length of ``tokenization``.
    """
    streams = chosen_streams(parameters.streams, made)
    are_flat = all(STREAM_KINDS[name].layout == "flat" for name, _ in streams)
    return plan_artifact(
        train,
        streams=streams,
        seq_length=tokenization.seq_length if are_flat else None,
        rules=tokenization.encoding_rules(tokenizer),
        model=parameters.model,
        training=parameters.optimisation,
        data=parameters.data,
        initial=None,
        held_out=held_out_documents if parameters.optimisation.held_out else None,
        checkpoints=parameters.checkpoints,
        distribution=parameters.distribution,
    )


def describe_training(checkpoint: Artifact) -> CheckpointDescription:
    """Return what was trained: figures, the samples and windows read, held-out bits per byte, texts, and by whom."""
    return describe_checkpoint(checkpoint)


def report_training(
    checkpoint: Artifact, description: CheckpointDescription
) -> tuple[dict[str, object], dict[str, list[float | None]], Figure]:
    """Return the run's figures, what happened by step, and the curves of training and held-out loss."""
    history = pd.read_parquet(checkpoint.path(HISTORY_FILE))
    measured = description["measured"]
    numbers: dict[str, object] = {name: value for name, value in description.items() if isinstance(value, int | float)}
    numbers["samples"] = dict(zip(("first", "end"), description["samples"], strict=True))
    numbers["streams"] = description["streams"]
    speeds = {f"measured_{name}": measured[name] for name in ("seconds", "tokens_per_second", "mfu")}
    known = {name: value for name, value in speeds.items() if value is not None}
    steps: list[int] = history["step"].tolist()
    series: dict[str, list[float | None]] = {"step": [*steps]}
    # of a skipped step some are not finite, and no point of a curve
    terms = term_names(history.columns)
    for name in ("loss", *terms, "lr", "grad_norm"):
        series[name] = history[name].astype(object).where(~history["skipped"], None).tolist()
    rates = dict(measured["tokens_per_second_by_step"])
    series["tokens_per_second"] = [rates.get(step) for step in steps]
    curves: dict[str, dict[int, float]] = {}
    for row in description["held_out"]:
        curves.setdefault(f"held_out_bits_per_byte.{row['source']}", {})[row["step"]] = row["bits_per_byte"]
    if description["held_out_total"]:
        curves["held_out_bits_per_byte"] = {row["step"]: row["bits_per_byte"] for row in description["held_out_total"]}
    for row in description["tasks"]:
        for metric, value in row["metrics"].items():
            curves.setdefault(f"tasks.{row['task']}.{metric}", {})[row["step"]] = value
    for name, by_step in curves.items():
        series[name] = [by_step.get(step) for step in steps]
    return {**numbers, **known}, series, training_figure(series, terms)
