"""The outputs of training as artifacts: checkpoint, bits per byte, generated texts. Importing this loads no
torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.models.parameters import ModelParameters
from everytoken.shards import Artifact, Built, Shards, versioned
from everytoken.tokens import SpecialTokens, open_encoder, open_tokenizer, open_training_windows
from everytoken.training.errors import TrainingError
from everytoken.training.parameters import EvaluationParameters, GenerationParameters, TrainingParameters

if TYPE_CHECKING:
    from everytoken.training.loop import StepRecord

HISTORY_FILE = "history.parquet"
BITS_PER_BYTE_FILE = "bits_per_byte.json"
GENERATIONS_FILE = "generations.json"

HISTORY = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),  # 0-based
        pa.field("tokens", pa.int64(), nullable=False),  # predictions up to and with the step
        pa.field("loss_tokens", pa.int64(), nullable=False),  # predictions of the step that count in the loss
        pa.field("loss", pa.float64(), nullable=False),  # nats per counted prediction, before the update
        pa.field("lr", pa.float64(), nullable=False),
        pa.field("grad_norm", pa.float64(), nullable=False),  # before clipping
    ]
)
_MEASURED_POINTS = 1000  # of tokens per second; a ledger stays readable however long the run


@versioned(1)
def train(
    folder: Path,
    *,
    streams: Sequence[Artifact],
    weights: Sequence[float] | None,
    tokenizer: Artifact,
    eos_token: str,
    model: ModelParameters,
    training: TrainingParameters,
) -> Built:
    """Train a new model on the interleaved streams; write its config, its tensors and ``history.parquet``.

    The vocabulary size comes from the tokenizer, the sequence length from the streams.

    Args:
        folder: an empty folder.
        streams: token streams in the order of the interleaving rule: compact, annotated or reflected, canary.
        weights: weights of the streams; None for proportional to their sizes.
        tokenizer: the tokenizer that wrote the streams.
        eos_token: the token that ends documents.
        model: family and shape.
        training: optimiser, schedule, batch and arithmetic.

    Returns:
        Statistics: ``parameters`` (their number), ``parameters_sha256, steps, batch_size, seq_length, tokens,
        loss_tokens, first_loss, final_loss, mean_loss_last_tenth`` (unweighted, of the last tenth of the
        steps). Measured: ``seconds, tokens_per_second, tokens_per_second_by_step`` (as [step, tokens/s]
        pairs) and what the bits depend on (torch, CPU, threads, precision).

    Raises:
        TrainingError: a batch does not fit the model, or a loss or gradient is not finite.
    """
    from everytoken.models.families import build_model
    from everytoken.training.checkpoint import CheckpointConfig, parameters_sha256, save_model
    from everytoken.training.execution import describe_machine, execution
    from everytoken.training.loop import make_optimizer, train_steps
    from everytoken.training.progress import with_progress

    windows = open_training_windows(streams, weights)
    opened = open_tokenizer(tokenizer, eos_token)
    with execution(training.execution):
        new = build_model(model, vocab_size=opened.vocab_size, max_seq_len=windows.seq_length, seed=training.seed)
        records = train_steps(
            new,
            make_optimizer(new, training),
            lambda step: windows.read_batch(step, training.batch_size),
            training,
            first_step=0,
        )
        history = list(with_progress(records, first_step=0, steps=training.steps))
    config = CheckpointConfig(
        format="everytoken-checkpoint/1",
        model=model,
        vocab_size=opened.vocab_size,
        seq_length=windows.seq_length,
        eos_id=opened.eos_id,
    )
    save_model(folder, new, config)
    columns = {name: [getattr(record, name) for record in history] for name in HISTORY.names}
    pq.write_table(pa.table(columns, schema=HISTORY), folder / HISTORY_FILE)
    losses = [record.loss for record in history]
    last_tenth = losses[-max(1, len(losses) // 10) :]
    return Built(
        statistics={
            "parameters": new.parameter_count(),
            "parameters_sha256": parameters_sha256(new),
            "steps": training.steps,
            "batch_size": training.batch_size,
            "seq_length": windows.seq_length,
            "tokens": history[-1].tokens,
            "loss_tokens": sum(record.loss_tokens for record in history),
            "first_loss": losses[0],
            "final_loss": losses[-1],
            "mean_loss_last_tenth": sum(last_tenth) / len(last_tenth),
        },
        measured={
            **_speed(history, training.batch_size * windows.seq_length),
            **describe_machine(training.execution),
        },
    )


def _speed(history: Sequence[StepRecord], tokens_per_step: int) -> dict[str, Any]:
    """Return seconds of all steps, tokens per second overall, and at most ``_MEASURED_POINTS`` pairs of
    [step, tokens/s].
    """
    seconds = sum(record.seconds for record in history)
    stride = -(-len(history) // _MEASURED_POINTS)
    by_step = []
    for start in range(0, len(history), stride):
        stretch = history[start : start + stride]
        rate = len(stretch) * tokens_per_step / sum(record.seconds for record in stretch)
        by_step.append([stretch[-1].step, round(rate, 1)])
    return {
        "seconds": round(seconds, 3),
        "tokens_per_second": round(len(history) * tokens_per_step / seconds, 1),
        "tokens_per_second_by_step": by_step,
    }


@versioned(2)
def evaluate(
    folder: Path,
    *,
    checkpoint: Artifact,
    held_out: Shards,
    streams: Sequence[Artifact],
    weights: Sequence[float] | None,
    tokenizer: Artifact,
    eos_token: str,
    special_tokens_in_text: SpecialTokens,
    evaluation: EvaluationParameters,
) -> Built:
    """Measure bits per byte on held-out documents, beside a unigram model; write ``bits_per_byte.json``.

    The unigram model is counted over exactly the predictions that counted in the loss of the checkpoint's
    training, so ``streams`` and ``weights`` must be those of the training.

    Args:
        folder: an empty folder.
        checkpoint: a trained model.
        held_out: documents with the columns text and source.
        streams: the streams that it was trained on.
        weights: their weights.
        tokenizer: the tokenizer that wrote the streams.
        eos_token: the token that ends documents.
        special_tokens_in_text: what special tokens that a text spells became in the streams.
        evaluation: batch size and arithmetic.

    Returns:
        Statistics: what ``bits_per_byte.json`` holds, see `everytoken.training.evaluation.bits_per_byte`.
    """
    from everytoken.training.checkpoint import load_model
    from everytoken.training.evaluation import bits_per_byte, count_targets, unigram_bits
    from everytoken.training.execution import describe_machine

    model = load_model(_folder(checkpoint))
    windows = open_training_windows(streams, weights)
    batch_size, steps = checkpoint.statistics["batch_size"], checkpoint.statistics["steps"]
    counts = count_targets(lambda step: windows.read_batch(step, batch_size), steps, model.vocab_size)
    if counts.sum() != checkpoint.statistics["loss_tokens"]:
        raise TrainingError(
            f"the streams give {counts.sum()} counted predictions, the training had "
            f"{checkpoint.statistics['loss_tokens']}; evaluate with the streams and weights of the training"
        )
    encoder = open_encoder(tokenizer, eos_token, special_tokens_in_text=special_tokens_in_text)
    figures = bits_per_byte(model, encoder, held_out, unigram_bits(counts), evaluation)
    _write_json(folder / BITS_PER_BYTE_FILE, figures)
    return Built(statistics=figures, measured=describe_machine(evaluation.execution))


@versioned(1)
def generate_texts(
    folder: Path, *, checkpoint: Artifact, tokenizer: Artifact, eos_token: str, generation: GenerationParameters
) -> Built:
    """Continue each prompt; write ``generations.json``: a list of ``{prompt, text, tokens, finish}``.

    Args:
        folder: an empty folder.
        checkpoint: a trained model.
        tokenizer: its tokenizer.
        eos_token: the token that ends documents.
        generation: prompts and sampling.

    Returns:
        Statistics: ``prompts`` and ``tokens``, the number of each.
    """
    from everytoken.training.checkpoint import load_model
    from everytoken.training.execution import describe_machine
    from everytoken.training.generation import generate

    model = load_model(_folder(checkpoint))
    encoder = open_encoder(tokenizer, eos_token, special_tokens_in_text="control")  # a prompt may name them
    texts = [asdict(text) for text in generate(model, encoder, generation)]
    _write_json(folder / GENERATIONS_FILE, texts)
    return Built(
        statistics={"prompts": len(texts), "tokens": sum(len(text["tokens"]) for text in texts)},
        measured=describe_machine(generation.execution),
    )


def _folder(checkpoint: Artifact) -> Path:
    return checkpoint.path("config.json").parent


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
