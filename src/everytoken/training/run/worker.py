"""One process of a distributed training; and the start of several on this machine.

``--start FOLDER`` starts the job's processes on this machine, for `everytoken.training.run.launch.launch`, which reads
what they say from FOLDER. They find each other through a file in FOLDER, which is their user's alone, and talk over the
loopback interface: nothing listens on another one.

    torchrun --nnodes 2 --nproc-per-node 2 ... -m everytoken.training.run.worker JOB.json

runs a job on several machines with torchrun's own options, in a network that is trusted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

from everytoken.models import ModelsError
from everytoken.shards import ShardsError
from everytoken.tokens import TokensError
from everytoken.training.errors import TrainingError
from everytoken.training.run.job import TrainingJob, read_job
from everytoken.training.run.one_process import run_job
from everytoken.training.run.progress_channel import RECORDS_FILE, append_records
from everytoken.training.step import TrainingRecord

_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_TO_END = 30.0  # of a process that is told to end
_STORE_FILE = "rendezvous"
_INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
LOOPBACK = {"GLOO_SOCKET_IFNAME": _INTERFACE, "NCCL_SOCKET_IFNAME": _INTERFACE}
_EXPECTED = (TrainingError, TokensError, ModelsError, ShardsError)


def run_process(arguments: Sequence[str] | None = None) -> int:
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
        run_as_one(job, partial(append_records, options.tell / RECORDS_FILE), options.tell / _STORE_FILE)
    except BaseException as error:
        tell_error(options.tell, rank, error)
        return 1
    leave()


def leave() -> NoReturn:
    """End this process now, with success: the run is on disk.

    Not through the interpreter's end: there threads of torch and gloo sometimes end the process with ``terminate called
    without an active exception`` (signal 6), and a finished run would look like one that failed.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run_as_one(
    job: TrainingJob,
    on_records: Callable[[Sequence[TrainingRecord]], None],
    store: Path | None,
    is_stopping: Callable[[], bool] | None = None,
) -> None:
    """Join the other processes at the file ``store``, or at the server that the environment names, and train."""
    import torch.distributed as dist

    from everytoken.training.step import join

    join(job.distribution, store)
    run_job(job, on_records, on_records, is_stopping)
    dist.destroy_process_group()


def _run_by_hand(job: TrainingJob, rank: int) -> int:
    if "RANK" not in os.environ:
        print("start this with torchrun; see --help", file=sys.stderr)
        return 2
    try:
        run_as_one(job, lambda records: None, None)
    except _EXPECTED as error:
        print(f"{type(error).__name__}: {error} (in training process {rank})", file=sys.stderr)
        return 1
    leave()


def tell_error(folder: Path, rank: int, error: BaseException) -> None:
    """Write the error of a process into the folder where its starter looks."""
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
    """Start this machine's processes and wait for them; the first that fails, or a signal, ends all."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave_by_signal)
    _end_with_stdin(lambda: os.kill(os.getpid(), signal.SIGTERM))
    command = [sys.executable, "-m", __spec__.name, str(path), "--tell", str(folder)]
    size = job.distribution.processes
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(size):
            names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
            started.append(subprocess.Popen(command, env=os.environ | LOOPBACK | names))
        while not any(process.poll() for process in started):
            if all(process.returncode == 0 for process in started):
                return 0
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        # once more: the one that failed first may have been looked at before it did, and the one that lost it after
        ended = {rank: process.poll() for rank, process in enumerate(started)}
    finally:
        _end(started)
    for rank, code in ended.items():
        # one that told its error died of something else on its way out
        if code is not None and code < 0 and not (folder / f"error_{rank}.json").exists():
            _write_error(folder, rank, "TrainingError", _ended_by(-code), expected=True)
    return 1


def _leave_by_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the processes that still run: by SIGTERM, and by SIGKILL those that do not end in time."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for process in started:
        process.terminate()
    deadline = time.monotonic() + _SECONDS_TO_END
    for process in started:
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ended_by(number: int) -> str:
    message = f"a training process was ended by signal {number}"
    if number == signal.SIGKILL:
        return f"{message}; when you did not send it, this often means that the memory was not enough"
    if number == signal.SIGBUS:
        return f"{message}; this often means that a file of a stream was cut while it was read"
    return f"{message}; see what it wrote to stderr"


if __name__ == "__main__":
    sys.exit(run_process())
