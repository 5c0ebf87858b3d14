"""How well the looped family learns and how fast it is, next to a Llama of the same width: one seed, one order of text.

    python benchmarks/families.py data/mythos_small/05_model_input/compact_stream --vocab-size 4096
    python benchmarks/families.py STREAM --vocab-size 4096 --d-model 64 --n-heads 2 --steps 150 --halting budget

The Llama has ``--layers`` layers, the OpenMythos one before, one after, and between them one that is looped so often,
with 4 experts of which a token reaches 2. Both do a step in turn, on the same windows: equal tokens. Then the one of
fewer FLOP a token is trained again, with as many steps more as make the FLOP equal. ``loss`` is in nats a token, on the
windows after all that were read. Time is that of the CPU by `LanguageModel.flop_per_token`, median over steps.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from everytoken.models import LanguageModel, LlamaParameters, ModelParameters, OpenMythosParameters, build_model
from everytoken.tokens.order import DataParameters, TrainingWindows, open_training_windows
from everytoken.training import ExecutionParameters, OptimisationParameters
from everytoken.training.step import Objective, describe_machine, execution, make_optimizer, train_steps

WARM_UP = 3
DATA = DataParameters(schedule="integer", weights=None, replay=None, later_epochs="as_written", seed=0, check="sizes")


def shapes(options: argparse.Namespace) -> tuple[LlamaParameters, OpenMythosParameters]:
    """Return the two shapes."""
    d = options.d_model
    shared = {"d_model": d, "n_heads": options.n_heads, "rope_theta": 10000.0, "norm_eps": 1e-5}
    llama = {
        "family": "llama",
        "n_layers": options.layers,
        "n_kv_heads": 1,
        "d_ff": 8 * d // 3,
        "tied_embeddings": True,
        "init_std": 0.02,
    }
    mythos = {
        "family": "open_mythos",
        "attention": {"kind": "gqa", "n_kv_heads": 1},
        "prelude_layers": 1,
        "coda_layers": 1,
        "max_loops": options.layers,
        "d_ff": 4 * d // 3,
        "experts": {
            "n_experts": 4,
            "bias_rate": 1e-2,
            "per_token": 2,
            "shared": 1,
            "d_ff": 2 * d // 3,
            "shared_width": 2,
            "layers": "recurrent",
        },
        "lora_rank": 16,
        "loop_embedding": d // 8 * 2,
        "halting": {"kind": "budget", "threshold": 0.99, "depth": max(1.0, options.layers - 1)}
        if options.halting == "budget"
        else {"kind": "off"},
    }
    return LlamaParameters.model_validate(shared | llama), OpenMythosParameters.model_validate(shared | mythos)


class Run:
    """A model and the steps of its training, timed."""

    def __init__(
        self, shape: ModelParameters, windows: TrainingWindows, steps: int, options: argparse.Namespace
    ) -> None:
        self.steps, self._windows, self._batch = steps, windows, options.batch_size
        self.model: LanguageModel = build_model(
            shape, vocab_size=options.vocab_size, max_seq_len=windows.seq_length, seed=0
        )
        training = training_parameters(steps, options)
        self._records: Iterator[object] = train_steps(
            self.model, make_optimizer(self.model, training), windows.read_batch, training, first_step=0
        )
        self.seconds: list[float] = []

    def step(self) -> None:
        """Do one step."""
        started = time.process_time()
        next(self._records)
        self.seconds.append(time.process_time() - started)

    @property
    def flop_per_token(self) -> float:
        """FLOP of a token, forward and backward."""
        return self.model.flop_per_token(self._windows.seq_length)

    @property
    def flop(self) -> float:
        """FLOP of all steps."""
        return self.flop_per_token * self.steps * self._batch * self._windows.seq_length

    @property
    def speed(self) -> float:
        """FLOP a CPU second."""
        flop = self.flop_per_token * self._batch * self._windows.seq_length
        return flop / statistics.median(self.seconds[WARM_UP:])

    @torch.no_grad()
    def loss(self, first: int, count: int) -> float:
        """Return nats a token on windows from sample ``first`` on."""
        total, counted = 0.0, 0
        for start in range(first, first + count, self._batch):
            numbers = torch.arange(start, min(start + self._batch, first + count)).numpy()
            tokens, mask = (torch.from_numpy(array) for array in self._windows.read(numbers))
            losses = Objective(self.model)(tokens, mask == 1, each=True)
            total, counted = total + float(losses.sum()), counted + len(losses)
        return total / counted


def training_parameters(steps: int, options: argparse.Namespace) -> OptimisationParameters:
    """Return the same optimisation for both families."""
    return OptimisationParameters(
        seed=0,
        steps=steps,
        batch_size=options.batch_size,
        micro_batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        min_lr_ratio=0.1,
        warmup_steps=min(10, steps - 1),
        betas=(0.9, 0.95),
        adam_eps=1e-8,
        weight_decay=0.1,
        gradient_clip=1.0,
        max_skipped_in_a_row=0,
        execution=machine(options),
    )


def machine(options: argparse.Namespace) -> ExecutionParameters:
    """Return threads and precision."""
    return ExecutionParameters(threads=options.threads, precision=options.precision, matmul_precision="medium")


def show(name: str, run: Run, loss: float) -> None:
    """Print one row."""
    print(
        f"{name:<28} {run.model.parameter_count():>10,} {run.steps:>6} {run.flop_per_token / 1e6:>8.2f} "
        f"{run.flop / 1e12:>8.2f} {run.speed / 1e9:>8.1f} {loss:>8.4f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", type=Path, help="a stream of windows")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--held-out", type=int, default=128, help="windows")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--d-model", type=int, default=192)
    parser.add_argument("--n-heads", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--halting", choices=["off", "budget"], default="off")
    options = parser.parse_args()
    windows = open_training_windows({"compact": options.stream}, DATA, options.batch_size)
    with execution(machine(options)):
        llama, mythos = (Run(shape, windows, options.steps, options) for shape in shapes(options))
        runs = {"llama": llama, "open_mythos": mythos}
        dearer, cheaper = sorted(runs, key=lambda name: -runs[name].flop_per_token)
        ratio = runs[dearer].flop_per_token / runs[cheaper].flop_per_token
        longer = math.ceil(options.steps * ratio)
        held_out = longer * options.batch_size
        if held_out + options.held_out > windows.sizes[0]:
            raise SystemExit(f"{options.stream}: {windows.sizes[0]} windows, {held_out + options.held_out} are needed")
        print(f"{describe_machine(machine(options))['cpu']}, {options.threads} threads, {options.precision}")
        print(f"{'':<28} {'parameters':>10} {'steps':>6} {'MFLOP/t':>8} {'TFLOP':>8} {'GFLOP/s':>8} {'loss':>8}")
        for _ in range(options.steps):
            llama.step()
            mythos.step()
        for name, run in runs.items():
            show(f"{name}, equal tokens", run, run.loss(held_out, options.held_out))
        more = Run(shapes(options)[cheaper == "open_mythos"], windows, longer, options)
        for _ in range(longer):
            more.step()
        show(f"{cheaper}, equal FLOP", more, more.loss(held_out, options.held_out))
    print(f"time per FLOP, open_mythos / llama: {llama.speed / mythos.speed:.2f}")


if __name__ == "__main__":
    main()
