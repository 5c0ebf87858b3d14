"""The processes of the tests of distribution: 2 or 4, with either strategy, over the inputs in a folder.

Arguments: the folder, the family of the model, the number of processes.
"""

import json
import os
import shutil
import signal
import sys
import traceback
import warnings
from pathlib import Path
from unittest.mock import patch

import torch
import torch._dynamo  # what an optimiser imports: once, before the ranks are forked
import torch.distributed as dist

from everytoken.tokens.order.loader import TrainingWindows
from everytoken.training.run.launch import run_job
from tests.training.tiny import FAMILIES, LOOKS, stop_after, tiny_job

WORLDS = [(2, "ddp"), (2, "fsdp"), (4, "ddp"), (4, "fsdp")]
SHAPE = {**LOOKS, "steps": 8, "micro_batch_size": 2, "every_steps": 4}


def taken_over(job, source):
    """Let the run of ``job`` find the checkpoint of step 4 of the run of ``source``, and no other."""
    shutil.copytree(source.folder / "step_000000004", job.folder / "step_000000004")


def alone_job(folder, family):
    """Return the job of one process."""
    return tiny_job(folder, folder / "1", model=FAMILIES[family], **SHAPE)


def jobs(folder, family, world, strategy):
    """Return the jobs of a world: not cut; cut after 4 steps; going on from what another world has done."""

    def job(name):
        place = folder / f"{world}-{strategy}-{name}"
        return tiny_job(folder, place, processes=world, strategy=strategy, model=FAMILIES[family], **SHAPE)

    return job("whole"), job("cut"), job("over")


def before(folder, family, world, strategy):
    """Return the job whose checkpoint a world takes over: 1 -> 2 ddp, 1 -> 2 fsdp, 2 fsdp -> 4 ddp, 2 ddp -> 4 fsdp."""
    if world == 2:
        return alone_job(folder, family)
    return jobs(folder, family, 2, "fsdp" if strategy == "ddp" else "ddp")[0]


def sharded_job(folder, family, world):
    """Return the job of a world whose checkpoints are in shards; with 4 processes it goes on from those of 2."""
    place = folder / f"{world}-sharded"
    return tiny_job(folder, place, processes=world, strategy="fsdp", model=FAMILIES[family], form="sharded", **SHAPE)


def scenario(folder, family, rank, world, strategy):
    whole, cut, over = jobs(folder, family, world, strategy)
    samples, records = [], []
    read = TrainingWindows.read

    def noting(self, numbers):
        samples.append(numbers.tolist())
        return read(self, numbers)

    with patch.object(TrainingWindows, "read", noting):
        run_job(whole, records.extend)
    with stop_after(4):
        run_job(cut, lambda records: None)
    run_job(cut, lambda records: None)
    if rank == 0:
        taken_over(over, before(folder, family, world, strategy))
    dist.barrier()
    run_job(over, lambda records: None)
    if strategy == "fsdp":
        sharded = sharded_job(folder, family, world)
        with stop_after(4):
            run_job(sharded, lambda records: None)
        run_job(sharded, lambda records: None)
    result = {"samples": samples, "losses": [record.loss for record in records]}
    (folder / f"{world}-{strategy}-{rank}.json").write_text(json.dumps(result))


def refuse_pickles(*arguments):
    raise AssertionError("what another process sent was to be unpickled")


def work(folder, family, rank, size):
    dist.distributed_c10d._tensor_to_object = refuse_pickles
    warnings.filterwarnings("error", message="FSDP2-wrapped module")  # a view, whose hook could be lost
    for world, strategy in WORLDS:
        if world == size:
            store = f"file://{folder}/{world}-{strategy}.store"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
            scenario(folder, family, rank, world, strategy)
            dist.destroy_process_group()


def main():
    """Fork the ranks, so that torch is imported once; the exit code is 1 if one failed, which ends the others."""
    torch.set_num_threads(1)
    ranks, size = {}, int(sys.argv[3])
    for rank in range(size):
        child = os.fork()
        if child == 0:
            try:
                work(Path(sys.argv[1]), sys.argv[2], rank, size)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        ranks[child] = rank
    failed = False
    while ranks:
        child, status = os.wait()
        del ranks[child]
        if status and not failed:
            failed = True
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    sys.exit(failed)


if __name__ == "__main__":
    main()
