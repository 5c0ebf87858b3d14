"""CPU seconds of commands that find their work done: what a start costs.

``python benchmarks/starts.py [PROJECT] [--env test] [--rounds 5]`` first lets ``kedro run`` make what is missing.
Then each command runs in a new process, the commands in turns. The figures are user and system time of the process and
all that it started: the least and the median of the rounds. Bytecode is compiled before, as ``make run`` does.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(sys.executable).parent


def commands(env: str) -> dict[str, list[str]]:
    """Return the commands by what they are called in the table."""
    return {
        "python, nothing": [sys.executable, "-c", "pass"],
        "everytoken --help": [str(SCRIPTS / "everytoken"), "--help"],
        "everytoken trace, one step": [str(SCRIPTS / "everytoken"), "trace", "--env", env, "--step", "0"],
        "kedro registry list": [str(SCRIPTS / "kedro"), "registry", "list"],
        "kedro run, all made": [str(SCRIPTS / "kedro"), "run", "--env", env],
    }


def cpu_seconds(command: list[str], project: Path) -> float:
    """Return user and system time of a command and all that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "DO_NOT_TRACK": "1"}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run the commands and print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("project", nargs="?", type=Path, default=Path(__file__).resolve().parents[1])
    arguments.add_argument("--env", default="test")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    cpu_seconds([str(SCRIPTS / "kedro"), "run", "--env", given.env], given.project)
    taken: dict[str, list[float]] = {name: [] for name in commands(given.env)}
    for _ in range(given.rounds):
        for name, command in commands(given.env).items():
            taken[name].append(cpu_seconds(command, given.project))
    print("load of the machine: " + ", ".join(f"{load:.1f}" for load in os.getloadavg()))
    print(f"{'CPU seconds':<28}{'least':>8}{'median':>8}")
    for name, seconds in taken.items():
        print(f"{name:<28}{min(seconds):>8.2f}{statistics.median(seconds):>8.2f}")


if __name__ == "__main__":
    main()
