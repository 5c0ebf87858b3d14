"""Tiny models, batches and parameters for the tests of training."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from everytoken.models import LlamaParameters
from everytoken.models.families import build_model
from everytoken.seeds import numpy_generator
from everytoken.tokens import open_encoder
from everytoken.training import ExecutionParameters, TrainingParameters

VOCAB, SEQ = 61, 12
EXECUTION = ExecutionParameters(threads=1, precision="float32", matmul_precision="highest")
LLAMA = LlamaParameters(
    family="llama",
    d_model=16,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    d_ff=24,
    rope_theta=10000.0,
    norm_eps=1e-5,
    init_std=0.02,
)
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
    "execution": EXECUTION,
}


def training_parameters(**changes):
    return TrainingParameters(**{**TRAINING, **changes})


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
    return open_encoder(path, EOS, special_tokens_in_text="control")


def byte_model(seed=1):
    return build_model(LLAMA, vocab_size=257, max_seq_len=SEQ, seed=seed)
