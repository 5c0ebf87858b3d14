"""See the end of the process coming: which signal ends it, and a last call at its exit.

Kedro tells its hooks of exceptions only. Ctrl-C is no ``Exception`` and SIGTERM (a batch system that wants
its node back) kills Python on the spot, so both would leave a run that looks alive.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_TERMINATING = (signal.SIGTERM, signal.SIGHUP)


class ExitWatch:
    """From ``start`` to ``stop``: call ``last_call`` at the exit of the process, turn SIGTERM into a clean exit.

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
