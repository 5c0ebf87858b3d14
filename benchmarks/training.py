"""How fast training is, beside a plain loop of the same size, and beside what the machine could do.

    python benchmarks/training.py                                  # the demo model, three precisions, batch 4, 8 and 16
    python benchmarks/training.py --threads 1 --batch-sizes 4
    python benchmarks/training.py --compile-plain --modes medium   # the plain loop at its best: torch.compile

Both loops do a step in turn, in one process, with the same threads, precision and shape: ours is
``training.loop.train_steps`` fed by ``tokens.open_training_windows``, with deterministic algorithms and all checks; the
other is ``nanogpt_style.py``. For each the median step: tokens/s by the wall clock and tokens a CPU second, which says
more on a machine that does other work too. ``ratio`` is the median of (their time / our time) over neighbouring steps,
``loader`` the share of our step that ``read_batch`` takes, and MFU the share of the fastest product of two square
matrices (``training.execution.matrix_peak``) at ``LanguageModel.flop_per_token`` a token.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from nanogpt_style import Config, train
from numpy.typing import NDArray

from everytoken.models import LlamaParameters, build_model
from everytoken.seeds import numpy_generator
from everytoken.tokens.order import DataParameters, open_training_windows
from everytoken.training import ExecutionParameters, OptimisationParameters
from everytoken.training.step import describe_machine, execution, make_optimizer, matrix_peak, prepare, train_steps

MODES = {"highest": ("float32", "highest"), "medium": ("float32", "medium"), "bfloat16": ("bfloat16", "medium")}
TOKENS = 4_000_000
WARM_UP = 3


def training_parameters(
    machine: ExecutionParameters, batch_size: int, steps: int, options: argparse.Namespace
) -> OptimisationParameters:
    """Return parameters of a run that goes on for as long as it is asked."""
    return OptimisationParameters(
        seed=0,
        steps=steps,
        batch_size=batch_size,
        micro_batch_size=batch_size,
        learning_rate=3e-3,
        min_lr_ratio=0.1,
        warmup_steps=2,
        betas=(0.9, 0.95),
        adam_eps=1e-8,
        weight_decay=0.1,
        gradient_clip=1.0,
        max_skipped_in_a_row=0,
        activation_checkpointing=False,
        compile=options.compile,
        held_out=None,
        samples=None,
        execution=machine,
    )


def timed(steps: Iterator[object]) -> tuple[float, float]:
    """Do one step; return its seconds by the wall clock and of the CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    next(steps)
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(mode: str, batch_size: int, folder: Path, options: argparse.Namespace) -> None:
    """Print one row: both loops in one mode with one batch size."""
    precision, matmul_precision = MODES[mode]
    machine = ExecutionParameters(threads=options.threads, precision=precision, matmul_precision=matmul_precision)
    llama = LlamaParameters(
        family="llama",
        d_model=options.d_model,
        n_layers=options.n_layers,
        n_heads=options.n_heads,
        n_kv_heads=options.n_kv_heads,
        d_ff=options.d_ff,
        tied_embeddings=True,
        rope_theta=10000.0,
        norm_eps=1e-5,
        init_std=0.02,
    )
    data = DataParameters(
        schedule="integer",
        weights=None,
        replay=None,
        later_epochs="as_written",
        seed=0,
        check="sizes",
        document_mask=False,
    )
    windows = open_training_windows({"tokens": folder / "tokens.pt"}, data, batch_size, options.seq_length)
    loader = []

    def read_batch(step: int) -> tuple[NDArray[np.int64], NDArray[np.generic]]:
        started = time.perf_counter()
        batch = windows.read_batch(step)
        loader.append(time.perf_counter() - started)
        return batch

    model = build_model(llama, vocab_size=options.vocab_size, max_seq_len=options.seq_length, seed=0)
    training = training_parameters(machine, batch_size, options.steps + WARM_UP, options)
    module = prepare(model, training)
    optimizer = make_optimizer(model, training)
    ours = train_steps(model, optimizer, read_batch, training, first_step=0, module=module)
    config = Config(
        vocab_size=options.vocab_size,
        block_size=options.seq_length,
        n_layer=options.n_layers,
        n_head=options.n_heads,
        n_kv_head=options.n_kv_heads,
        n_embd=options.d_model,
        d_ff=options.d_ff,
        batch_size=batch_size,
        learning_rate=3e-3,
    )
    plain = train(
        config,
        folder / "tokens.bin",
        np.dtype("<u2"),
        bfloat16=precision == "bfloat16",
        compiled=options.compile_plain,
    )
    torch.set_num_threads(options.threads)
    torch.set_float32_matmul_precision(matmul_precision)
    peak = matrix_peak.__wrapped__(machine, seconds=1.0)  # before and after: a busy machine shows less of it
    rows = []
    for _ in range(options.steps + WARM_UP):
        theirs = timed(plain)
        with execution(machine):  # deterministic algorithms for ours alone
            rows.append((theirs, timed(ours)))
    rows, loader = rows[WARM_UP:], loader[WARM_UP:]
    tokens = batch_size * options.seq_length
    walls = [statistics.median(row[side][0] for row in rows) for side in (0, 1)]
    cpus = [statistics.median(row[side][1] for row in rows) for side in (0, 1)]
    ratios = [statistics.median(row[0][clock] / row[1][clock] for row in rows) for clock in (0, 1)]
    peak = max(peak, matrix_peak.__wrapped__(machine, seconds=1.0))
    mfu = [model.flop_per_token(options.seq_length) * tokens / seconds / peak for seconds in walls]
    print(
        f"{mode:<9} {batch_size:>5} | {tokens / walls[0]:>8.0f} {tokens / walls[1]:>8.0f} {ratios[0]:>6.2f} | "
        f"{tokens / cpus[0]:>8.0f} {tokens / cpus[1]:>8.0f} {ratios[1]:>6.2f} | {mfu[0]:>5.0%} {mfu[1]:>5.0%} of "
        f"{peak / 1e9:>5.0f} GFLOP/s | {statistics.median(loader) / walls[1]:>6.2%}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[4, 8, 16])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="compile our layers")
    parser.add_argument("--compile-plain", action="store_true", help="compile the model of the plain loop")
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--d-model", type=int, default=192)
    parser.add_argument("--n-layers", type=int, default=4)
    parser.add_argument("--n-heads", type=int, default=3)
    parser.add_argument("--n-kv-heads", type=int, default=1)
    parser.add_argument("--d-ff", type=int, default=512)
    options = parser.parse_args()
    machine = ExecutionParameters(threads=options.threads, precision="float32", matmul_precision="medium")
    print(f"{describe_machine(machine)['cpu']}, torch {torch.__version__}, {options.threads} threads")
    print("                |  tokens/s (wall clock)   |   tokens a CPU second    |      MFU                     |")
    print(
        "mode      batch |    plain     ours  ratio |    plain     ours  ratio | plain  ours                  | loader"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = numpy_generator(0).integers(0, options.vocab_size, TOKENS)
        tokens.astype("<u2").tofile(folder / "tokens.bin")
        torch.save(torch.from_numpy(tokens.astype("<i4")), folder / "tokens.pt")
        for mode in options.modes:
            for batch_size in options.batch_sizes:
                compare(mode, batch_size, folder, options)


if __name__ == "__main__":
    main()
