"""The memory that a plan foresees for one process, beside what the process really takes at its peak.

    python benchmarks/memory_plan.py --d-model 256 --n-layers 8 --vocab-size 8192 --seq-length 256 --micro-batch 16
    MALLOC_MMAP_THRESHOLD_=65536 torchrun --nproc-per-node 2 benchmarks/memory_plan.py --strategy fsdp

Builds the model, and does two optimiser steps as the training loop does them (AdamW, chunked loss, autocast). The peak
of the second is Linux's VmHWM, less what the process had before the model was built, with torch loaded. Prints both,
and their ratio, as seen by the last process. The variable makes glibc give back what is freed; without it a process on
a CPU keeps up to twice as much with FSDP, whose buffers come and go.
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

import torch

from everytoken.models import LlamaParameters, build_model
from everytoken.seeds import torch_generator
from everytoken.tokens.order import DataParameters
from everytoken.training import (
    CheckpointParameters,
    DistributionParameters,
    ExecutionParameters,
    OptimisationParameters,
)
from everytoken.training.run import make_training_plan
from everytoken.training.step import Objective, Ranks, autocast, execution, join, these_processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("d-model", 256),
        ("n-layers", 8),
        ("n-heads", 4),
        ("n-kv-heads", 2),
        ("d-ff", 768),
        ("vocab-size", 8192),
        ("seq-length", 256),
        ("micro-batch", 16),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp", help="of the processes of torchrun")
    options = parser.parse_args()
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
    how = ExecutionParameters(threads=1, precision=options.precision, matmul_precision="medium")
    training = OptimisationParameters(
        seed=0,
        steps=2,
        batch_size=options.micro_batch * int(os.environ.get("WORLD_SIZE", "1")),
        micro_batch_size=options.micro_batch,
        learning_rate=1e-3,
        min_lr_ratio=0.1,
        warmup_steps=1,
        betas=(0.9, 0.95),
        adam_eps=1e-8,
        weight_decay=0.1,
        gradient_clip=1.0,
        max_skipped_in_a_row=0,
        activation_checkpointing=options.activation_checkpointing,
        compile=False,
        held_out=None,
        samples=None,
        execution=how,
    )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    distribution = DistributionParameters(processes=world, nodes=1, strategy=options.strategy, device="cpu")
    if world > 1:
        join(distribution)
    processes = these_processes(distribution)
    plan = make_training_plan(
        llama,
        training,
        DataParameters(
            schedule="integer",
            weights=None,
            replay=None,
            later_epochs="as_written",
            seed=0,
            check="sizes",
            document_mask=False,
        ),
        CheckpointParameters(folder="unused", every_steps=2, milestone_steps=None, mirror=None),
        distribution,
        vocab_size=options.vocab_size,
        seq_length=options.seq_length,
        stream_sizes=None,
    )
    with execution(how):
        taken = _measured(llama, training, options, processes)
    if processes.rank == processes.size - 1:
        print("\n".join(plan.lines()))
        print(f"measured: {taken / 1e9:.3f} GB, {taken / plan.memory.total:.2f} times the plan's")


def _measured(
    llama: LlamaParameters, training: OptimisationParameters, options: argparse.Namespace, processes: Ranks
) -> int:
    tokens = torch.randint(
        0, options.vocab_size, (options.micro_batch, options.seq_length + 1), generator=torch_generator(0, "tokens")
    )
    counted = torch.ones(tokens[:, 1:].shape, dtype=torch.bool)
    (torch.ones(256, 256) @ torch.ones(256, 256)).sum()
    if processes.size > 1:  # their code takes 70 MB
        importlib.import_module("torch.distributed.checkpoint.state_dict")
        importlib.import_module("torch.distributed.fsdp")
    before = _status("VmRSS")
    model = build_model(llama, vocab_size=options.vocab_size, max_seq_len=options.seq_length, seed=0)
    model.activation_checkpointing = training.activation_checkpointing
    module = processes.share(Objective(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, fused=True)
    for _ in range(training.steps):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        with autocast(training.execution):
            loss = module(tokens, counted)
        (loss / counted.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return _status("VmHWM") - before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


if __name__ == "__main__":
    main()
