"""One document: its request, the attempts, and the line that it becomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from everytoken.reflections.errors import BlankReply
from everytoken.reflections.generators import Question, RawReply
from everytoken.reflections.items import Attempts, AttemptsFailed, ItemFailed
from everytoken.reflections.points import Fact
from everytoken.reflections.prompts import AskedRow, Skipped
from everytoken.reflections.ranks.result_lines import ROW_KEY
from everytoken.reflections.registry import GenerationRun

_NO_TOKENS = {
    "input_tokens": 0,
    "output_tokens": 0,
    "reasoning_tokens": 0,
    "generated_tokens": 0,
    "stored_tokens": 0,
    "surrogates_replaced": 0,
}
_NOT_OBSERVED = {"canary_in_1p": None, "canary_in_3p": None}


_Row = TypeVar("_Row", bound=AskedRow, contravariant=True)


class RowRequest(Protocol):
    """What the generator is asked about a row; see `DocumentRequest`."""

    @property
    def row(self) -> AskedRow:
        """The row."""

    @property
    def messages(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The system message, then the user message."""

    @property
    def required(self) -> tuple[str, ...]:
        """Fields that the reply must have."""

    @property
    def position(self) -> int | None:
        """Character of the point; None without one."""

    @property
    def token_index(self) -> int | None:
        """Token of the point; None without one."""

    @property
    def canary(self) -> Fact | None:
        """The identity fact that was drawn."""

    @property
    def style(self) -> str | None:
        """Name of the style that was drawn."""


class RowBuilder(Protocol[_Row]):
    """Builds the requests of a run and reads its replies."""

    @property
    def run(self) -> GenerationRun:
        """The run, with the columns of a result line."""

    def build(self, row: _Row) -> RowRequest | Skipped:
        """Return what the generator is asked about a row, or why it is not asked."""

    def columns(self, request: Any, reply: str) -> dict[str, Any]:
        """Return what a result line has of a reply; its ``status`` where that is not ``ok``.

        Raises:
            RefusedReply: the reply is not acceptable.
        """

    def request_seed(self, row: _Row, attempt: int) -> int:
        """Return the seed of a request, below 2**31; ``attempt`` counts from 0."""


@dataclass(frozen=True)
class RowRequests:
    """Turns rows into result lines.

    Attributes:
        count_tokens: of a text, with the tokenizer of the stream; None where there is no stream.
    """

    builder: RowBuilder[Any]
    attempts: Attempts
    count_tokens: Callable[[str], int] | None

    async def line(self, row: AskedRow) -> dict[str, Any]:
        """Return the result line of a row.

        Raises:
            ItemFailed: no attempt gave an acceptable reply.
            GeneratorError: the generator cannot answer any more.
        """
        request = self.builder.build(row)
        if isinstance(request, Skipped):
            return self._without_reply(row, request.status)

        def question(attempt: int) -> Question:
            return Question(request.messages, self.builder.request_seed(row, attempt), request.required)

        try:
            found = await self.attempts.accepted(question, lambda text: self.builder.columns(request, text))
        except AttemptsFailed as failed:
            last = failed.last
            if isinstance(last.error, BlankReply) and last.answer is not None:
                return self._blank(request, last.answer, last.number, last.seed)
            raise ItemFailed(_failure(row, last.error, last.kind, last.number, last.reply)) from failed
        told = self._told(found.answer, found.attempt, found.seed)
        return self._line(row, "ok", told | found.value)

    def _blank(self, request: RowRequest, answer: RawReply, attempt: int, seed: int) -> dict[str, Any]:
        known = self.builder.run.by_column(
            position=request.position,
            index=request.token_index,
            charter="[]",
            canary=None if request.canary is None else request.canary.id,
            count=0,
            style=request.style,
        )
        return self._line(request.row, "empty", self._told(answer, attempt, seed) | known)

    def _without_reply(self, row: AskedRow, status: str) -> dict[str, Any]:
        return line_without_reply(self.builder.run, row.number, row.doc_id, status)

    def _told(self, answer: RawReply, attempt: int, seed: int) -> dict[str, Any]:
        counted = None if self.count_tokens is None else self.count_tokens(answer.reasoning + answer.text)
        return {
            "reply": answer.text,
            "attempt": attempt,
            "seed": seed,
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
            "reasoning_tokens": answer.reasoning_tokens,
            "generated_tokens": counted,
        }

    def _line(self, row: AskedRow, status: str, values: dict[str, Any]) -> dict[str, Any]:
        return line_without_reply(self.builder.run, row.number, row.doc_id, status) | values


def line_without_reply(run: GenerationRun, row: int, doc_id: str | None, status: str) -> dict[str, Any]:
    """Return the result line of a row that nothing was asked about."""
    asked = {"reply": None, "attempt": None, "seed": None}
    return {**run.defaults(), **_NO_TOKENS, **_NOT_OBSERVED, **asked, ROW_KEY: row, "doc_id": doc_id, "status": status}


def failure_of_row(row: AskedRow, error: Exception) -> dict[str, Any]:
    """Return the line of a document that failed before it was asked about."""
    return _failure(row, error, type(error).__name__, 0, "")


def _failure(row: AskedRow, error: Exception, kind: str, attempt: int, reply: str) -> dict[str, Any]:
    return {
        ROW_KEY: row.number,
        "doc_id": row.doc_id,
        "error": f"{type(error).__name__}: {error}",
        "class": kind,
        "attempt": attempt,
        "reply": reply,
        "ts": datetime.now(UTC).isoformat(timespec="seconds"),
    }
