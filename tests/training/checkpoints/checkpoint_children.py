"""Processes that save checkpoints, to be killed: started by `tests.shards.children`, without torch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from everytoken.seeds import numpy_generator
from everytoken.training.checkpoints.store import CheckpointStore
from tests.shards.children import serve


def write_files(folder: Path, step: int, size: int = 1000) -> None:
    """Write the files of a checkpoint: other bytes for each step, the same whenever a step is written."""
    generator = numpy_generator(5, step)
    for name, arrays in (("model", 1), ("optimizer", 2)):
        tensors = {f"{index}/p": generator.standard_normal(size).astype(np.float32) for index in range(arrays)}
        save_file(tensors, folder / f"{name}.safetensors")
    (folder / "config.json").write_text(json.dumps({"d_model": 16}))
    (folder / "history.parquet").write_bytes(b"PAR1" + generator.bytes(200))


def save(store: CheckpointStore, step: int, size: int = 1000) -> str:
    return store.save(step, lambda folder: write_files(folder, step, size), {"tokens": step * 128})


def _run(job: dict[str, Any]) -> None:
    root = Path(job["root"])
    store = CheckpointStore(root / "run", mirror=root / "mirror" if job["mirror"] else None, milestone_steps=None)
    if "hold" in job:
        with store.writing():
            Path(job["hold"]).touch()
            time.sleep(1000)  # until it is killed
    newest = store.newest()
    done = newest.step if newest else 0
    for step in range(done + 10, done + 10 + 10 * job["saves"], 10):
        save(store, step, job["size"])


if __name__ == "__main__":
    numpy_generator(5, 0)  # numpy.random is imported once for all children

    serve(_run)
