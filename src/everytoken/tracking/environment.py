"""What a run was made with, each as short text for a tag, and how its process ends."""

from __future__ import annotations

import atexit
import functools
import getpass
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from everytoken.measurements import processor_name

KEY_PACKAGES = ("everytoken", "kedro", "mlflow", "numpy", "pyarrow", "pydantic", "scikit-learn", "tokenizers", "torch")


class GitState(NamedTuple):
    """Commit, branch and dirty flag of a checkout; each "unknown" with a ``reason`` where git cannot tell."""

    commit: str = "unknown"
    branch: str = "unknown"
    dirty: str = "unknown"
    reason: str = ""


def git_state(folder: Path) -> GitState:
    """Return the state of the checkout that holds ``folder``. Never raises: a run outside git is a run all the same."""
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return GitState(reason=str(error))
    said = done.stdout.splitlines()
    head = dict(line.removeprefix("# branch.").split(" ", 1) for line in said if line.startswith("# branch."))
    if head.get("oid", "(initial)") == "(initial)":
        return GitState(reason=done.stderr.partition("\n")[0] or "the repository has no commit")
    is_dirty = any(not line.startswith("#") for line in said)
    return GitState(head["oid"], head["head"].replace("(detached)", "HEAD"), str(is_dirty).lower())


def command_line() -> str:
    """Return the command of this process, quoted for a shell: ``kedro run --params subsampling.seed=7``."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py" or not script.is_file():  # python -m kedro: argv has lost the "-m kedro"
        return shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]])
    return shlex.join([script.name, *sys.argv[1:]])


def user_name() -> str:
    """Return the login name, or the numeric id where a container has no entry for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@functools.cache
def packages() -> dict[str, str]:
    """Return name and version of every installed package, sorted by name."""
    found: dict[str, str] = {}
    for package in distributions():
        text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""  # parsed whole it takes 0.2 s
        head = dict(re.findall(r"^(Name|Version): (.+)$", text.partition("\n\n")[0], re.MULTILINE))
        if "Name" in head:  # a folder left behind by a broken uninstall has none
            found.setdefault(head["Name"].strip(), head["Version"].strip())  # the first on sys.path is imported
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def machine() -> dict[str, str]:
    """Return CPU model, cores (of the machine, and usable by this process), memory and platform."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "host.cpu": processor_name(),
        "host.cores": str(os.cpu_count()),
        "host.cores_usable": str(usable),
        "host.memory_gib": f"{memory:.1f}",
        "host.platform": platform.platform(),
    }


@contextmanager
def exit_watched(last_call: Callable[[str], None]) -> Iterator[None]:
    """Within the block, call ``last_call`` with the reason when the process exits, and let SIGTERM be a clean exit.

    Kedro tells its hooks of exceptions only. Ctrl-C is no ``Exception`` and SIGTERM (a batch system that wants its
    node back) kills Python on the spot, so both would leave a run that looks alive. The reason is the first signal that
    came ("SIGINT"). A handler that somebody else has set stays; outside the main thread Python allows none.
    """
    owner, before, seen = os.getpid(), dict[int, Any](), list[str]()

    def at_exit() -> None:
        if os.getpid() == owner:  # else a forked child that leaves by sys.exit
            last_call(seen[0] if seen else "the process ended before the run did")

    def on_signal(number: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a forked child has inherited the handler: it ends as if it had not
            signal.signal(number, before[number])
            os.kill(os.getpid(), number)
            return
        seen.append(signal.Signals(number).name)
        if number != signal.SIGINT:
            raise SystemExit(128 + number)
        before[number](number, frame)

    is_main = threading.current_thread() is threading.main_thread()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ():
        handler = signal.getsignal(number)
        if callable(handler) if number == signal.SIGINT else handler is signal.SIG_DFL:
            before[number] = signal.signal(number, on_signal)
    atexit.register(at_exit)
    try:
        yield
    finally:
        atexit.unregister(at_exit)
        for watched, handler in before.items():
            if signal.getsignal(watched) is on_signal:
                signal.signal(watched, handler)
