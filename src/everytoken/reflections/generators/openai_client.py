"""Any server with OpenAI's chat API, asked with the package ``openai``.

All that decides a reply is sent: sampling, ``max_tokens``, whether the model thinks, and the seed of the attempt. The
retries of the package are off: ours are counted by kind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everytoken.reflections.generators.asking import GeneratorError, Question, RawReply, RequestFailed
from everytoken.reflections.generators.endpoint import api_key, is_on_this_machine, served_model
from everytoken.reflections.generators.retries import with_retries
from everytoken.reflections.generators.whole_replies import answer_of, is_too_long

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

_TRIAL = ({"role": "user", "content": "Write one sentence about the sea."},)
_TRIAL_SEED = 20
_TRIAL_TOKENS = 24
_SHOWN_BODY = 500  # characters
_BODY = ("top_k",)  # sampling that OpenAI's own API does not know: it goes into the extra body


@dataclass(frozen=True)
class Endpoint:
    """A server, and how it is asked.

    Attributes:
        address: with ``/v1``.
        model: that is asked for; None: the first that the server lists.
        sampling: temperature, top_p, top_k, presence_penalty, max_tokens; what is None is not sent.
        thinking: whether the model is told to think; None: it is told nothing.
        timeout: seconds of a request.
        first_pause: seconds before the second try, about.
    """

    address: str
    key_variable: str | None
    model: str | None
    sampling: Mapping[str, float | int | None]
    thinking: bool | None
    concurrency: int
    timeout: float
    first_pause: float


def _always() -> None:
    """Say nothing of the process of a server that somebody else started."""


@asynccontextmanager
async def open_endpoint(
    endpoint: Endpoint, check_process: Callable[[], None] = _always
) -> AsyncIterator[OpenAIGenerator]:
    """Give the generator of an endpoint, after it has answered two trial questions.

    Args:
        check_process: raises `GeneratorError` where the process of the server has ended.

    Raises:
        GeneratorError: the server is not there, or refuses what every request has.
    """
    try:
        import openai
    except ImportError as error:
        raise GeneratorError("the package openai is missing: pip install 'everytoken[reflect]'") from error
    key = api_key(endpoint.key_variable)
    facts = await asyncio.to_thread(served_model, endpoint.address, key, endpoint.model)
    limits = type(openai.DEFAULT_CONNECTION_LIMITS)(max_connections=endpoint.concurrency)
    http = openai.DefaultAsyncHttpxClient(limits=limits, trust_env=not is_on_this_machine(endpoint.address))
    async with openai.AsyncOpenAI(
        base_url=endpoint.address, api_key=key, max_retries=0, timeout=endpoint.timeout, http_client=http
    ) as client:
        generator = OpenAIGenerator(client, endpoint, key, facts, check_process)
        await generator.try_out()
        yield generator


@dataclass
class OpenAIGenerator:
    """An opened endpoint; see `everytoken.reflections.generators.asking.Generator`.

    ``facts`` also has ``repeats_seed``, whether one seed gave one reply twice, and what was observed of thinking.
    """

    client: AsyncOpenAI
    endpoint: Endpoint
    key: str
    facts: dict[str, Any]
    check_process: Callable[[], None]
    failures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.concurrency = self.endpoint.concurrency
        self._slots = asyncio.Semaphore(self.concurrency)
        self.facts |= {"thinking": {"sent": self.endpoint.thinking, "replies": 0, "with_reasoning": 0}}

    async def ask(self, question: Question) -> RawReply:
        """Return a reply; see the protocol."""
        answer = await with_retries(
            lambda: self._once(question),
            first_pause=self.endpoint.first_pause,
            seed=question.seed,
            failures=self.failures,
        )
        observed = self.facts["thinking"]
        observed["replies"] += 1
        observed["with_reasoning"] += bool(answer.reasoning) or "<think>" in answer.text
        return answer

    async def check(self) -> None:
        """Check that the server runs and still lists the model."""
        self.check_process()
        await asyncio.to_thread(served_model, self.endpoint.address, self.key, self.facts["model"])

    async def try_out(self) -> None:
        """Ask one short question twice with one seed, as all questions are asked; record whether the replies agree.

        Raises:
            GeneratorError: the server refuses it.
        """
        said: list[tuple[str | None, str | None] | None] = []
        for _ in range(2):
            try:
                reply = await self._send(_TRIAL, _TRIAL_SEED, _TRIAL_TOKENS)
            except RequestFailed as error:
                if error.kind in ("refused_request", "context"):
                    raise GeneratorError(
                        f"{self.endpoint.address} refuses a request as all requests are: {error}. Correct "
                        "generator.sampling and generator.thinking, or the server"
                    ) from error
                said.append(None)
                continue
            message = reply.choices[0].message if reply.choices else None
            said.append(None if message is None else (message.content, getattr(message, "reasoning_content", None)))
            self.facts["system_fingerprint"] = reply.system_fingerprint
        self.facts["repeats_seed"] = None if None in said else said[0] == said[1]

    async def _once(self, question: Question) -> RawReply:
        async with self._slots:
            reply = await self._send(question.messages, question.seed, None)
        return answer_of(reply)

    async def _send(self, messages: Any, seed: int, most: int | None) -> Any:
        import openai

        try:
            return await self.client.chat.completions.create(**self._request(messages, seed, most))
        except openai.APITimeoutError as error:
            raise RequestFailed("timeout", f"no reply within {self.endpoint.timeout:g} s") from error
        except openai.RateLimitError as error:
            raise RequestFailed("rate_limit", str(error)) from error
        except openai.APIStatusError as error:
            raise self._of_status(error.status_code, _said(error)) from error
        except (openai.APIConnectionError, openai.APIResponseValidationError, ValueError) as error:
            self.check_process()
            cause = error.__cause__ or error
            raise RequestFailed("connection", f"{type(cause).__name__}: {cause}") from error

    def _of_status(self, status: int, said: str) -> ReflectionFailure:
        if status in (401, 403, 404):
            return GeneratorError(
                f"{self.endpoint.address} answers with status {status}: {said}. Check the key "
                "(generator.api_key_variable), the address and the model"
            )
        if status >= 500 or status in (408, 409):
            return RequestFailed("server_error", said)
        return RequestFailed("context" if is_too_long(said) else "refused_request", said)

    def _request(self, messages: Any, seed: int, most: int | None) -> dict[str, Any]:
        sent = {name: value for name, value in self.endpoint.sampling.items() if value is not None}
        body: dict[str, Any] = {name: sent.pop(name) for name in _BODY if name in sent}
        if (thinking := self.endpoint.thinking) is not None:
            body["chat_template_kwargs"] = {"enable_thinking": thinking}
            body |= {"separate_reasoning": True} if thinking else {}  # sglang's word: strict servers refuse it
        if most is not None:
            sent["max_tokens"] = most
        return {"model": self.facts["model"], "messages": list(messages), "seed": seed, **sent, "extra_body": body}


ReflectionFailure = GeneratorError | RequestFailed


def _said(error: APIStatusError) -> str:
    """Return what a server says of an error, also where it is not in the form of OpenAI."""
    said, body = str(error), error.response.text[:_SHOWN_BODY].strip()
    return said if " - " in said or not body else f"{said} - {body}"
