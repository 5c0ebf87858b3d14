"""How fast training is, beside what the machine could do: tokens/s, FLOP/s, and the ratio to the measured peak.

    python benchmarks/training.py --threads 2 --precision bfloat16

A training step (forward and backward) needs about ``6 N + 6 L d S`` FLOP a token: N entries of matrices, the tied
output matrix counted once, and attention over S positions of which half are seen on average. The peak is the
fastest of many products of two 2,048 x 2,048 matrices in the same precision with the same threads, so the ratio
says how much of the time is spent in matrix products. Positions that do not count in the loss skip the output
matrix; here all count. On a machine that does other work too, many threads wait for each other: look at the best
step, or use one thread and tokens a CPU second.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from everytoken.models import LlamaParameters
from everytoken.models.families import build_model
from everytoken.seeds import numpy_generator, torch_generator
from everytoken.training import ExecutionParameters, TrainingParameters
from everytoken.training.execution import describe_machine, execution
from everytoken.training.loop import make_optimizer, train_steps


def matrix_peak(execution_parameters: ExecutionParameters, size: int, repeats: int) -> float:
    """Return FLOP/s of the fastest of ``repeats`` products of two (size, size) matrices."""
    dtype = torch.bfloat16 if execution_parameters.precision == "bfloat16" else torch.float32
    generator = torch_generator(0, "benchmark")
    a, b = (torch.randn(size, size, generator=generator).to(dtype) for _ in range(2))
    seconds = []
    with execution(execution_parameters):
        for _ in range(repeats):
            started = time.perf_counter()
            torch.mm(a, b)
            seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds)


def flop_per_token(model: LlamaParameters, vocab_size: int, seq_length: int) -> float:
    """Return FLOP of forward and backward a token: 6 a matrix entry, and causal attention."""
    head_width = model.d_model // model.n_heads
    attention = model.d_model * (model.n_heads + 2 * model.n_kv_heads) * head_width + model.d_model**2
    entries = vocab_size * model.d_model + model.n_layers * (attention + 3 * model.d_model * model.d_ff)
    return 6 * entries + 6 * model.n_layers * model.d_model * seq_length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--matmul-precision", choices=["highest", "high", "medium"], default="medium")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-length", type=int, default=256)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--d-model", type=int, default=192)
    parser.add_argument("--n-layers", type=int, default=4)
    parser.add_argument("--n-heads", type=int, default=3)
    parser.add_argument("--n-kv-heads", type=int, default=1)
    parser.add_argument("--d-ff", type=int, default=512)
    options = parser.parse_args()
    machine = ExecutionParameters(
        threads=options.threads, precision=options.precision, matmul_precision=options.matmul_precision
    )
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
    training = TrainingParameters(
        seed=0,
        steps=options.steps,
        batch_size=options.batch_size,
        micro_batch_size=options.batch_size,
        learning_rate=1e-3,
        min_lr_ratio=0.1,
        warmup_steps=1,
        betas=(0.9, 0.95),
        adam_eps=1e-8,
        weight_decay=0.1,
        gradient_clip=1.0,
        execution=machine,
    )

    def read_batch(step: int) -> tuple[np.ndarray, np.ndarray]:
        shape = (options.batch_size, options.seq_length)
        tokens = numpy_generator(0, step).integers(0, options.vocab_size, (shape[0], shape[1] + 1))
        return tokens, np.ones(shape, bool)

    peak = matrix_peak(machine, 2048, 20)
    model = build_model(llama, vocab_size=options.vocab_size, max_seq_len=options.seq_length, seed=0)
    cpu_started = time.process_time()
    with execution(machine):
        records = list(train_steps(model, make_optimizer(model, training), read_batch, training, first_step=0))
    cpu_seconds = time.process_time() - cpu_started
    peak = max(peak, matrix_peak(machine, 2048, 20))
    tokens = options.batch_size * options.seq_length
    median = statistics.median(record.seconds for record in records)
    best = min(record.seconds for record in records)
    flop = flop_per_token(llama, options.vocab_size, options.seq_length)
    print(f"machine               {describe_machine(machine)}")
    print(f"model                 {model.parameter_count() / 1e6:.2f} M parameters, {flop / 1e6:.1f} MFLOP a token")
    print(f"matrix peak           {peak / 1e9:.0f} GFLOP/s")
    for name, seconds in (("median step", median), ("best step", best)):
        rate = tokens / seconds
        print(
            f"{name:<22}{seconds * 1e3:.0f} ms, {rate:.0f} tokens/s, {rate * flop / 1e9:.0f} GFLOP/s, "
            f"{rate * flop / peak:.0%} of the peak"
        )
    print(f"tokens a CPU second   {tokens * len(records) / cpu_seconds:.0f}")


if __name__ == "__main__":
    main()
