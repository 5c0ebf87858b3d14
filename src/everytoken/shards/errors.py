"""What can go wrong with stored parts: every message says what, where, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everytoken.redaction import redacted


class ShardsError(Exception):
    """Base of the errors of this package."""


class RecipeError(ShardsError):
    """A function or parameter cannot be part of a recipe."""


class IncompleteStore(ShardsError):
    """A store is asked for data that is not, or not wholly, there."""


class DamagedStore(ShardsError):
    """A ledger or a part is not what was written."""


class StoreBusy(ShardsError):
    """Another process is writing the same store."""


@dataclass(frozen=True)
class Failure:
    """Why one task failed: exception type, message and traceback as text (it crossed a process boundary)."""

    error: str
    traceback: str


class RangeFailed(ShardsError):
    """A range of an artifact failed; the folder of the artifact is as it was before."""

    def __init__(self, name: str, failure: Failure) -> None:
        super().__init__(f"{name} failed: {failure.error}")
        self.add_note(redacted(failure.traceback))


class PartsFailed(ShardsError):
    """Some parts failed; all others were made and are kept."""

    def __init__(self, store: str, failures: Mapping[str, Failure], total: int) -> None:
        self.failures = dict(failures)
        lines = [f"  {name}: {failure.error}" for name, failure in list(failures.items())[:20]]
        if len(failures) > 20:
            lines.append(f"  and {len(failures) - 20} more")
        super().__init__(
            f"{store}: {len(failures)} of {total} parts failed, the other {total - len(failures)} are done and kept.\n"
            + "\n".join(lines)
            + f"\nTracebacks are in {store}/.making/*.error.txt. Mend the cause and run the same command again: "
            "only the missing parts are made."
        )
