"""Tiny models, batches and parameters for the tests of training."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from everytoken.models.families import build_model
from everytoken.seeds import numpy_generator
from everytoken.shards import file_sha256
from everytoken.tokens import EncodingRules, WindowWriter, open_encoder
from everytoken.tokens.order.parameters import DataParameters
from everytoken.training import (
    CheckpointParameters,
    DistributionParameters,
    ExecutionParameters,
    OptimisationParameters,
)
from everytoken.training.checkpoints.store import CheckpointStore
from everytoken.training.evaluation.held_out import prepare_held_out, write_held_out
from everytoken.training.parameters import PeriodicHeldOut, PeriodicSamples
from everytoken.training.run import session
from everytoken.training.run.job import TrainingJob
from tests.models.mamba3.shapes import MAMBA3
from tests.models.open_mythos.tiny import BUDGET, shape
from tests.models.tiny_llama import LLAMA

VOCAB, SEQ = 61, 12
MYTHOS = shape(max_loops=3, halting=BUDGET, depth={"kind": "uniform", "least": 1, "most": 3})
"""A looped block with experts, positions that halt, and another number of loops in each step."""
MAMBA = MAMBA3.model_copy(update={"d_model": 16, "head_width": 8, "state_width": 4, "rank": 2, "d_ff": 24, "chunk": 4})
"""A recurrent model whose windows have three chunks."""
FAMILIES = {model.family: model for model in (LLAMA, MYTHOS, MAMBA)}
EXECUTION = ExecutionParameters(threads=1, precision="float32", matmul_precision="highest")
TRAINING = {
    "seed": 7,
    "steps": 6,
    "batch_size": 4,
    "micro_batch_size": 4,
    "learning_rate": 1e-2,
    "min_lr_ratio": 0.1,
    "warmup_steps": 2,
    "betas": (0.9, 0.95),
    "adam_eps": 1e-8,
    "weight_decay": 0.1,
    "gradient_clip": 1.0,
    "max_skipped_in_a_row": 4,
    "activation_checkpointing": False,
    "compile": False,
    "held_out": None,
    "samples": None,
    "execution": EXECUTION,
}


def training_parameters(**changes):
    return OptimisationParameters(**{**TRAINING, **changes})


def tiny_model(seed=1):
    return build_model(LLAMA, vocab_size=VOCAB, max_seq_len=SEQ, seed=seed)


def random_batches(batch_size=4, vocab=VOCAB):
    """Windows in which each token follows from the one before (there is something to learn), half of them padded."""

    def read_batch(step):
        generator = numpy_generator(3, step)
        tokens = (generator.integers(0, vocab, (batch_size, 1)) + np.arange(SEQ + 1)) % vocab
        mask = np.ones((batch_size, SEQ), bool)
        for row, length in enumerate(generator.integers(1, SEQ + 1, batch_size)):
            if row % 2:
                mask[row, length:] = False
        return tokens.astype(np.int64), mask

    return read_batch


EOS = "<|endoftext|>"


def byte_encoder(folder):
    """Return an encoder with a token for each byte and EOS (257 in all), from a file in ``folder``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=257,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([], trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return open_encoder(EncodingRules(path, EOS, "control"))


def byte_model(seed=1):
    return build_model(LLAMA, vocab_size=257, max_seq_len=SEQ, seed=seed)


DATA = DataParameters(
    schedule="integer",
    weights=None,
    replay=None,
    later_epochs="as_written",
    seed=5,
    check="sampled",
    document_mask=False,
)


def write_streams(folder):
    """Write a compact and an annotated stream of sequences that count up, EOS = 256 after each."""

    def window(number):
        generator = numpy_generator(11, number)
        length = int(generator.integers(3, SEQ + 1))
        content = (int(generator.integers(0, 256)) + np.arange(SEQ)) % 256
        return content, length

    compact, annotated = folder / "compact", folder / "annotated"
    compact.mkdir(parents=True)
    annotated.mkdir()
    with WindowWriter(compact / "compact", SEQ + 1, np.uint16) as writer:
        rows = [np.append(window(number)[0], 256) for number in range(60)]
        writer.write(np.array(rows, np.uint16))
    with WindowWriter(annotated / "annotated", SEQ + 1, np.uint16) as writer:
        padded, lengths = [], []
        for number in range(60, 90):
            content, length = window(number)
            padded.append(np.append(content[:length], np.full(SEQ + 1 - length, 256)))
            lengths.append(length)
        writer.write(np.array(padded, np.uint16))
    np.save(annotated / "token_lengths.npy", np.array(lengths, np.int32))


class DocumentsPart:
    """As much of a part of documents as training reads."""

    name = "part_00000"

    def __init__(self, texts, sources):
        columns = {
            "text": pa.array(texts, pa.large_string()),
            "source": pa.array(sources),
            "shard_index": pa.array([0] * len(texts), pa.int64()),
            "row": pa.array(range(len(texts)), pa.int64()),
        }
        self._batch = pa.record_batch(columns)

    def batches(self, columns=None):
        yield self._batch.select(columns)


HELD_OUT_TEXTS = ["abcdefgh", "the quick brown fox jumps over the lazy dog", "x", "mnopqrst", "0123456789" * 3]
HELD_OUT_SOURCES = ["wiki", "wiki", "chat", "chat", "wiki"]


def write_inputs(folder):
    """Write everything that `tiny_job` names."""
    write_streams(folder / "streams")
    encoder = byte_encoder(folder)
    part = DocumentsPart(HELD_OUT_TEXTS, HELD_OUT_SOURCES)
    chunks = prepare_held_out(encoder, [part], seq_length=SEQ, documents=4, seed=7)
    write_held_out(folder / "held_out.safetensors", chunks)


def tiny_job(
    inputs,
    checkpoints,
    *,
    run="a" * 64,
    processes=1,
    strategy="ddp",
    every_steps=5,
    data=DATA,
    model=LLAMA,
    form="whole",
    **changes,
):
    """Return a job over what `write_inputs` wrote to ``inputs``, of 20 steps of 8 windows; ``changes`` of training."""
    parameters = {"steps": 20, "batch_size": 8, "micro_batch_size": 1, **changes}
    return TrainingJob(
        run=run,
        streams={name: inputs / "streams" / name for name in ("compact", "annotated")},
        data=data,
        model=model,
        training=training_parameters(**parameters),
        checkpoints=CheckpointParameters(
            folder=str(checkpoints), every_steps=every_steps, milestone_steps=10, mirror=None, form=form
        ),
        distribution=DistributionParameters(processes=processes, nodes=1, strategy=strategy, device="cpu"),
        vocab_size=257,
        seq_length=SEQ,
        eos_id=256,
        initial=None,
        held_out=inputs / "held_out.safetensors",
        held_out_sha256=file_sha256(inputs / "held_out.safetensors"),
        tokenizer=inputs / "tokenizer.json",
        eos_token=EOS,
    )


LOOKS = {
    "held_out": PeriodicHeldOut(every_steps=4, documents=4, batch_size=2, curve_every_steps=3),
    "samples": PeriodicSamples(every_steps=6, seed=1, prompts=("abc", ""), max_new_tokens=5, temperature=0.7, top_k=20),
}
"""Changes of a job that looks at held-out documents and writes samples."""


def newest(job):
    """Return the newest checkpoint of the run."""
    return CheckpointStore(job.folder, mirror=job.mirror, milestone_steps=10).newest()


def file_digests(checkpoint):
    """Return SHA-256 of each file of a checkpoint, as SHA256SUMS says."""
    lines = (checkpoint.folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


class Stopped(Exception):
    """Raised by `stop_after`."""


@contextmanager
def stop_after(step):
    """Stop a run right after it has saved its checkpoint of ``step`` steps."""
    save = session._Session._save

    def save_and_stop(self, done):
        save(self, done)
        if done == step:
            raise Stopped

    with patch.object(session._Session, "_save", save_and_stop), suppress(Stopped):
        yield
