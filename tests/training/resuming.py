"""Processes of the tests of resuming: ``stop FOLDER`` does half of two runs and is killed in a third, ``go-on FOLDER``
does the rest of all three. ``family FOLDER FAMILY [STEP]`` does a run of a family, or resumes it, and is killed in a
step. ``compiled FOLDER NAME PRECISION FAMILY [STEP]`` does the same with compiled layers.
"""

import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import torch

from everytoken.tokens.order.loader import TrainingWindows
from everytoken.training.run.launch import run_job
from tests.training.tiny import EXECUTION, FAMILIES, LOOKS, stop_after, tiny_job


def job(folder, name, precision, **changes):
    """Return a job of 20 steps whose checkpoints lie in their own place."""
    execution = EXECUTION.model_copy(update={"precision": precision})
    return tiny_job(folder, folder / name / precision, execution=execution, micro_batch_size=4, **LOOKS, **changes)


def ignore(records):
    pass


def kill_in_step(step):
    """Kill this process, as kill -9 does, when it has read the samples of a step."""
    read = TrainingWindows.read

    def reading(self, samples):
        if samples[0] >= step * 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, samples)

    return patch.object(TrainingWindows, "read", reading)


def main():
    what, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    if what == "compiled":
        name, precision, family, *steps = sys.argv[3:]
        with kill_in_step(int(steps[0])) if steps else nullcontext():
            run_job(job(folder, name, precision, model=FAMILIES[family], compile=True), ignore)
        return
    if what == "family":
        family, *steps = sys.argv[3:]
        with kill_in_step(int(steps[0])) if steps else nullcontext():
            run_job(job(folder, family, "bfloat16", model=FAMILIES[family]), ignore)
        return
    if what == "go-on":
        for name, precision in (("stopped", "float32"), ("stopped", "bfloat16"), ("killed", "float32")):
            run_job(job(folder, name, precision), ignore)
        return
    for precision in ("float32", "bfloat16"):
        with stop_after(10):
            run_job(job(folder, "stopped", precision), ignore)
    # 6 to 19: any moment does
    with kill_in_step(6 + os.getpid() % 14):
        run_job(job(folder, "killed", "float32"), ignore)


if __name__ == "__main__":
    main()
