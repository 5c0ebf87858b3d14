"""Slots and queue are bounded, and a client that goes away gives its place free."""

import json
from contextlib import ExitStack, closing

import pytest

from tests.serving.served import NAME, serving, write_model

pytestmark = pytest.mark.sensitive
LONG = {"prompt": "Hello", "max_tokens": 90_000, "temperature": 0}
SHORT = {"prompt": "Hello", "max_tokens": 3, "seed": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(write_model(tmp_path_factory.mktemp("model")), "--concurrency", "1", "--queue", "1") as started:
        yield started


def test_a_full_queue_is_answered_with_429(server):
    with server.streaming("completions", **LONG) as first:
        next(first)
        with server.streaming("completions", **LONG):
            server.until((1, 1))
            status, headers, found = server.ask("POST", "/v1/completions", {"model": NAME, **SHORT})
            assert (status, headers["retry-after"]) == (429, "1")
            assert found["error"]["type"] == "rate_limit_error"
            assert found["error"]["message"].startswith("1 requests are being answered and 1 wait")
            next(first)  # which goes on
    server.until((0, 0))
    assert server.answer("completions", **SHORT)["choices"][0]["text"]


def test_one_that_waits_is_answered_when_another_goes_away(server):
    expected = server.answer("completions", **SHORT)["choices"][0]["text"]
    with ExitStack() as second:
        with server.streaming("completions", **LONG) as first:
            next(first)
            waiting = second.enter_context(server.streaming("completions", **SHORT))
            server.until((1, 1))
        assert "".join(chunk["choices"][0]["text"] for chunk in waiting) == expected
    server.until((0, 0))


def test_a_client_that_waits_and_goes_away_leaves_the_queue(server):
    with server.streaming("completions", **LONG) as first:
        next(first)
        with server.streaming("completions", **LONG):
            server.until((1, 1))
        server.until((1, 0))
        next(first)
    server.until((0, 0))


def test_a_client_that_goes_away_frees_its_slot_also_without_a_stream(server):
    connection = server.connect()
    body = json.dumps({"model": NAME, **LONG})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    server.until((1, 0))
    connection.close()
    server.until((0, 0))
    assert server.answer("completions", **SHORT)["choices"][0]["text"]


def test_a_client_that_goes_away_while_its_prompt_is_read_frees_its_slot(server):
    connection = server.connect()
    body = json.dumps({"model": NAME, **LONG, "prompt": "x" * 90_000})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    server.until((1, 0))
    connection.close()
    server.until((0, 0))


def test_the_model_is_listed_while_a_reply_is_made(server):
    with server.streaming("completions", **LONG) as first:
        next(first)
        assert server.ask("GET", "/v1/models")[0] == 200
        assert server.counts() == (1, 0)
    server.until((0, 0))


def test_connections_are_bounded(server):
    with ExitStack() as opened:
        for _ in range(66):  # those of a slot, of a place in the queue, and 64 more
            opened.enter_context(closing(server.connect())).connect()
        assert server.counts() is None
    server.until((0, 0))
