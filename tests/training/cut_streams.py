"""Runs whose streams are cut while they train: TRIALS of them over the inputs in FOLDER, forked, so torch loads once.

Prints a line of JSON for each: which file was cut, the exit code or minus the signal, and the message of the error.
Code 99: a step read other tokens than those that were written.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch

from everytoken.seeds import python_random
from everytoken.tokens import open_training_windows
from everytoken.training.run import session
from everytoken.training.run.launch import run_job
from tests.training.tiny import DATA, tiny_job

FILES = ["compact/compact.bin", "annotated/annotated.bin", "annotated/token_lengths.npy"]


def train(inputs, place, pipe):
    job = tiny_job(inputs, place / "runs", steps=100_000, every_steps=100_000)
    written = open_training_windows(tiny_job(inputs.parent, place).streams, DATA, 8)
    read = session._Session._read

    def compared(self, step, rows):
        tokens, mask = read(self, step, rows)
        expected, counted = written.read_batch(step)
        if not (np.array_equal(tokens, expected) and np.array_equal(mask, counted)):
            os._exit(99)
        if step == 2:
            os.write(pipe, b"1")
        return tokens, mask

    session._Session._read = compared
    try:
        run_job(job, lambda records: None)
    except Exception as error:
        os.write(pipe, str(error).encode())
        os._exit(1)


def trial(folder, number):
    """Copy the inputs, train on the copy, cut one of its files at a random moment to a random size."""
    place = folder / f"trial_{number}"
    shutil.copytree(folder / "streams", place / "streams")
    for name in ("held_out.safetensors", "tokenizer.json"):
        shutil.copy(folder / name, place / name)
    draw = python_random(number, "cut")
    path = place / "streams" / draw.choice(FILES)
    came, told = os.pipe()
    child = os.fork()
    if child == 0:
        train(place, place, told)
        os._exit(0)
    os.close(told)
    os.read(came, 1)
    time.sleep(draw.uniform(0, 0.1))
    os.truncate(path, draw.randrange(path.stat().st_size))
    _, status = os.waitpid(child, 0)
    message = b""
    while block := os.read(came, 4096):
        message += block
    os.close(came)
    shutil.rmtree(place)
    return {"file": path.name, "code": os.waitstatus_to_exitcode(status), "message": message.decode()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for number in range(int(sys.argv[2])):
        print(json.dumps(trial(Path(sys.argv[1]), number)), flush=True)
