"""The outputs of training as artifacts: checkpoint, bits per byte, generated texts. Importing this loads no
torch.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from everytoken.measurements import announce, rate, utilisation
from everytoken.models import ModelParameters
from everytoken.progress import steps_done
from everytoken.shards import (
    IN_THIS_PROCESS,
    Artifact,
    Built,
    RangeMap,
    Recipe,
    Shards,
    Slurm,
    file_sha256,
    versioned,
)
from everytoken.shards.remote import RemoteArtifact
from everytoken.tokens.encoding import DocumentEncoder, open_encoder
from everytoken.tokens.order import DataParameters, open_training_windows
from everytoken.tokens.streams import GivenFiles, path_of
from everytoken.tokens.tokenizer import TOKENIZER_FILE, EncodingRules, open_tokenizer
from everytoken.training.errors import LOWER_RATE, CheckpointError, NonFiniteError, TrainingError
from everytoken.training.parameters import (
    BitsPerByteParameters,
    CheckpointParameters,
    DistributionParameters,
    ExecutionParameters,
    OptimisationParameters,
    PromptParameters,
    SampleParameters,
)
from everytoken.training.run.job import RemoteInput, TrainingJob
from everytoken.training.run.statistics import GeneratedStatistics, TrainedStatistics
from everytoken.training.step import (
    HELD_OUT_FILE,
    HISTORY_FILE,
    SAMPLES_FILE,
    HeldOutRecord,
    StepHistory,
    StepRecord,
    TaskRecord,
    total_bits_per_byte,
)

BITS_PER_BYTE_FILE = "bits_per_byte.json"
GENERATIONS_FILE = "generations.json"

logger = logging.getLogger(__name__)

_MEASURED_POINTS = 1000  # of tokens per second; a ledger stays readable however long the run


@versioned("train", 2, unrecorded=["checkpoints", "distribution"], in_ranges=True)
def train(
    folder: Path,
    *,
    streams: Sequence[tuple[str, Artifact | GivenFiles]],
    seq_length: int | None,
    rules: EncodingRules,
    model: ModelParameters,
    training: OptimisationParameters,
    data: DataParameters,
    initial: Artifact | None,
    held_out: Shards | None,
    checkpoints: CheckpointParameters,
    distribution: DistributionParameters,
    ranges: RangeMap = IN_THIS_PROCESS,
) -> Built:
    """Train a model on the interleaved streams; write its config, its tensors and what happened by step.

    The vocabulary size comes from the tokenizer, the sequence length from the streams. The state of the run is kept
    in ``checkpoints.folder`` while it trains: a run that was stopped goes on from its newest checkpoint that verifies,
    to the same bytes (`everytoken.training.run.launch`).

    Args:
        folder: an empty folder.
        streams: names and token streams, in the order of the interleaving rule: compact, annotated or reflected,
            canary. Another order is another run.
        seq_length: predictions of a window where all streams are flat tokens; None: the streams say it.
        rules: tokenizer and EOS of the streams; what special tokens that a held-out text spells become.
        initial: a checkpoint whose tensors the run starts from; None: drawn anew.
        held_out: documents for ``training.held_out``; None only when that is None.
        ranges: whose engine runs the processes, where it is that of Slurm.

    Returns:
        Statistics: ``parameters`` (their number), ``parameters_sha256, steps, batch_size, seq_length, tokens,
        loss_tokens, skipped_steps, first_loss, final_loss, mean_loss_last_tenth`` (unweighted, of the last tenth of
        the steps), ``samples`` ([first, end) of the order of samples) and ``streams``: what was read of each.
        Measured: ``seconds, tokens_per_second, tokens_per_second_by_step`` (as [step, tokens/s] pairs), ``mfu`` (each
        speed is None where it is not known), what the bits depend on (torch, CPU, threads, precision), and
        ``segments``: which machine did which steps, ``held_out_curve``: points of the held-out loss by step and source
        that are not in the file of held-out losses, ``task_curve``: figures of tasks by step, and ``kept``: the
        checkpoints that the run keeps (`everytoken.training.run.kept_checkpoints`).

    Raises:
        TrainingError: a batch does not fit the model, or too many losses or gradients in a row are not finite.
        CheckpointError: checkpoints of the run are there and none of them verifies.
    """
    from everytoken.training.checkpoints import (
        CONFIG_FILE,
        MODEL_FILE,
        CheckpointStore,
        is_sharded,
        load_model,
        parameters_sha256,
        write_whole_model,
    )
    from everytoken.training.run.kept_checkpoints import kept_checkpoints
    from everytoken.training.run.launch import launch
    from everytoken.training.step import describe_machine

    job = prepare_job(
        streams=streams,
        seq_length=seq_length,
        rules=rules,
        model=model,
        training=training,
        data=data,
        initial=initial,
        held_out=held_out,
        checkpoints=checkpoints,
        distribution=distribution,
    )
    speed = _Speed(training.batch_size * job.seq_length)
    launch(job, speed.watch, _announce_figures, ranges.engine if isinstance(ranges.engine, Slurm) else None)
    store = CheckpointStore(job.folder, mirror=job.mirror, milestone_steps=checkpoints.milestone_steps)
    finished = store.newest()
    if finished is None or finished.step != training.steps:
        found = "none" if finished is None else f"one of step {finished.step}"
        raise CheckpointError(f"{job.folder}: expected a checkpoint of step {training.steps}, found {found}")
    if finished.state.get("job") != job.content:
        raise CheckpointError(
            f"{finished.folder} was trained with another job than this one: a job file or held-out chunks were edited. "
            "Move it away and train again"
        )
    for name in (CONFIG_FILE, HISTORY_FILE, HELD_OUT_FILE, SAMPLES_FILE):
        shutil.copyfile(finished.folder / name, folder / name)
    if is_sharded(finished.folder):
        write_whole_model(finished.folder, folder / MODEL_FILE)
    else:
        shutil.copyfile(finished.folder / MODEL_FILE, folder / MODEL_FILE)
    history = StepHistory.read(folder / HISTORY_FILE)
    new = load_model(folder)
    losses = history.column("loss")[~history.column("skipped")]
    if not len(losses):
        raise TrainingError(
            f"all {len(history)} steps were skipped, as losses or gradients were not finite: nothing was learned. "
            "Lower training.optimisation.learning_rate or training.model.init_std"
        )
    last_tenth = losses[-max(1, len(losses) // 10) :].tolist()  # added one by one, not in pairs as numpy does
    windows = open_training_windows(job.streams, data, training.batch_size, job.seq_length)
    first, end = windows.samples_of_step(0)[0], windows.samples_of_step(training.steps - 1)[-1] + 1
    return Built(
        statistics=TrainedStatistics(
            parameters=new.parameter_count(),
            parameters_sha256=parameters_sha256(new),
            steps=training.steps,
            batch_size=training.batch_size,
            seq_length=job.seq_length,
            tokens=history.last.tokens,
            loss_tokens=int(history.column("loss_tokens").sum()),
            skipped_steps=len(history) - len(losses),
            first_loss=float(losses[0]),
            final_loss=float(losses[-1]),
            mean_loss_last_tenth=sum(last_tenth) / len(last_tenth),
            samples=[int(first), int(end)],
            streams=windows.ranges(int(first), int(end)),
        ),
        measured={
            **speed.figures(),
            "mfu": speed.mfu(new.flop_per_token(job.seq_length), job),
            **describe_machine(training.execution),
            "checkpoint": {"step": finished.step, "sha256sums": finished.digest, "skipped": list(finished.skipped)},
            "segments": finished.state["segments"],
            # version 0.1.0 had neither
            "held_out_curve": finished.state.get("held_out_curve", []),
            "task_curve": finished.state.get("task_curve", []),
            "kept": kept_checkpoints(store, finished),
        },
    )


def prepare_job(
    *,
    streams: Sequence[tuple[str, Artifact | GivenFiles]],
    seq_length: int | None,
    rules: EncodingRules,
    model: ModelParameters,
    training: OptimisationParameters,
    data: DataParameters,
    initial: Artifact | None,
    held_out: Shards | None,
    checkpoints: CheckpointParameters,
    distribution: DistributionParameters,
) -> TrainingJob:
    """Return what every process of a run of `train` has to know, and write the held-out chunks that it names.

    Raises:
        TrainingError: ``training.held_out`` is given without documents.
        StreamError: a stream is not there, or is not what was written.
    """
    inputs = dict(locals())
    opened = open_tokenizer(rules.place, rules.eos_token)
    paths = {name: path_of(stream) for name, stream in streams}
    windows = open_training_windows(paths, data, training.batch_size, seq_length)
    for name, size in zip(windows.names, windows.sizes, strict=True):
        logger.info("stream %s: %d windows of %d predictions, %s", name, size, windows.seq_length, paths[name])
    job = TrainingJob(
        run=Recipe(train, inputs).digest,
        streams={name: path.resolve() for name, path in paths.items()},
        remote=tuple(_remote([*(stream for _, stream in streams), initial, rules.place])),
        data=data,
        model=model,
        training=_with_task_folder(training),
        checkpoints=_anywhere(checkpoints),
        distribution=distribution,
        vocab_size=opened.vocab_size,
        seq_length=windows.seq_length,
        eos_id=opened.eos_id,
        initial=None if initial is None else _folder(initial).resolve(),
        held_out=None,
        held_out_sha256=None,
        tokenizer=(rules.place if isinstance(rules.place, Path) else rules.place.path(TOKENIZER_FILE)).resolve(),
        eos_token=rules.eos_token,
    )
    if training.held_out is None:
        return job
    if held_out is None:
        raise TrainingError("training.held_out asks for a look at held-out documents, and there are none: set it null")
    # loaded here: it needs torch, and planning a training does not
    from everytoken.training.evaluation import prepare_held_out, write_held_out

    encoder = open_encoder(rules)
    chunks = prepare_held_out(
        encoder, held_out, seq_length=job.seq_length, documents=training.held_out.documents, seed=training.seed
    )
    path = job.live_folder / "held_out.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_held_out(path, chunks)
    return job.model_copy(update={"held_out": path.resolve(), "held_out_sha256": file_sha256(path)})


def _remote(inputs: Sequence[object]) -> Iterator[RemoteInput]:
    for artifact in inputs:
        if isinstance(artifact, RemoteArtifact):
            cache = artifact.held.cache
            yield RemoteInput(
                url=artifact.held.url,
                root_digest=artifact.root_digest,
                folder=artifact.folder.resolve(),
                cache=cache.folder.resolve(),
                cache_bytes=cache.bound,
            )


def _anywhere(checkpoints: CheckpointParameters) -> CheckpointParameters:
    """Return the same places for a process that runs in another folder."""
    places = {"folder": checkpoints.folder, "mirror": checkpoints.mirror}
    return checkpoints.model_copy(
        update={name: None if place is None else str(Path(place).resolve()) for name, place in places.items()}
    )


def _with_task_folder(training: OptimisationParameters) -> OptimisationParameters:
    """Return the same for a process that runs in another folder."""
    if training.tasks is None or training.tasks.task_folder is None:
        return training
    folder = str(Path(training.tasks.task_folder).resolve())
    return training.model_copy(update={"tasks": training.tasks.model_copy(update={"task_folder": folder})})


def _announce_figures(records: Sequence[HeldOutRecord | TaskRecord]) -> None:
    for task in (record for record in records if isinstance(record, TaskRecord)):
        announce({"step": [task.step], **{f"tasks.{task.task}.{key}": [x] for key, x in task.metrics.items()}})
    losses = [record for record in records if isinstance(record, HeldOutRecord)]
    for record in losses:
        announce({"step": [record.step], f"held_out_bits_per_byte.{record.source}": [record.bits_per_byte]})
    if len(losses) > 1:
        announce({"step": [losses[0].step], "held_out_bits_per_byte": [total_bits_per_byte(losses)]})


class SpeedFigures(TypedDict):
    """Seconds of steps, tokens/s overall, and pairs of [step, tokens/s]; None where a speed is not known."""

    seconds: float
    tokens_per_second: float | None
    tokens_per_second_by_step: list[list[float | None]]


class _Speed:
    """Tells listeners what happened in each step, and sums up how fast the steps of this process were."""

    def __init__(self, tokens_per_step: int) -> None:
        self._tokens_per_step = tokens_per_step
        self._steps, self._seconds = array("q"), array("d")

    def watch(self, records: Sequence[StepRecord]) -> None:
        """Take note of records as they come."""
        self._steps.extend(record.step for record in records)
        self._seconds.extend(record.seconds for record in records)
        names = ("step", "loss", "lr", "grad_norm")
        rows = {name: [_number(getattr(record, name)) for record in records] for name in names}
        for name in records[0].terms:
            rows[name] = [_number(record.terms[name]) for record in records]
        rows["tokens_per_second"] = [_rounded(rate(self._tokens_per_step, record.seconds), 1) for record in records]
        announce(rows)

    def figures(self) -> SpeedFigures:
        """Return seconds of the steps of this process, tokens/s overall, and at most ``_MEASURED_POINTS`` pairs of
        [step, tokens/s]; none of a run that was finished already.
        """
        steps, seconds = self._steps, sum(self._seconds)
        stride = max(1, -(-len(steps) // _MEASURED_POINTS))
        by_step = []
        for start in range(0, len(steps), stride):
            stretch, took = steps[start : start + stride], sum(self._seconds[start : start + stride])
            by_step.append([stretch[-1], _rounded(rate(len(stretch) * self._tokens_per_step, took), 1)])
        overall = _rounded(rate(len(steps) * self._tokens_per_step, seconds), 1)
        return {"seconds": round(seconds, 3), "tokens_per_second": overall, "tokens_per_second_by_step": by_step}

    def mfu(self, flop_per_token: float, job: TrainingJob) -> float | None:
        """Return which share of the machine's FLOP/s the steps of this process reached (model FLOP utilisation)."""
        overall = self.figures()["tokens_per_second"]
        if overall is None:
            return None
        reached, peak = overall * flop_per_token, _peak(job.training.execution, job.distribution)
        share = utilisation(reached, peak)
        if share is None and peak is not None:
            logger.warning(
                "MFU is not known: the steps reached %.3g FLOP/s, more than the %.3g of the matrix products that were "
                "measured. Other work on this machine slowed those",
                reached,
                peak,
            )
        return _rounded(share, 4)


def _peak(execution: ExecutionParameters, distribution: DistributionParameters) -> float | None:
    """Return the FLOP/s of the products of all processes, from those of this one; None where they are not known."""
    from everytoken.training.step import matrix_peak

    peak = matrix_peak(execution, distribution.device)
    return None if peak is None else peak * distribution.processes * distribution.nodes


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _number(value: float) -> float | None:
    """Return ``value``, or None when it is not finite: of a skipped step there is no loss to draw."""
    return value if math.isfinite(value) else None


@versioned("evaluate", 3)
def evaluate(
    folder: Path,
    *,
    checkpoint: Artifact,
    held_out: Shards,
    streams: Sequence[tuple[str, Artifact]],
    data: DataParameters,
    rules: EncodingRules,
    evaluation: BitsPerByteParameters,
) -> Built:
    """Measure bits per byte on held-out documents, beside a unigram model; write ``bits_per_byte.json``.

    With ``evaluation.loops``, also what the loops of a model do (`everytoken.training.evaluation.measure_loops`).

    The unigram model is counted over exactly the predictions that counted in the loss of the checkpoint's
    training, so ``streams`` and ``data`` must be those of the training.

    Args:
        folder: an empty folder.
        held_out: documents with the columns text and source.
        streams: the streams that it was trained on.
        data: which samples of them it read.

    Returns:
        Statistics: what ``bits_per_byte.json`` holds, see
            `everytoken.training.evaluation.language_modelling.bits_per_byte`.
    """
    from everytoken.models import OpenMythos
    from everytoken.training.checkpoints import load_model
    from everytoken.training.evaluation import bits_per_byte, count_targets, measure_loops, unigram_bits
    from everytoken.training.step import describe_machine, open_device

    model = load_model(_folder(checkpoint)).to(open_device(evaluation.device))
    if evaluation.loops is not None and not isinstance(model, OpenMythos):
        raise TrainingError("evaluation.held_out.loops is given, but the model loops no block; remove it")
    trained = checkpoint.statistics_as(TrainedStatistics)
    batch_size, steps = trained["batch_size"], trained["steps"]
    windows = open_training_windows(dict(streams), data, batch_size, trained["seq_length"])
    counts = count_targets(windows.read_batch, steps, model.vocab_size)
    if counts.sum() != trained["loss_tokens"]:
        raise TrainingError(
            f"the streams give {counts.sum()} counted predictions, the training had "
            f"{trained['loss_tokens']}; evaluate with the streams and weights of the training"
        )
    encoder = open_encoder(rules)
    with _of_training(checkpoint):
        figures = bits_per_byte(model, encoder, held_out, unigram_bits(counts), evaluation)
        if isinstance(model, OpenMythos) and evaluation.loops is not None:
            figures["loops"] = measure_loops(model, encoder, held_out, evaluation, evaluation.loops)
    _write_json(folder / BITS_PER_BYTE_FILE, figures)
    return Built(statistics=figures, measured={**describe_machine(evaluation.execution), "device": evaluation.device})


@versioned("generate_texts", 1)
def generate_texts(
    folder: Path,
    *,
    checkpoint: Artifact,
    tokenizer: Artifact,
    eos_token: str,
    generation: PromptParameters | SampleParameters,
    held_out: Shards | None = None,
) -> Built:
    """Continue each prompt; write ``generations.json``: a list of ``{prompt, text, tokens, finish}``.

    A model that loops a block also has ``loops``, the mean number behind a token.

    Args:
        folder: an empty folder.
        held_out: documents whose beginnings are the prompts, where ``generation`` has none.

    Returns:
        Statistics: ``prompts`` and ``tokens``, the number of each.
    """
    from everytoken.training.checkpoints import load_model
    from everytoken.training.evaluation import generate, held_out_prompts
    from everytoken.training.step import describe_machine, open_device

    model = load_model(_folder(checkpoint)).to(open_device(generation.device))
    encoder = open_encoder(EncodingRules(tokenizer, eos_token, "control"))  # a prompt may name them
    prompts = generation.prompts
    if prompts is None:
        begun = held_out_prompts(Shards(()) if held_out is None else held_out, generation.seed)
        prompts = tuple(_short(prompt, encoder, model.context) for prompt in begun)
    chosen = PromptParameters(**{**dict(generation), "prompts": prompts})
    with _of_training(checkpoint):
        texts = [
            {name: value for name, value in asdict(text).items() if value is not None}
            for text in generate(model, encoder, chosen)
        ]
    _write_json(folder / GENERATIONS_FILE, texts)
    return Built(
        statistics=GeneratedStatistics(prompts=len(texts), tokens=sum(len(text["tokens"]) for text in texts)),
        measured={**describe_machine(generation.execution), "device": generation.device},
    )


def _short(prompt: str, encoder: DocumentEncoder, context: int) -> str:
    """Return as much of a prompt as leaves half of the model's context to write in."""
    while len(prompt) > 1 and len(encoder.encode([prompt]).values) > context // 2:
        prompt = prompt[: len(prompt) // 2]
    return prompt


@contextmanager
def _of_training(checkpoint: Artifact) -> Iterator[None]:
    """Add to the error of a model that diverged how its training ended."""
    try:
        yield
    except NonFiniteError as error:
        last = StepHistory.read(checkpoint.path(HISTORY_FILE)).last
        raise NonFiniteError(
            f"{_folder(checkpoint)}: {error}. After {steps_done(last.step)} it had loss {last.loss:g} and learning "
            f"rate {last.lr:g}; {LOWER_RATE}"
        ) from error


def _folder(checkpoint: Artifact) -> Path:
    return checkpoint.path("config.json").parent


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
