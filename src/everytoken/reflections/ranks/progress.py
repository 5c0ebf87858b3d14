"""How far the ranks of a run are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from everytoken.reflections.items import records
from everytoken.reflections.ranks.contents import COUNTED_TOKENS, read_content
from everytoken.reflections.ranks.folders import RankFolder
from everytoken.reflections.ranks.run_lock import read_run_config
from everytoken.reflections.ranks.verbs import ranks_of

State = Literal["complete", "running", "waiting", "ended early", "not started"]


@dataclass(frozen=True)
class RankProgress:
    """A rank.

    Attributes:
        done: rows with a result.
        failed: rows that failed and have no result, by kind.
        rows_per_second: since its process began; None where none works.
        documents_per_second: that were asked about, measured over the sessions that ended and the one that works;
            None where none did.
        requests: questions, refused replies and failed tries of its last process; None before its first question.
        error: why its last process ended early.
    """

    rank: str
    state: State
    rows: int
    done: int
    statuses: dict[str, int]
    failed: dict[str, int]
    tokens: dict[str, int]
    rows_per_second: float | None
    documents_per_second: float | None
    requests: dict[str, Any] | None
    error: str | None
    generator: dict[str, Any] | None


@dataclass(frozen=True)
class RunProgress:
    """A run; ``seconds_left`` at the rate of the ranks that are being made, None where none is."""

    folder: str
    run: str
    ranks: list[RankProgress]

    @property
    def left(self) -> int:
        """Rows that were not asked yet."""
        return sum(rank.rows - rank.done - sum(rank.failed.values()) for rank in self.ranks)

    @property
    def rows_per_second(self) -> float | None:
        """Of all ranks that are being made."""
        rates = [rank.rows_per_second for rank in self.ranks if rank.rows_per_second is not None]
        return sum(rates) if rates else None

    @property
    def documents_per_second(self) -> float | None:
        """Of a rank, on average."""
        rates = [rank.documents_per_second for rank in self.ranks if rank.documents_per_second is not None]
        return sum(rates) / len(rates) if rates else None

    @property
    def requests(self) -> dict[str, Any] | None:
        """Questions, refused replies and failed tries of the last processes, summed; None where there were none."""
        told = [rank.requests for rank in self.ranks if rank.requests is not None]
        if not told:
            return None
        sums = {name: sum(one[name] for one in told) for name in ("questions", "refused_replies")}
        return {**sums, "failed_tries": _summed(one["failed_tries"] for one in told)}

    @property
    def seconds_left(self) -> float | None:
        """At that rate."""
        return self.left / self.rows_per_second if self.rows_per_second else None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON, with sums."""
        return {
            "folder": self.folder,
            "run": self.run,
            "states": dict(Counter(rank.state for rank in self.ranks)),
            "rows": sum(rank.rows for rank in self.ranks),
            "done": sum(rank.done for rank in self.ranks),
            "statuses": _summed(rank.statuses for rank in self.ranks),
            "failed": _summed(rank.failed for rank in self.ranks),
            "tokens": _summed(rank.tokens for rank in self.ranks),
            "rows_per_second": self.rows_per_second,
            "documents_per_second": self.documents_per_second,
            "requests": self.requests,
            "seconds_left": self.seconds_left,
            "ranks": [asdict(rank) for rank in self.ranks],
        }


def progress_of(root: Path) -> RunProgress:
    """Return how far a run is.

    Raises:
        ReflectionError: there is no run.
    """
    return RunProgress(str(root), str(read_run_config(root)["run_name"]), [_progress(rank) for rank in ranks_of(root)])


def _progress(rank: RankFolder) -> RankProgress:
    if (said := rank.completion()) is not None and not said["failed"]:
        statuses, tokens, failed, done = said["statuses"], said["tokens"], {}, said["results"]
    elif rank.path.is_dir():
        found = read_content(rank)
        statuses, tokens, done = found.statuses, found.tokens, found.results
        failed = dict(sorted(Counter(found.failed.values()).items()))
    else:
        statuses, tokens, failed, done = {}, dict.fromkeys(COUNTED_TOKENS, 0), {}, 0
    state = _state(rank, said is not None)
    sessions = records(rank.sessions)
    return RankProgress(
        rank=rank.name,
        state=state,
        rows=rank.rows,
        done=done,
        statuses=statuses,
        failed=failed,
        tokens=tokens,
        rows_per_second=_rate(sessions, done) if state == "running" else None,
        documents_per_second=_documents_rate(sessions, statuses, done, state == "running"),
        requests=_requests(rank),
        error=rank.why_ended() if state == "ended early" else None,
        generator=next((one["generator"] for one in reversed(sessions) if "generator" in one), None),
    )


def _state(rank: RankFolder, is_complete: bool) -> State:
    if rank.is_running:
        return "waiting" if rank.waiting.exists() else "running"
    if is_complete:
        return "complete"
    return "ended early" if rank.sessions.exists() or rank.pid.exists() else "not started"


def _rate(sessions: list[dict[str, Any]], done: int) -> float | None:
    starts = [one for one in sessions if one.get("event") == "start"]
    if not starts:
        return None
    seconds = (datetime.now(UTC) - datetime.fromisoformat(starts[-1]["ts"])).total_seconds()
    return (done - starts[-1]["done"]) / seconds if seconds > 0 else None


def _documents_rate(
    sessions: list[dict[str, Any]], statuses: dict[str, int], done: int, is_running: bool
) -> float | None:
    """Return documents that were asked about a second; rows that were not asked take no time."""
    spans = list(_spans(sessions, done, is_running))
    seconds, rows = sum(span[0] for span in spans), sum(span[1] for span in spans)
    asked = statuses.get("ok", 0) + statuses.get("empty", 0)
    return rows * (asked / done) / seconds if seconds > 0 and rows > 0 and asked else None


def _spans(sessions: list[dict[str, Any]], done: int, is_running: bool) -> Iterator[tuple[float, int]]:
    """Yield seconds and rows of each session whose end is known, and of the one that works."""
    start: dict[str, Any] | None = None
    for one in sessions:
        if one.get("event") == "start":
            start = one
        elif start is not None and "done" in one:
            yield _seconds(start["ts"], datetime.fromisoformat(one["ts"])), one["done"] - start["done"]
            start = None
    if start is not None and is_running:
        yield _seconds(start["ts"], datetime.now(UTC)), done - start["done"]


def _seconds(start: str, end: datetime) -> float:
    return (end - datetime.fromisoformat(start)).total_seconds()


def _requests(rank: RankFolder) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(rank.requests.read_bytes())
    except (OSError, ValueError):
        return None
    return found


def _summed(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(sorted(total.items()))
