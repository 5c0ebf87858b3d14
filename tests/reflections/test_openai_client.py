"""The client of OpenAI-compatible servers: what it sends, and what it does when a server fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest

from everytoken.reflections.generators import (
    Endpoint,
    GeneratorError,
    Question,
    RawReply,
    RequestFailed,
    open_endpoint,
    pause_before_retry,
)
from tests.reflections.fault_server import MODEL, FaultServer, Script, fault_server

pytestmark = pytest.mark.sensitive

SAMPLING = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "presence_penalty": 1.5, "max_tokens": None}


def endpoint(server: FaultServer, **changes: Any) -> Endpoint:
    given = {
        "address": server.address,
        "key_variable": None,
        "model": None,
        "sampling": SAMPLING,
        "thinking": False,
        "concurrency": 4,
        "timeout": 20.0,
        "first_pause": 0.001,
    }
    return Endpoint(**{**given, **changes})


def ask(server: FaultServer, **changes: Any) -> tuple[RawReply | Exception, dict[str, Any], Counter[str]]:
    """Ask one question; return the reply or its failure, the facts, and the failed requests by kind."""

    async def asked() -> tuple[RawReply | Exception, dict[str, Any], Counter[str]]:
        async with open_endpoint(endpoint(server, **changes)) as generator:
            try:
                reply: RawReply | Exception = await generator.ask(Question([{"role": "user", "content": "q"}], 7))
            except (RequestFailed, GeneratorError) as error:
                reply = error
            return reply, generator.facts, generator.failures

    return asyncio.run(asked())


def once(fault: Any) -> Script:
    """Fail the first request of a document, then answer."""
    return lambda _, asked: fault if asked == 0 else "fine"


def test_all_that_decides_a_reply_is_sent() -> None:
    with fault_server(lambda *_: "fine") as server:
        reply, facts, _ = ask(server)
    assert reply == RawReply("fine", "", 11, 7, None)
    (body,) = [one for one in server.bodies if one["messages"][0]["content"] == "q"]
    assert body == {
        "model": MODEL,
        "messages": [{"role": "user", "content": "q"}],
        "seed": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "presence_penalty": 1.5,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    assert facts["model"] == MODEL and facts["owner"] == "tests" and facts["version"] == "0.9.1"
    assert facts["repeats_seed"] is True and facts["thinking"] == {"sent": False, "replies": 1, "with_reasoning": 0}


def test_thinking_is_asked_for_in_the_words_of_sglang_too() -> None:
    with fault_server(lambda *_: "fine") as server:
        ask(server, thinking=True)
    assert all(body["separate_reasoning"] is True for body in server.bodies)
    assert all(body["chat_template_kwargs"] == {"enable_thinking": True} for body in server.bodies)


def test_a_server_that_ignores_the_seed_and_thinks_unasked_is_recorded() -> None:
    said = iter(range(100))

    def script(_: dict[str, Any], __: int) -> Any:
        return lambda handler: handler.reply("fine", reasoning_content="hmm")

    with fault_server(script) as server:
        server.trial = lambda: f"The sea is {next(said)}."
        reply, facts, _ = ask(server)
    assert isinstance(reply, RawReply) and reply.reasoning == "hmm"
    assert facts["repeats_seed"] is False
    assert facts["thinking"] == {"sent": False, "replies": 1, "with_reasoning": 1}


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ((429, "slow down"), "rate_limit"),
        ((500, "oops"), "server_error"),
        ((503, "oops"), "server_error"),
        (lambda handler: handler.cut(), "connection"),
        (lambda handler: handler.completion([]), "no_choices"),
        (lambda handler: handler.reply(None), "blank"),
        (lambda handler: handler.reply(" \n"), "blank"),
        (lambda handler: handler.reply("half", "length"), "length"),
        ('{"analysis": "It', "cut"),
    ],
)
def test_a_request_that_fails_once_is_asked_again_and_counted_by_kind(fault: Any, kind: str) -> None:
    with fault_server(once(fault)) as server:
        reply, _, failures = ask(server)
    assert isinstance(reply, RawReply) and reply.text == "fine"
    assert failures == {kind: 1}


def test_a_slow_reply_is_a_timeout() -> None:
    with fault_server(once(lambda handler: handler.slow())) as server:
        reply, _, failures = ask(server, timeout=0.5)
    assert isinstance(reply, RawReply) and failures == {"timeout": 1}


@pytest.mark.parametrize(
    ("fault", "kind", "tries"),
    [
        ((429, "slow down"), "rate_limit", 8),
        ((500, "oops"), "server_error", 5),
        ((400, "no such thing"), "refused_request", 1),
        ((400, "This model's maximum context length is 10 tokens"), "context", 1),
        ((422, "unprocessable"), "refused_request", 1),
    ],
)
def test_tries_are_bounded_by_kind(fault: Any, kind: str, tries: int) -> None:
    with fault_server(lambda *_: fault) as server:
        reply, _, failures = ask(server, first_pause=0.0001)
    assert isinstance(reply, RequestFailed) and reply.kind == kind
    assert server.seen["q"] == tries and failures == {kind: tries}


def test_pauses_double_and_follow_from_the_seed() -> None:
    pauses = [pause_before_retry(number, 1.0, 3) for number in range(1, 8)]
    assert pauses == [pause_before_retry(number, 1.0, 3) for number in range(1, 8)]
    assert pauses != [pause_before_retry(number, 1.0, 4) for number in range(1, 8)]
    for number, pause in enumerate(pauses):
        assert 0.5 * 2**number <= pause <= 1.5 * 2**number


def test_no_more_requests_are_open_than_allowed() -> None:
    open_now, most = Counter[str](), Counter[str]()

    def script(_: dict[str, Any], __: int) -> str:
        open_now["requests"] += 1
        most["requests"] = max(most["requests"], open_now["requests"])
        time.sleep(0.02)
        open_now["requests"] -= 1
        return "fine"

    async def asked() -> None:
        async with open_endpoint(endpoint(server, concurrency=3)) as generator:
            questions = [Question([{"role": "user", "content": str(number)}], number) for number in range(20)]
            await asyncio.gather(*map(generator.ask, questions))

    with fault_server(script) as server:
        asyncio.run(asked())
    assert 1 < most["requests"] <= 3


def test_a_key_comes_from_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    with fault_server(lambda *_: "fine", key="k1") as server:
        with pytest.raises(GeneratorError, match="REFLECTION_TEST_KEY is not set"):
            ask(server, key_variable="REFLECTION_TEST_KEY")
        monkeypatch.setenv("REFLECTION_TEST_KEY", "k1")
        reply, _, _ = ask(server, key_variable="REFLECTION_TEST_KEY")
        assert isinstance(reply, RawReply)
        monkeypatch.setenv("REFLECTION_TEST_KEY", "other")
        with pytest.raises(GeneratorError, match=r"status 401.*api_key_variable"):
            ask(server, key_variable="REFLECTION_TEST_KEY")


def test_an_endpoint_that_is_not_there_or_has_another_model_is_named() -> None:
    with fault_server() as server:
        with pytest.raises(GeneratorError, match=rf"serves {MODEL}, expected other\. Correct generator\.model"):
            ask(server, model="other")
        with pytest.raises(GeneratorError, match=r"/v2/models answers with status 404.*with /v1 at the end"):
            ask(server, address=server.address.replace("v1", "v2"))
    with pytest.raises(GeneratorError, match=r"Is the server running"):
        ask(server)


def test_what_all_requests_have_is_tried_before_the_first_document() -> None:
    def refuses(body: dict[str, Any], _: int) -> Any:
        raise AssertionError("no document is asked about")

    with fault_server(refuses) as server:
        server.trial = lambda: (400, "presence_penalty is not supported")
        with pytest.raises(GeneratorError, match=r"refuses a request as all requests are: .*presence_penalty"):
            ask(server)


def test_a_proxy_is_never_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with fault_server(lambda *_: json.dumps({"a": 1})) as server:
        reply, _, _ = ask(server)
    assert isinstance(reply, RawReply)
