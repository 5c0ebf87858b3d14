"""Submit, status, rerun, cancel: the ranks of a run on this machine, whatever is done in them."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

from everytoken.progress import CountedWork, working
from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.ranks.folders import RankFolder, rank_folders
from everytoken.reflections.ranks.rank_process import RankWork, run_here, start_rank
from everytoken.reflections.ranks.run_lock import lock_run, read_run_config
from everytoken.submission import end_detached

logger = logging.getLogger(__name__)

_GRACE = 10.0  # seconds between SIGTERM and SIGKILL


class RankedWork(RankWork, Protocol):
    """Work that is cut into ranks."""

    def locked_values(self) -> Mapping[str, Any]:
        """Check what can be checked before anything is started; return what must not change while the run is made.

        ``rows`` (first, end) and ``rows_per_task`` are among them.
        """


def ranks_of(root: Path) -> list[RankFolder]:
    """Return the ranks of a run that was started, by number.

    Raises:
        ReflectionError: there is no run.
    """
    found = read_run_config(root)
    first, end = found["rows"]
    return rank_folders(root, (first, end), found["rows_per_task"])


def submit(
    work: RankedWork, root: Path, *, at_once: int, numbers: Collection[int] | None = None, wait: bool = False
) -> list[RankFolder]:
    """Start one detached process for each rank that is not complete; return these ranks.

    Args:
        at_once: processes that work at a time; 0: the ranks run in this process, one after the other.
        numbers: of the ranks; None: all.
        wait: until they have ended; whoever interrupts the waiting cancels them.

    Raises:
        ReflectionError: a value that is locked has changed, a rank is being made by another process; or, with
            ``wait``, a rank ended early.
    """
    lock_run(root, work.locked_values())
    ranks = [rank for rank in _chosen(root, numbers) if rank.completion() is None]
    require_idle(ranks)
    if ranks:
        logger.info("%s: %d of %d ranks to make", root.name, len(ranks), len(_chosen(root, numbers)))
    if at_once == 0:
        with _shown(root, ranks) as answered:
            for rank in ranks:
                run_here(work, rank)
                answered.tick()
        return ranks
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank in ranks:
            started.append(_start(work, rank, at_once))
        if wait:
            with _shown(root, ranks) as answered:
                _wait_for(started, ranks, answered)
    except BaseException:
        cancel(root, [rank.number for rank in ranks[: len(started)]])
        raise
    return ranks


def rerun(
    work: RankedWork, root: Path, *, at_once: int, numbers: Collection[int] | None = None, wait: bool = False
) -> list[RankFolder]:
    """Submit the ranks that are not complete, and those in which documents failed; only what is missing is asked.

    Raises:
        ReflectionError: as `submit`.
    """
    lock_run(root, work.locked_values())
    ranks = _chosen(root, numbers)
    require_idle(ranks)
    for rank in ranks:
        if (said := rank.completion()) is not None and said["failed"]:
            rank.marker.unlink()
    return submit(work, root, at_once=at_once, numbers=numbers, wait=wait)


def cancel(root: Path, numbers: Collection[int] | None = None) -> list[RankFolder]:
    """End the processes of ranks; what they have written stays. Return the ranks that had one."""
    running = [rank for rank in _chosen(root, numbers) if rank.is_running]
    end_detached(running, _GRACE)
    for rank in running:
        if rank.completion() is None and not rank.error.exists():
            rank.fail("cancelled; submit resumes")
    return running


def require_idle(ranks: Iterable[RankFolder]) -> None:
    """Check that no process works on a rank.

    Raises:
        ReflectionError: one does.
    """
    if running := [rank for rank in ranks if rank.is_running]:
        told = ", ".join(f"{rank.name} (process {rank.shown_pid()})" for rank in running[:5])
        raise ReflectionError(
            f"{running[0].root}: {len(running)} ranks are being made: {told}. Wait for them (everytoken reflections "
            "status), or end them (everytoken reflections cancel)"
        )


def _start(work: RankedWork, rank: RankFolder, at_once: int) -> subprocess.Popen[bytes]:
    try:
        return start_rank(work, rank, at_once)
    except BlockingIOError:
        require_idle([rank])
        raise


def _chosen(root: Path, numbers: Collection[int] | None) -> list[RankFolder]:
    ranks = ranks_of(root)
    if unknown := sorted(set(numbers or ()) - set(range(len(ranks)))):
        raise ReflectionError(f"{root} has the ranks 0 to {len(ranks) - 1}, and not {unknown[0]}. Correct the numbers")
    return [rank for rank in ranks if numbers is None or rank.number in numbers]


def _shown(root: Path, ranks: Sequence[RankFolder]) -> AbstractContextManager[CountedWork]:
    """Open the work of ranks, which shows how many of their rows have a result."""
    results = _ResultLines(ranks)
    return working(root.name, sum(rank.rows for rank in ranks), "row", results(), found=results)


class _ResultLines:
    """Lines in the files of results; each byte is read once, as they only grow."""

    def __init__(self, ranks: Sequence[RankFolder]) -> None:
        self._read = {rank.results: [0, 0] for rank in ranks}  # bytes, lines

    def __call__(self) -> int:
        for path, read in self._read.items():
            with suppress(FileNotFoundError), path.open("rb") as file:
                file.seek(read[0])
                while block := file.read(1 << 20):
                    read[0] += len(block)
                    read[1] += block.count(b"\n")
        return sum(lines for _, lines in self._read.values())


def _wait_for(processes: Sequence[subprocess.Popen[bytes]], ranks: Sequence[RankFolder], answered: CountedWork) -> None:
    for process in processes:
        process.wait()
        answered.tick()
    if early := [rank for rank in ranks if rank.completion() is None]:
        lines = [f"  rank {rank.name}: {rank.why_ended()}" for rank in early[:10]]
        lines += [f"  and {len(early) - 10} more"] if len(early) > 10 else []
        raise ReflectionError(
            f"{ranks[0].root}: {len(early)} of {len(ranks)} ranks ended early. What is done is kept, and the same "
            "command resumes.\n" + "\n".join(lines)
        )
