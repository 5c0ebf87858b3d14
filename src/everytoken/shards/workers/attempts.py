"""What a worker does with one task: it runs it, and an error becomes a `Failure`."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from everytoken.shards.errors import Failure
from everytoken.system_errors import explained

# One core a worker: what libraries read before they start threads of their own.
ONE_CORE = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "FASTOKENS_BPE_THREADS": "1"}


def attempt(
    function: Callable[[Any], Any],
    task: Any,
    ends_run: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit),
) -> Any:
    """Return ``function(task)``, or the `Failure` that it ended with; what ``ends_run`` names is raised."""
    try:
        return function(task)
    except ends_run:
        raise
    except BaseException as error:  # a panic of a Rust library is no Exception, and costs no other task either
        message = "".join(traceback.format_exception_only(error)).strip()  # shows a message that raises when shown
        told = explained(error) or message.removeprefix(f"{type(error).__module__}.")
        texts = told, "".join(traceback.format_exception(error))
        return Failure(*(text.encode("utf-8", "backslashreplace").decode() for text in texts))
