"""One document: its request, the attempts, and the line that it becomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from everytoken.reflections.errors import BlankReply, RefusedReply
from everytoken.reflections.generators import Generator, Question, RawReply, RequestFailed, pause_before_retry
from everytoken.reflections.prompts import DocumentRequest, RequestBuilder, SidecarRow, Skipped
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


class DocumentFailed(Exception):
    """All attempts of a document failed; ``record`` is its line for the failures."""

    def __init__(self, record: dict[str, Any]) -> None:
        super().__init__(record["error"])
        self.record = record


@dataclass(frozen=True)
class RowRequests:
    """Turns rows into result lines.

    Attributes:
        count_tokens: of a text, with the tokenizer of the stream.
        max_attempts: of a document.
        first_pause: seconds, about, between the first two attempts.
        counts: of ``questions`` and ``refused_replies`` so far.
    """

    builder: RequestBuilder
    generator: Generator
    count_tokens: Callable[[str], int]
    max_attempts: int
    first_pause: float
    counts: Counter[str] = field(default_factory=Counter)

    def so_far(self) -> dict[str, Any]:
        """Return questions, refused replies, and failed tries by kind, as plain JSON."""
        failed = dict(sorted(self.generator.failures.items()))
        return {"questions": 0, "refused_replies": 0, **self.counts, "failed_tries": failed}

    async def line(self, row: SidecarRow) -> dict[str, Any]:
        """Return the result line of a row.

        Raises:
            DocumentFailed: no attempt gave an acceptable reply.
            GeneratorError: the generator cannot answer any more.
        """
        request = self.builder.build(row)
        if isinstance(request, Skipped):
            return self._without_reply(row, request.status)
        for attempt in range(self.max_attempts):
            is_last = attempt + 1 == self.max_attempts
            seed, reply = self.builder.request_seed(row, attempt), ""
            self.counts["questions"] += 1
            try:
                answer = await self.generator.ask(Question(request.messages, seed, request.required))
                reply = answer.text
                return self._with_reply(request, answer, attempt, seed)
            except BlankReply:
                self.counts["refused_replies"] += 1
                if is_last:
                    return self._blank(request, answer, attempt, seed)
            except (RefusedReply, RequestFailed) as error:
                self.counts["refused_replies"] += isinstance(error, RefusedReply)
                if isinstance(error, RequestFailed):
                    reply = error.reply
                    if error.kind == "connection":
                        await self.generator.check()
                if is_last or _is_final(error):
                    raise DocumentFailed(failure(row, error, attempt, reply)) from error
            await asyncio.sleep(pause_before_retry(attempt + 1, self.first_pause, seed))
        raise AssertionError("the last attempt returns or raises")

    def _with_reply(self, request: DocumentRequest, answer: RawReply, attempt: int, seed: int) -> dict[str, Any]:
        columns = self.builder.columns(request, answer.text)
        return self._line(request.row, "ok", self._told(answer, attempt, seed) | columns)

    def _blank(self, request: DocumentRequest, answer: RawReply, attempt: int, seed: int) -> dict[str, Any]:
        known = self.builder.run.by_column(
            position=request.position,
            index=request.token_index,
            charter="[]",
            canary=None if request.canary is None else request.canary.id,
            count=0,
            style=request.style,
        )
        return self._line(request.row, "empty", self._told(answer, attempt, seed) | known)

    def _without_reply(self, row: SidecarRow, status: str) -> dict[str, Any]:
        return line_without_reply(self.builder.run, row.number, row.doc_id, status)

    def _told(self, answer: RawReply, attempt: int, seed: int) -> dict[str, Any]:
        return {
            "reply": answer.text,
            "attempt": attempt,
            "seed": seed,
            "input_tokens": answer.input_tokens,
            "output_tokens": answer.output_tokens,
            "reasoning_tokens": answer.reasoning_tokens,
            "generated_tokens": self.count_tokens(answer.reasoning + answer.text),
        }

    def _line(self, row: SidecarRow, status: str, values: dict[str, Any]) -> dict[str, Any]:
        return line_without_reply(self.builder.run, row.number, row.doc_id, status) | values


def line_without_reply(run: GenerationRun, row: int, doc_id: str | None, status: str) -> dict[str, Any]:
    """Return the result line of a row that nothing was asked about."""
    asked = {"reply": None, "attempt": None, "seed": None}
    return {**run.defaults(), **_NO_TOKENS, **_NOT_OBSERVED, **asked, ROW_KEY: row, "doc_id": doc_id, "status": status}


def failure(row: SidecarRow, error: Exception, attempt: int, reply: str) -> dict[str, Any]:
    """Return the line of a document that failed."""
    return {
        ROW_KEY: row.number,
        "doc_id": row.doc_id,
        "error": f"{type(error).__name__}: {error}",
        "class": error.kind if isinstance(error, RequestFailed) else type(error).__name__,
        "attempt": attempt,
        "reply": reply,
        "ts": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _is_final(error: Exception) -> bool:
    return isinstance(error, RequestFailed) and error.kind == "context"
