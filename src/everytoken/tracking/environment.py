"""What a run was made with, each as short text for a tag, and its process: whether it lives, and how it ends."""

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
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from everytoken.measurements import processor_name

KEY_PACKAGES = ("everytoken", "kedro", "mlflow", "numpy", "pyarrow", "pydantic", "scikit-learn", "tokenizers", "torch")
_UNKNOWN = "unknown"
_TERMINATING = (signal.SIGTERM, signal.SIGHUP)


class GitState(NamedTuple):
    """Commit, branch and dirty flag of a checkout; each "unknown" with a ``reason`` where git cannot tell."""

    commit: str
    branch: str
    dirty: str
    reason: str


def git_state(folder: Path) -> GitState:
    """Return the state of the checkout that holds ``folder``. Never raises: a run outside git is a run all the same."""
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
        head = dict(line.removeprefix("# branch.").split(" ", 1) for line in said if line.startswith("# branch."))
        reason = "the repository has no commit" if head["oid"] == "(initial)" else ""
    except FileNotFoundError:
        reason = "git is not installed"
    except subprocess.CalledProcessError as error:
        reason = next(iter((error.stderr or "").strip().splitlines()), f"git ended with {error.returncode}")
    except subprocess.TimeoutExpired as error:
        reason = f"git took longer than {error.timeout} s"
    if reason:
        return GitState(_UNKNOWN, _UNKNOWN, _UNKNOWN, reason)
    branch = "HEAD" if head["head"] == "(detached)" else head["head"]
    return GitState(head["oid"], branch, str(any(not line.startswith("#") for line in said)).lower(), "")


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
    """Return host, CPU model, cores (of the machine, and usable by this process), memory and platform."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "host.name": platform.node(),
        "host.cpu": processor_name(),
        "host.cores": str(os.cpu_count()),
        "host.cores_usable": str(usable),
        "host.memory_gib": f"{memory:.1f}",
        "host.platform": platform.platform(),
    }


def process() -> dict[str, str]:
    """Return what tells this process from any other one, past or present: pid, start time, boot and pid namespace."""
    return {
        "process.pid": str(os.getpid()),
        "process.start": process_start(os.getpid()) or _UNKNOWN,
        "process.boot": _linux(Path("/proc/sys/kernel/random/boot_id").read_text),
        "process.namespace": _linux(Path("/proc/self/ns/pid").readlink),
    }


def is_dead(recorded: dict[str, str]) -> bool:
    """Tell whether the process that ``process()`` recorded on this host is surely gone.

    Another boot: gone. The same boot but another pid namespace (a container): nobody here can know, so False.
    Else it is gone if its pid is free, a zombie, or belongs to a process that started at another time.
    """
    here = process()
    if recorded.get("process.boot") != here["process.boot"]:
        return True
    if recorded.get("process.namespace") != here["process.namespace"] or not recorded.get("process.pid"):
        return False
    start = process_start(int(recorded["process.pid"]))
    return start is None or start != recorded.get("process.start")


def process_start(pid: int) -> str | None:
    """Return a text that is the same as long as ``pid`` is the same living process, or None if there is none."""
    if Path("/proc/self/stat").exists():
        try:
            # the name in brackets may hold brackets; after it come field 3 (state) .. field 22 (start in ticks)
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else fields[19]
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip() or None


def _linux(read: Callable[[], object]) -> str:
    try:
        return str(read()).strip()
    except OSError:  # not Linux: equal on every boot, so is_dead asks for the process itself
        return _UNKNOWN


class ExitWatch:
    """From ``start`` to ``stop``: call ``last_call`` at the exit of the process, turn SIGTERM into a clean exit.

    Kedro tells its hooks of exceptions only. Ctrl-C is no ``Exception`` and SIGTERM (a batch system that wants its
    node back) kills Python on the spot, so both would leave a run that looks alive.
    ``seen`` names the first signal that came ("SIGINT"), or is "". A handler that somebody else has set stays.
    """

    def __init__(self, last_call: Callable[[], None]) -> None:
        self.seen = ""
        self._last_call = last_call
        self._owner = os.getpid()
        self._before: dict[signal.Signals, Any] = {}
        self._closing = False

    def start(self) -> None:
        """Begin to watch. Outside the main thread Python allows no handlers; the last call works there too."""
        atexit.register(self._at_exit)
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _TERMINATING:
            if signal.getsignal(number) is signal.SIG_DFL:
                self._before[number] = signal.signal(number, self._on_signal)
        if callable(signal.getsignal(signal.SIGINT)):
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_signal)

    def stop(self) -> None:
        """Put every handler back as it was."""
        atexit.unregister(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                if signal.getsignal(number) == self._on_signal:
                    signal.signal(number, handler)
            self._before.clear()

    def _at_exit(self) -> None:
        if os.getpid() != self._owner:  # a forked child that leaves by sys.exit
            return
        self._closing = True  # a second Ctrl-C must not stop the record of the first
        self._last_call()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before = self._before[signal.Signals(number)]
        if os.getpid() != self._owner:  # a forked child has inherited the handler: it ends as if it had not
            signal.signal(number, before)
            os.kill(os.getpid(), number)
            return
        if self._closing:
            return
        self.seen = self.seen or signal.Signals(number).name
        if number in _TERMINATING:
            raise SystemExit(128 + number)
        before(number, frame)
