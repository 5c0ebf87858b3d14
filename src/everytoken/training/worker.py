"""One process of a distributed training, as torch's launcher starts it; and the start of several on this machine.

    torchrun --nproc-per-node 2 -m everytoken.training.worker JOB.json

runs a job by hand, on several nodes with torchrun's own options. ``--start FOLDER`` starts the job's processes on this
machine with that launcher, for `everytoken.training.run.launch`, which reads what they say from FOLDER.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from everytoken.models.errors import ModelsError
from everytoken.shards.errors import ShardsError
from everytoken.tokens.errors import TokensError
from everytoken.training.errors import TrainingError
from everytoken.training.history import Record
from everytoken.training.job import TrainingJob, read_job
from everytoken.training.live import append_records
from everytoken.training.run import RECORDS_FILE, run_job

_EXPECTED = (TrainingError, TokensError, ModelsError, ShardsError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one process, or with ``--start`` all of this machine; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", type=Path, help="JSON file of a TrainingJob")
    parser.add_argument("--start", type=Path, metavar="FOLDER", help="start the processes of this machine")
    parser.add_argument("--tell", type=Path, metavar="FOLDER", help="where a process that --start started tells")
    options = parser.parse_args(arguments)
    job = read_job(options.job)
    if options.start is not None:
        return _start(job, options.job, options.start)
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        level=logging.INFO if rank == 0 else logging.WARNING, format="%(asctime)s %(levelname)s %(message)s"
    )
    if options.tell is None:
        return _run_by_hand(job, rank)
    _end_with_stdin(lambda: os._exit(1))
    try:
        _run(job, partial(append_records, options.tell / RECORDS_FILE))
    except BaseException as error:
        _tell(options.tell, rank, error)
        return 1
    _leave()


def _leave() -> NoReturn:
    """End this process now, with success: the run is on disk.

    Not through the interpreter's end: there threads of torch and gloo sometimes end the process with ``terminate called
    without an active exception`` (signal 6), and a finished run would look like one that failed.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run(job: TrainingJob, on_records: Callable[[Sequence[Record]], None]) -> None:
    import torch.distributed as dist

    from everytoken.training.distribution import join

    join(job.distribution)
    run_job(job, on_records, on_records)
    dist.destroy_process_group()


def _run_by_hand(job: TrainingJob, rank: int) -> int:
    if "RANK" not in os.environ:
        print("start this with torchrun; see --help", file=sys.stderr)
        return 2
    try:
        _run(job, lambda records: None)
    except _EXPECTED as error:
        print(f"{type(error).__name__}: {error} (in training process {rank})", file=sys.stderr)
        return 1
    _leave()


def _tell(folder: Path, rank: int, error: BaseException) -> None:
    expected = isinstance(error, _EXPECTED)
    message = str(error) if expected else "".join(traceback.format_exception(error))
    _write_error(folder, rank, type(error).__name__, message, expected=expected)


def _write_error(folder: Path, rank: int, kind: str, message: str, *, expected: bool) -> None:
    content = {"rank": rank, "type": kind, "message": message, "expected": expected, "time": time.time()}
    temporary = folder / f".error_{rank}.{os.getpid()}"
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.rename(folder / f"error_{rank}.json")


def _end_with_stdin(end: Callable[[], None]) -> None:
    """Call ``end`` when the process that started us closes our standard input, or is no more."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        end()

    threading.Thread(target=wait, daemon=True).start()


def _start(job: TrainingJob, path: Path, folder: Path) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # of the launcher, in this process: what went wrong is told in one error
    _end_with_stdin(lambda: os.kill(os.getpid(), signal.SIGTERM))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=job.distribution.processes,
        run_id=job.run[:16],
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", __spec__.name, str(path), "--tell", str(folder))
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            told = (folder / f"error_{rank}.json").exists()  # then it died of something else on its way out
            # SIGTERM is how the launcher ends the others
            if not told and failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM:
                _write_error(folder, rank, "TrainingError", _ended_by(-failure.exitcode), expected=True)
        return 1
    except SignalException as error:  # it has ended its processes
        return 128 + error.sigval
    return 0


def _ended_by(number: int) -> str:
    message = f"a training process was ended by signal {number}"
    if number == signal.SIGKILL:
        return f"{message}; when you did not send it, this often means that the memory was not enough"
    return f"{message}; see what it wrote to stderr"


if __name__ == "__main__":
    sys.exit(main())
