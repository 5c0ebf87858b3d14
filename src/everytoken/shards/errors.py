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


_MOST_CAUSES = 20


def _and_more(parts: int) -> str:
    return f" and {parts} more part{'s' * (parts > 1)}" if parts else ""


class PartsFailed(ShardsError):
    """Some parts failed; all others were made and are kept."""

    def __init__(self, store: str, failures: Mapping[str, Failure], total: int) -> None:
        self.failures = dict(failures)
        by_cause: dict[str, list[str]] = {}
        for name, failure in failures.items():
            by_cause.setdefault(failure.error, []).append(name)
        causes = list(by_cause.items())
        lines = [f"  {names[0]}{_and_more(len(names) - 1)}: {cause}" for cause, names in causes[:_MOST_CAUSES]]
        if len(causes) > _MOST_CAUSES:
            lines.append(f"  and {sum(len(names) for _, names in causes[_MOST_CAUSES:])} more")
        super().__init__(
            f"{store}: {len(failures)} of {total} parts failed, the other {total - len(failures)} are done and kept.\n"
            + "\n".join(lines)
            + f"\nTracebacks are in {store}/.making/*.error.txt. Remove the cause and run the same command again: "
            "only the missing parts are made."
        )
