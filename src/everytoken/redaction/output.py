"""What a process prints by itself, log records and errors that nobody catches, is printed without secrets."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from everytoken.redaction.urls import redacted


def redact_output() -> None:
    """Let log records and uncaught errors of this process show no secret; what has none is printed as before."""
    if getattr(logging.getLogRecordFactory(), "redacts", False):
        return
    made, uncaught, in_thread = logging.getLogRecordFactory(), sys.excepthook, threading.excepthook

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = made(*args, **kwargs)
        _redact(record)
        return record

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not _printed_redacted(kind, error, trace):
            uncaught(kind, error, trace)

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        if error is None or not _printed_redacted(args.exc_type, error, args.exc_traceback):
            in_thread(args)

    factory.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)
    sys.excepthook, threading.excepthook = hook, thread_hook


def _redact(record: logging.LogRecord) -> None:
    try:
        message = record.getMessage()
    except Exception:  # a message that cannot be formatted is logging's to report
        return
    if (shown := redacted(message)) != message:
        record.msg, record.args = shown, None
    if record.exc_info and record.exc_info[0] is not None:
        text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if (shown := redacted(text)) != text:
            record.exc_text, record.exc_info = shown, None


def _printed_redacted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> bool:
    """Print an error if it has a secret; return whether it had one."""
    text = "".join(traceback.format_exception(kind, error, trace))
    shown = redacted(text)
    if shown != text:
        sys.stderr.write(shown)
    return shown != text
