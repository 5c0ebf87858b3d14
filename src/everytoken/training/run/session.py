"""A run of training in this process, or as one rank of several: begin or go on, do the steps, keep the state.

A checkpoint holds all that the next step depends on: tensors of the model and of AdamW, and the number of steps done.
No generator's state is kept: every draw is made from a seed and a step, and the samples of a step from its number.
After a step come held-out documents, samples and tasks, then the checkpoint, so what they said is in it. None of them
changes a bit of the training.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from everytoken.models import LanguageModel, build_model, empty_model
from everytoken.progress import steps_done
from everytoken.tokens.encoding import open_encoder
from everytoken.tokens.order import StreamFiles, TrainingWindows, open_training_windows
from everytoken.tokens.tokenizer import EncodingRules, open_tokenizer
from everytoken.training.checkpoints import (
    MODEL,
    MODEL_FILE,
    OPTIMIZER,
    CheckpointConfig,
    CheckpointStore,
    ValidCheckpoint,
    is_sharded,
    load_config,
    load_model_tensors,
    model_tensors,
    read_sharded,
    read_tensors,
    with_rows,
    write_config,
    write_shard,
    write_tensors,
)
from everytoken.training.errors import LOWER_RATE, CheckpointError, NonFiniteError, TrainingError, TrainingStopped
from everytoken.training.evaluation import HeldOutChunks, evaluate_held_out, generate, read_held_out
from everytoken.training.parameters import PromptParameters
from everytoken.training.run.job import TrainingJob, fetch_inputs
from everytoken.training.run.progress import with_progress
from everytoken.training.run.progress_channel import Listeners
from everytoken.training.run.task_curve import TaskCurve
from everytoken.training.step import (
    HELD_OUT,
    HELD_OUT_FILE,
    HISTORY_FILE,
    OPTIMIZER_FILE,
    SAMPLES,
    SAMPLES_FILE,
    HeldOutRecord,
    Ranks,
    SampleRecord,
    StepHistory,
    TaskRecord,
    begun_optimizer_tensors,
    describe_machine,
    execution,
    make_optimizer,
    matrix_peak,
    optimizer_tensors,
    prepare,
    read_records,
    record_values,
    these_processes,
    train_steps,
    write_records,
)

logger = logging.getLogger(__name__)

_FORMAT = "everytoken-training/1"


@dataclass
class _Past:
    """What the steps before this session left; on ranks other than 0 the number of steps alone."""

    steps: int = 0
    history: StepHistory = field(default_factory=StepHistory)
    held_out: list[HeldOutRecord] = field(default_factory=list)
    curve: list[HeldOutRecord] = field(default_factory=list)
    samples: list[SampleRecord] = field(default_factory=list)
    tasks: list[TaskRecord] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    folder: Path | None = None


def train_here(job: TrainingJob, listeners: Listeners, is_stopping: Callable[[], bool] | None = None) -> None:
    """Train to the last step as this process's part of the run; see `everytoken.training.run.one_process.run_job`."""
    processes = these_processes(job.distribution)
    processes.rows(job.training.batch_size)
    with ExitStack() as stack:
        stack.enter_context(execution(job.training.execution))
        store, past = None, _Past()
        if processes.first:
            store = CheckpointStore(job.folder, mirror=job.mirror, milestone_steps=job.checkpoints.milestone_steps)
            stack.enter_context(store.writing())
            past = _past(job, store.newest())
            store.complete_mirror()
        past.steps = processes.same(past.steps)
        if past.steps == job.training.steps:
            return
        stack.callback(listeners.flush)
        _Session(job, processes, store, past, listeners, is_stopping).run()


def _past(job: TrainingJob, checkpoint: ValidCheckpoint | None) -> _Past:
    if checkpoint is None:
        return _Past()
    state = checkpoint.state
    expected = {"format": _FORMAT, "run": job.run, "step": checkpoint.step, "batch_size": job.training.batch_size}
    found = {name: state.get(name) for name in expected}
    if found != expected or checkpoint.step > job.training.steps:
        raise CheckpointError(
            f"{checkpoint.folder} belongs to {found}, expected {expected} of {job.training.steps} steps; it is of "
            "another run or version: move it away, or give training.checkpoints.folder another place"
        )
    if state.get("job") != job.content:
        raise CheckpointError(
            f"{checkpoint.folder}: the job of the checkpoint is another one than this, with the same run: expected "
            f"{job.content}, found {state.get('job')}; put the job back as `everytoken train` wrote it, or move the "
            "checkpoints away"
        )
    logger.info("going on from %s: %d of %d steps are done", checkpoint.folder, checkpoint.step, job.training.steps)
    return _Past(
        checkpoint.step,
        StepHistory.read(checkpoint.folder / HISTORY_FILE),
        read_records(checkpoint.folder / HELD_OUT_FILE, HeldOutRecord, HELD_OUT),
        [HeldOutRecord(**values) for values in state.get("held_out_curve", ())],  # version 0.1.0 had none
        read_records(checkpoint.folder / SAMPLES_FILE, SampleRecord, SAMPLES),
        [TaskRecord(**values) for values in state.get("task_curve", ())],  # version 0.1.0 had none
        state["segments"],
        checkpoint.folder,
    )


class _Session:
    def __init__(
        self,
        job: TrainingJob,
        processes: Ranks,
        store: CheckpointStore | None,
        past: _Past,
        listeners: Listeners,
        is_stopping: Callable[[], bool] | None,
    ) -> None:
        self._is_stopping = is_stopping
        self._job, self._processes, self._store, self._past = job, processes, store, past
        self._listeners = listeners
        tasks = job.training.tasks if processes.first else None
        self._tasks = None if tasks is None else TaskCurve(job, tasks)
        self._fetched = fetch_inputs(job)
        self._files, self._saved = StreamFiles(job.streams), past.steps  # before they are opened
        self._windows = _open_windows(job, processes)
        self._held_out = _held_out_chunks(job)
        self._model = self._first_model()
        if not past.steps:
            past.history = StepHistory(self._model.further_terms)
        self._check_prompts()
        self._flop_per_token = self._model.flop_per_token(job.seq_length)
        self._module = prepare(self._model, job.training, processes)
        self._optimizer = make_optimizer(self._model, job.training)
        if past.steps:
            self._load_state()
        if processes.first:
            self._note_machine()

    def run(self) -> None:
        """Do the steps that are left."""
        job, processes, past = self._job, self._processes, self._past
        rows = processes.rows(job.training.batch_size)
        records = train_steps(
            self._model,
            self._optimizer,
            lambda step: self._read(step, rows),
            job.training,
            first_step=past.steps,
            module=self._module,
            processes=processes,
            eos_id=job.eos_id if job.data.document_mask else None,
            skipped_in_a_row=processes.same(past.history.skipped_in_a_row),
        )
        peak = self._peak()
        if processes.first:
            records = with_progress(
                records,
                first_step=past.steps,
                steps=job.training.steps,
                flop_per_token=self._flop_per_token,
                peak=peak,
            )
        for record in records:
            if processes.first:
                past.history.append(record)
                self._listeners.add(record)
                if not record.loss_tokens:
                    logger.warning("step %d reads padding alone, without loss: it updates nothing", record.step)
            self._after(record.step)
            if self._is_stopping is not None and record.step + 1 < job.training.steps:
                self._stop_if_asked(record.step + 1, self._is_stopping())
        if processes.first and (skipped := past.history.skipped_in_a_row):
            logger.warning(
                "the last %d of %d steps updated nothing, as loss or gradients were no finite numbers: the run may "
                "have diverged. %s",
                skipped,
                job.training.steps,
                f"{LOWER_RATE[0].upper()}{LOWER_RATE[1:]}",
            )

    def _stop_if_asked(self, done: int, is_asked: bool) -> None:
        """Save the state and stop, where any process was asked to."""
        asked = torch.tensor(float(is_asked), dtype=torch.float64, device=self._processes.device)
        if not self._processes.sum(asked):
            return
        if self._saved != done:
            self._save(done)
        raise TrainingStopped(f"stopped after {done} of {self._job.training.steps} steps, with a checkpoint")

    def _read(self, step: int, rows: slice) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return this process's rows of a batch, as the streams' files have them.

        Files are mapped: of one that was cut before, reading would end in a bus error; of one that was cut meanwhile,
        the rest of a page reads as zeros. So they are looked at before and after.
        """
        self._require_unchanged()
        batch = self._windows.read(self._windows.samples_of_step(step)[rows])
        self._require_unchanged()
        return batch

    def _peak(self) -> float | None:
        """Return FLOP/s of matrix products of all processes together; None where one of them could not measure it."""
        processes = self._processes
        mine = matrix_peak(self._job.training.execution, processes.device.type)
        peak = torch.tensor(math.nan if mine is None else mine, dtype=torch.float64, device=processes.device)
        processes.add(peak)()
        return None if peak.isnan() else float(peak)

    def _after(self, step: int) -> None:
        """Do what is due after a step."""
        training, done = self._job.training, step + 1
        last = done == training.steps
        if (looks := training.held_out) is not None:
            if looks.is_recorded(done, training.steps):
                self._record_held_out(step)
            elif looks.is_of_curve(done):
                self._add_to_curve(step)
        if training.samples is not None and done % training.samples.every_steps == 0:
            self._write_samples(step)
        if training.tasks is not None and done % training.tasks.every_steps == 0:
            self._add_tasks(step)
        if done % self._job.checkpoints.every_steps == 0 or last:
            self._save(done)

    def _first_model(self) -> LanguageModel:
        """Return the model as rank 0 begins with it; in other processes one without values."""
        job, past = self._job, self._past
        shape = {"vocab_size": job.vocab_size, "max_seq_len": job.seq_length}
        if not self._processes.first:
            return empty_model(job.model, **shape)
        if past.folder is None and job.initial is None:
            return build_model(job.model, **shape, seed=job.training.seed)
        folder = past.folder or job.initial
        assert folder is not None
        config = load_config(folder)
        grows = past.folder is None and self._adds_tokens(config.vocab_size)
        if config.model != job.model or (config.vocab_size != job.vocab_size and not grows):
            raise TrainingError(
                f"{folder} holds a model of {config.vocab_size} tokens with {config.model}; expected {job.vocab_size} "
                f"tokens and {job.model}: give the same model, and its tokenizer, which may have more added tokens"
            )
        model = empty_model(job.model, **shape)
        if is_sharded(folder):  # then each process of FSDP2 reads its own part later
            if self._processes.strategy != "fsdp":
                read_sharded(folder, model_tensors(model), MODEL)
            return model
        tensors = read_tensors(folder / MODEL_FILE)
        if grows:
            tensors = with_rows(tensors, model_tensors(model))
            logger.info("%d new tokens: their rows are the mean of the others", job.vocab_size - config.vocab_size)
        load_model_tensors(model, tensors, str(folder / MODEL_FILE))
        return model

    def _adds_tokens(self, rows: int) -> bool:
        """Return whether the tokenizer is one of ``rows`` tokens with further added tokens."""
        if self._job.tokenizer is None or rows >= self._job.vocab_size:
            return False
        added = open_tokenizer(self._job.tokenizer, self._job.eos_token).tokenizer.get_added_tokens_decoder()
        return set(range(rows, self._job.vocab_size)) <= set(added)

    def _load_state(self) -> None:
        """Give the optimiser its state, and with FSDP2 the model what a checkpoint in shards has of it."""
        processes, model, optimizer = self._processes, self._model, self._optimizer
        folder = processes.same_path(self._past.folder or Path())
        if processes.strategy == "fsdp" and is_sharded(folder):
            read_sharded(folder, model_tensors(model), MODEL)
            read_sharded(folder, begun_optimizer_tensors(optimizer, model), OPTIMIZER)
            return
        path, tensors = folder / OPTIMIZER_FILE, {}
        if processes.first and is_sharded(folder):
            tensors = {name: torch.empty(one.shape) for name, one in optimizer_tensors(optimizer, model).items()}
            read_sharded(folder, tensors, OPTIMIZER)
        elif processes.first:
            tensors = read_tensors(path)
        processes.spread_optimizer(model, optimizer, tensors, str(path))

    def _note_machine(self) -> None:
        """Record by whom the steps from here on are done, where that is not who did those before."""
        job, processes, segments = self._job, self._processes, self._past.segments
        now = describe_machine(job.training.execution) | {
            "processes": processes.size,
            "strategy": processes.strategy,
            "device": processes.device.type,
        }
        before = {name: value for name, value in segments[-1].items() if name != "from_step"} if segments else now
        if before != now:
            changed = {name: (before.get(name), now[name]) for name in now if before.get(name) != now[name]}
            logger.warning(
                "steps up to %d were done otherwise than those from here on (before, now): %s; the result can differ "
                "in its last bits from a run on one machine",
                self._past.steps,
                changed,
            )
        if not segments or before != now:
            segments.append({"from_step": self._past.steps, **now})

    def _record_held_out(self, step: int) -> None:
        """Measure what is part of the result; a loss that is not finite ends the run."""
        records = self._evaluate(step)
        if self._processes.first:
            for record in records:
                if not math.isfinite(record.nats):
                    raise self._diverged(f"the loss on held-out documents of {record.source!r} is {record.nats}")
            self._past.held_out.extend(records)
            self._listeners.figures(records)

    def _add_to_curve(self, step: int) -> None:
        """Measure a point that is for the eye alone: no value of it ends the run."""
        records = self._evaluate(step)
        if not self._processes.first:
            return
        if all(math.isfinite(record.nats) for record in records):
            self._past.curve.extend(records)
            self._listeners.figures(records)
        else:
            logger.warning("held-out after %s: not finite, so the curve has no point there", steps_done(step))

    def _evaluate(self, step: int) -> list[HeldOutRecord]:
        training = self._job.training
        assert training.held_out is not None and self._held_out is not None
        with self._not_compiled():
            records = evaluate_held_out(
                self._module,
                self._held_out,
                step=step,
                batch_size=training.held_out.batch_size,
                execution_parameters=training.execution,
                processes=self._processes,
                eos_id=self._job.eos_id if self._job.data.document_mask else None,
            )
        if self._processes.first:
            figures = ", ".join(f"{record.source} {record.bits_per_byte:.4f}" for record in records)
            logger.info("held-out after %s: bits per byte %s", steps_done(step), figures)
        return records

    def _write_samples(self, step: int) -> None:
        """Let rank 0 write a text for each prompt."""
        job, samples = self._job, self._job.training.samples
        assert samples is not None and job.tokenizer is not None
        model = self._whole_model()
        if model is not None:
            encoder = open_encoder(EncodingRules(job.tokenizer, job.eos_token, "control"))
            parameters = PromptParameters(
                **samples.model_dump(exclude={"every_steps"}), execution=job.training.execution
            )
            try:
                with self._not_compiled():
                    texts = [
                        SampleRecord(step, text.prompt, text.text) for text in generate(model, encoder, parameters)
                    ]
            except NonFiniteError as error:
                raise self._diverged(str(error)) from error
            self._model.train()
            self._past.samples.extend(texts)
            for text in texts:
                logger.info("after %s: %r -> %r", steps_done(step), text.prompt, text.text)
        self._processes.wait()

    def _add_tasks(self, step: int) -> None:
        """Let rank 0 run the tasks. They are for the eye alone: no figure of them ends the run."""
        model = self._whole_model()
        if model is not None:
            assert self._tasks is not None
            with self._not_compiled():
                records = self._tasks.point(model, step)
            self._model.train()
            self._past.tasks.extend(records)
            self._listeners.figures(records)
        self._processes.wait()

    def _whole_model(self) -> LanguageModel | None:
        """Return the model in rank 0, gathered where it is in shards; None in the others. All must call it."""
        job, processes = self._job, self._processes
        if processes.strategy != "fsdp":
            return self._model if processes.first else None
        (tensors,) = processes.gather(self._model, None)
        if not processes.first:
            return None
        model = empty_model(job.model, vocab_size=job.vocab_size, max_seq_len=job.seq_length)
        load_model_tensors(model, tensors, "the gathered model")
        return model

    def _diverged(self, found: str) -> NonFiniteError:
        """Return the error of a run whose model computes what is not finite."""
        last = self._past.history.last
        return NonFiniteError(
            f"after {last.step + 1:,} of {self._job.training.steps:,} steps, with loss {last.loss:g} and learning rate "
            f"{last.lr:g}: {found}. To train on, {LOWER_RATE}"
        )

    def _check_prompts(self) -> None:
        """Raise now, not at the first sample, for a prompt that leaves no room in the model's context."""
        job, samples = self._job, self._job.training.samples
        if samples is None:
            return
        if job.tokenizer is None:
            raise TrainingError("training.samples needs a tokenizer, the job names none; give one, or samples: null")
        encoder = open_encoder(EncodingRules(job.tokenizer, job.eos_token, "control"))
        for prompt in samples.prompts:
            length = len(encoder.encode([prompt]).values)  # EOS before the prompt instead of after it
            if length > job.seq_length:
                raise TrainingError(
                    f"the prompt {prompt[:40]!r} has {length} tokens with the EOS before it, expected at most "
                    f"{job.seq_length}; shorten it"
                )

    def _not_compiled(self) -> AbstractContextManager[Any]:
        """Return a context in which layers run as written: other shapes are not worth compiling for."""
        return torch.compiler.set_stance("force_eager") if self._job.training.compile else nullcontext()

    def _save(self, done: int) -> None:
        job, past = self._job, self._past
        self._require_same_streams()
        sharded = job.checkpoints.form == "sharded"
        model, optimizer = ({}, {}) if sharded else self._processes.gather(self._model, self._optimizer)
        if self._store is not None:
            state = {
                "format": _FORMAT,
                "run": job.run,
                "job": job.content,
                "step": done,
                "tokens": past.history.last.tokens,
                "batch_size": job.training.batch_size,
                "seq_length": job.seq_length,
                "skipped_steps": int(past.history.column("skipped").sum()),
                "segments": past.segments,
                "held_out_curve": [record_values(record) for record in past.curve],
                "task_curve": [record_values(record) for record in past.tasks],
            }
            self._store.save(done, lambda folder: self._write_files(folder, model, optimizer), state)
        elif sharded:
            self._write_shard(Path())
        self._saved = done
        self._processes.wait()

    def _write_shard(self, folder: Path) -> None:
        """Write this process's part of the state into the folder that rank 0 names; all must call it."""
        processes = self._processes
        place = processes.same_path(folder)
        tensors = _under(MODEL, model_tensors(self._model))
        tensors |= _under(OPTIMIZER, begun_optimizer_tensors(self._optimizer, self._model))
        write_shard(place, processes.rank, processes.size, tensors)
        processes.wait()

    def _require_same_streams(self) -> None:
        """Raise in the process that sees a changed file of a stream; none goes on to save what was learned from it."""
        change = self._files.change()
        seen = torch.tensor(float(change is not None), dtype=torch.float64, device=self._processes.device)
        self._processes.add(seen)()
        self._require_unchanged()
        if seen:
            self._processes.wait()  # for the end of the process that saw it, which says what it was

    def _require_unchanged(self) -> None:
        if (change := self._files.change()) is not None:
            raise TrainingError(
                f"{change}. Nothing was saved since step {self._saved}: put the file back as it was and run the same "
                "command again"
            )

    def _write_files(self, folder: Path, model: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        job, past = self._job, self._past
        if job.checkpoints.form == "sharded":
            self._write_shard(folder)
        else:
            write_tensors(folder / MODEL_FILE, model)
            write_tensors(folder / OPTIMIZER_FILE, optimizer)
        config = CheckpointConfig(
            format="everytoken-checkpoint/1",
            model=job.model,
            vocab_size=job.vocab_size,
            seq_length=job.seq_length,
            eos_id=job.eos_id,
        )
        write_config(folder, config)
        past.history.write(folder / HISTORY_FILE)
        write_records(folder / HELD_OUT_FILE, past.held_out, HELD_OUT)
        write_records(folder / SAMPLES_FILE, past.samples, SAMPLES)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _open_windows(job: TrainingJob, processes: Ranks) -> TrainingWindows:
    """Open the streams; rank 0 checks them as the parameters say, the others their sizes."""
    data = job.data if processes.first else job.data.model_copy(update={"check": "sizes"})
    windows = open_training_windows(job.streams, data, job.training.batch_size, job.seq_length)
    needed, available = job.training.steps * job.training.batch_size, windows.samples_available
    if available is not None and needed > available:
        raise TrainingError(
            f"{job.training.steps} steps of {job.training.batch_size} windows read {needed} samples, data.replay has "
            f"{available}; lower optimisation.steps to {available // job.training.batch_size} or widen the replay"
        )
    return windows


def _held_out_chunks(job: TrainingJob) -> HeldOutChunks | None:
    if job.training.held_out is None:
        return None
    if job.held_out is None:
        raise TrainingError(
            "training.held_out needs held-out chunks, the job names no file; prepare one, or set it null"
        )
    chunks = read_held_out(job.held_out, job.held_out_sha256)
    if chunks.tokens.shape[1] != job.seq_length + 1:
        raise TrainingError(
            f"{job.held_out} has chunks of {chunks.tokens.shape[1] - 1} predictions, expected {job.seq_length}; "
            "prepare it again"
        )
    return chunks
