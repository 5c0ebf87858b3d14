"""The HTTP interface: chats and completions of OpenAI's API, ``/v1/models`` and ``/health``."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from everytoken.generation import ChatFormat, GenerationError, OpenedModel
from everytoken.serving.guard import refused
from everytoken.serving.model_thread import ModelThread
from everytoken.serving.refusals import Refusal, failed, shown
from everytoken.serving.replies import EncodedPrompt, Work
from everytoken.serving.requests import ChatRequest, CompletionRequest, GenerationRequest
from everytoken.serving.responses import ChatForm, CompletionForm, ReplyForm
from everytoken.serving.ticket import ClientGone, Ticket
from everytoken.serving.token_texts import TokenTexts

_CLIENT_GONE = 499  # as nginx writes it; nobody reads it


@dataclass(frozen=True)
class Served:
    """A model that answers requests.

    Attributes:
        fingerprint: changes when replies to one seed may change.
        max_new_tokens: of a reply whose request does not say.
    """

    opened: OpenedModel
    thread: ModelThread
    fingerprint: str
    max_new_tokens: int
    started: int = field(default_factory=lambda: int(time.time()))
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @cached_property
    def texts(self) -> TokenTexts:
        """What tokens stand for."""
        return TokenTexts(self.opened.tokenizer)

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How a chat becomes ids."""
        return self.opened.chat_format()

    async def chat(self, request: ChatRequest, http: Request) -> Response:
        """Answer a chat."""
        self._check_model(request.model)
        prompt = await asyncio.to_thread(self._chat_prompt, request)
        self._check_prompts([prompt], "messages")
        number = next(self.numbers)
        parameters = request.parameters(
            seed=number, max_new_tokens=request.most_new_tokens or self.max_new_tokens, stop=self.opened.chat.stop
        )
        work = Work(self.opened.tokenizer, [prompt], parameters, self.opened.ends, request.likely)
        form = ChatForm(
            self._head("chatcmpl", number, parameters.seed),
            self.texts,
            prompt_tokens=len(prompt.tokens),
            has_logprobs=request.logprobs,
        )
        return await self._respond(request, work, form, http)

    async def completion(self, request: CompletionRequest, http: Request) -> Response:
        """Continue prompts."""
        self._check_model(request.model)
        prompts = await asyncio.to_thread(lambda: [self._prompt(one) for one in request.prompt])
        self._check_prompts(prompts, "prompt")
        number = next(self.numbers)
        most = self.max_new_tokens if request.max_tokens is None else request.max_tokens
        parameters = request.parameters(seed=number, max_new_tokens=most) if most else None
        ends = self.opened.ends | {self.opened.eos_id}
        work = Work(self.opened.tokenizer, prompts, parameters, ends, request.logprobs, request.echo)
        form = CompletionForm(
            self._head("cmpl", number, None if parameters is None else parameters.seed),
            self.texts,
            prompt_tokens=sum(len(prompt.tokens) for prompt in prompts),
            has_logprobs=request.logprobs is not None,
        )
        return await self._respond(request, work, form, http)

    def models(self) -> list[dict[str, Any]]:
        """Return the models that there are: one."""
        return [{"id": self.opened.name, "object": "model", "created": self.started, "owned_by": "everytoken"}]

    def model(self, name: str) -> dict[str, Any]:
        """Return a model by its name."""
        self._check_model(name)
        return self.models()[0]

    def health(self) -> dict[str, Any]:
        """Return that requests are answered, and how many there are."""
        if not self.thread.is_alive:
            raise Refusal(503, "the model's thread has ended: start the server again")
        return {"status": "ok", **self.thread.counts()}

    async def _respond(self, request: GenerationRequest, work: Work, form: ReplyForm, http: Request) -> Response:
        ticket = Ticket(self.thread, work, http.receive)
        if request.stream:
            events = _events(ticket, form, request.counts_tokens)
            return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        return JSONResponse(form.whole([part async for part in ticket.parts()]))

    def _head(self, kind: str, number: int, seed: int | None) -> dict[str, Any]:
        return {
            "id": f"{kind}-{self.started}-{number}",
            "created": int(time.time()),
            "model": self.opened.name,
            "system_fingerprint": self.fingerprint,
            "seed": seed,
        }

    def _check_model(self, name: str) -> None:
        if name != self.opened.name:
            raise Refusal(
                404,
                f"there is no model {shown(name)} here, only {self.opened.name!r}",
                param="model",
                code="model_not_found",
            )

    def _chat_prompt(self, request: ChatRequest) -> EncodedPrompt:
        messages = [message.model_dump() for message in request.messages]
        try:
            return EncodedPrompt(self.chat_format.tokens(messages, **request.template_values), "")
        except GenerationError as error:
            raise Refusal(400, str(error), param="messages") from error

    def _prompt(self, given: str | list[int]) -> EncodedPrompt:
        if isinstance(given, str):
            encoding = self.opened.tokenizer.encode(given)
            added = [at for at, is_special in enumerate(encoding.special_tokens_mask) if is_special]
            return EncodedPrompt(encoding.ids, given, added)
        if wrong := [one for one in given if not 0 <= one < self.opened.model.vocab_size]:
            raise Refusal(
                400,
                f"{shown(wrong[0])} is no token id: expected 0 to {self.opened.model.vocab_size - 1}",
                param="prompt",
            )
        return EncodedPrompt(given, b"".join(map(self.texts.bytes, given)).decode(errors="replace"))

    def _check_prompts(self, prompts: Sequence[EncodedPrompt], param: str) -> None:
        context = self.opened.model.context
        for prompt in prompts:
            if not 1 <= len(prompt.tokens) <= context:
                raise Refusal(
                    400,
                    f"{param} has {len(prompt.tokens):,} tokens, expected 1 to {context:,}, the model's context",
                    param=param,
                    code="context_length_exceeded" if prompt.tokens else None,
                )


def application(served: Served) -> FastAPI:
    """Return the application of a model."""
    app = FastAPI(title="everytoken", openapi_url=None, docs_url=None, redoc_url=None)

    @app.post("/v1/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        return await served.chat(body, request)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        return await served.completion(body, request)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": served.models()}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        return served.model(name)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return served.health()

    @app.exception_handler(Refusal)
    async def refusal(_: Request, error: Refusal) -> Response:
        return refused(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return refused(_of_validation(error))

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        cause = error.__cause__  # of a body that the framework cannot read: no UTF-8, or nested too deeply
        said = str(error.detail) if cause is None else f"the body is no JSON: {cause}"
        return refused(Refusal(error.status_code, said, headers=error.headers))

    @app.exception_handler(ClientGone)
    async def gone(_: Request, error: ClientGone) -> Response:
        return Response(status_code=_CLIENT_GONE)

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> Response:
        return refused(failed())  # what it was goes to the log

    return app


async def _events(ticket: Ticket, form: ReplyForm, counts_tokens: bool) -> AsyncIterator[str]:
    """Yield the events of a stream; an error that comes after its begin is an event, too."""
    empty = {"usage": None} if counts_tokens else {}
    try:
        for chunk in form.first_chunks():
            yield _event({**chunk, **empty})
        async for part in ticket.parts():
            yield _event({**form.chunk(part), **empty})
        if counts_tokens:
            yield _event(form.usage_chunk())
        yield "data: [DONE]\n\n"
    except Refusal as refusal:
        yield _event(refusal.content())
    except ClientGone:
        return


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _of_validation(error: RequestValidationError) -> Refusal:
    """Return the refusal that names the first field that is wrong."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return Refusal(400, f"the body is no JSON: {first['ctx']['error']}")
    name = ""
    for step in first["loc"][1:]:
        name += f"[{step}]" if isinstance(step, int) else f".{step}" if name else str(step)
    if not name:
        return Refusal(400, "expected a JSON object, with Content-Type: application/json")
    if first["type"] == "extra_forbidden":
        return Refusal(400, f"{shown(name)} is no field that this server knows: leave it out", param=name)
    return Refusal(400, f"{name}: {first['msg'].removeprefix('Value error, ')}", param=name)
