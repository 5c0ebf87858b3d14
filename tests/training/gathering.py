"""What two processes with FSDP take at their peak while a checkpoint is gathered, less what they had before the model.

Writes ``<rank>.json`` into FOLDER: the bytes measured, and those that the plan foresees.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict  # noqa: F401 - code that is loaded at its first use
from torch.distributed.fsdp import fully_shard  # noqa: F401

from everytoken.models import LlamaParameters
from everytoken.models.families import build_model, empty_model
from everytoken.training import CheckpointParameters, DistributionParameters
from everytoken.training.checkpoints.model import write_tensors
from everytoken.training.run.plan import make_training_plan
from everytoken.training.step.distribution import these_processes
from everytoken.training.step.loop import make_optimizer, prepare
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import DATA, training_parameters

MODEL = LlamaParameters(**{**LLAMA.model_dump(), "d_model": 256, "d_ff": 1024, "n_layers": 4})
SHAPE = {"vocab_size": 32_768, "max_seq_len": 16}


def status(key):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key + ":"))
    return int(line.split()[1]) * 1024


def work(folder, rank):
    training = training_parameters(batch_size=2, micro_batch_size=1)
    distribution = DistributionParameters(processes=2, nodes=1, strategy="fsdp", device="cpu")
    plan = make_training_plan(
        MODEL,
        training,
        DATA,
        CheckpointParameters(folder="unused", every_steps=1, milestone_steps=None, mirror=None),
        distribution,
        vocab_size=SHAPE["vocab_size"],
        seq_length=SHAPE["max_seq_len"],
        stream_sizes=None,
    )
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    processes = these_processes(distribution)
    before = status("VmRSS")
    model = build_model(MODEL, **SHAPE, seed=1) if rank == 0 else empty_model(MODEL, **SHAPE)
    prepare(model, training, processes)
    optimizer = make_optimizer(model, training)
    processes.gather(model, optimizer)  # AdamW's state is made
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for name, tensors in zip(("model", "optimizer"), processes.gather(model, optimizer), strict=True):
        if rank == 0:
            write_tensors(folder / name, tensors)
    taken = {"measured": status("VmHWM") - before, "planned": plan.peak_memory, "step": plan.memory.total}
    (folder / f"{rank}.json").write_text(json.dumps(taken))
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    child = os.fork()
    if child == 0:
        work(Path(sys.argv[1]), 1)
    work(Path(sys.argv[1]), 0)
