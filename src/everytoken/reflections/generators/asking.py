"""What is asked of a generator, what it answers, and the ways in which a request fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from everytoken.reflections.errors import ReflectionError

FailureKind = Literal[
    "timeout",
    "connection",
    "rate_limit",
    "server_error",
    "no_choices",
    "blank",
    "length",
    "cut",
    "refused_request",
    "context",
]
"""``context``: the prompt is longer than the model's context. ``refused_request``: any other status from 400 to 499.
``cut``: a reply that claims to be whole and is not.
"""


class GeneratorError(ReflectionError):
    """A generator cannot work at all: the rank stops, with the cause and the remedy."""


class RequestFailed(ReflectionError):
    """One request failed.

    Attributes:
        reply: what came of a reply, as it is.
    """

    def __init__(self, kind: FailureKind, message: str, reply: str = "") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.reply = reply


@dataclass(frozen=True)
class Question:
    """A request for one reply.

    Attributes:
        messages: with ``role`` and ``content``.
        seed: of this attempt, 31 bits.
        fields: that the JSON object of a reply must have; none for plain text.
    """

    messages: Sequence[Mapping[str, str]]
    seed: int
    fields: Sequence[str] = ()


@dataclass(frozen=True)
class RawReply:
    """A reply, and the tokens that the generator counted; None where it does not say.

    ``reasoning``: what it thought before, where a server keeps that apart from the text.
    """

    text: str
    reasoning: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None


class Generator(Protocol):
    """An opened generator: it answers questions, several at a time where it can.

    Attributes:
        concurrency: questions that it works on at a time.
        facts: what made the replies (server, version, model), plain JSON.
        failures: of requests so far, by kind; those that another try made good too.
    """

    concurrency: int
    facts: dict[str, Any]
    failures: Counter[str]

    async def ask(self, question: Question) -> RawReply:
        """Return a reply.

        Raises:
            RequestFailed: there is none, after all tries.
            GeneratorError: there will be none to any question.
        """

    async def check(self) -> None:
        """Check that it still works.

        Raises:
            GeneratorError: it does not.
        """
