"""The attempts of one question: each with another seed, until a reply is accepted or there are no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from everytoken.reflections.errors import RefusedReply
from everytoken.reflections.generators import Generator, Question, RawReply, RequestFailed, pause_before_retry

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class FailedAttempt:
    """An attempt without an acceptable reply.

    Attributes:
        number: of the attempt, from 0.
        error: `RequestFailed` or `RefusedReply`.
        reply: what came, as it is.
        answer: the reply that was refused; None where the request failed.
    """

    number: int
    seed: int
    error: Exception
    reply: str
    answer: RawReply | None

    @property
    def kind(self) -> str:
        """How it failed, in one word."""
        return self.error.kind if isinstance(self.error, RequestFailed) else type(self.error).__name__

    @property
    def is_final(self) -> bool:
        """Whether no other attempt can succeed."""
        return isinstance(self.error, RequestFailed) and self.error.kind == "context"


@dataclass(frozen=True)
class AcceptedReply(Generic[_Value]):
    """A reply, what was read from it, and the attempt that it answers."""

    answer: RawReply
    value: _Value
    attempt: int
    seed: int


class AttemptsFailed(Exception):
    """All attempts failed; ``last`` is the last one."""

    def __init__(self, last: FailedAttempt) -> None:
        super().__init__(str(last.error))
        self.last = last


@dataclass(frozen=True)
class Attempts:
    """How often a question is asked.

    Attributes:
        most: attempts.
        first_pause: seconds, about, between the first two.
        rests_after_refusal: whether there is a pause too after a reply that was refused: a server is not to blame.
        counts: of ``questions`` and ``refused_replies`` so far.
    """

    generator: Generator
    most: int
    first_pause: float
    rests_after_refusal: bool = True
    counts: Counter[str] = field(default_factory=Counter)

    def so_far(self) -> dict[str, Any]:
        """Return questions, refused replies, and failed tries by kind, as plain JSON."""
        failed = dict(sorted(self.generator.failures.items()))
        return {"questions": 0, "refused_replies": 0, **self.counts, "failed_tries": failed}

    async def accepted(
        self,
        question: Callable[[int], Question],
        read: Callable[[str], _Value],
        *,
        first: int = 0,
        failed: Callable[[FailedAttempt], None] = lambda attempt: None,
    ) -> AcceptedReply[_Value]:
        """Return the first reply that ``read`` accepts.

        Args:
            question: of an attempt, by its number; its seed has to depend on the number.
            read: raises `RefusedReply` for a reply that is not acceptable.
            first: attempts that were made before.
            failed: is given each attempt that fails.

        Raises:
            AttemptsFailed: there is none.
            GeneratorError: the generator cannot answer any more.
        """
        for attempt in range(first, self.most):
            asked, answer, reply = question(attempt), None, ""
            self.counts["questions"] += 1
            try:
                answer = await self.generator.ask(asked)
                reply = answer.text
                return AcceptedReply(answer, read(answer.text), attempt, asked.seed)
            except (RefusedReply, RequestFailed) as error:
                self.counts["refused_replies"] += isinstance(error, RefusedReply)
                if isinstance(error, RequestFailed):
                    reply = error.reply
                    if error.kind == "connection":
                        await self.generator.check()
                one = FailedAttempt(attempt, asked.seed, error, reply, answer)
                failed(one)
                if one.is_final or attempt + 1 == self.most:
                    raise AttemptsFailed(one) from error
            if self.rests_after_refusal or one.answer is None:
                await asyncio.sleep(pause_before_retry(attempt + 1, self.first_pause, asked.seed))
        raise AssertionError("the last attempt returns or raises; nobody asks without an attempt")
