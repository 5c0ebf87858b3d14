"""A list of questions: replies are stored by item, asked for once, and survive a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from everytoken.reflections import GeneratorParameters, ReflectionError, RefusedReply
from everytoken.reflections.generators import GeneratorError
from everytoken.reflections.items import AskedItems, Item, ask_items
from everytoken.seeds import python_random
from tests.reflections.fault_server import FaultServer, fault_server
from tests.reflections.generated import openai_generator

pytestmark = pytest.mark.sensitive

COUNT = 30


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server(lambda body, asked: f"{body['messages'][-1]['content']} / {body['seed']}") as running:
        yield running


def items(count: int = COUNT, text: str = "question") -> list[Item]:
    return [Item(f"i{number}", [{"role": "user", "content": f"{text} {number}"}]) for number in range(count)]


def accept(item: Item, reply: str) -> str:
    if "bad" in reply:
        raise RefusedReply("it is bad")
    return reply


def ask(folder: Path, address: str, wanted: list[Item] | None = None, **changes: Any) -> AskedItems:
    generator: GeneratorParameters = TypeAdapter(GeneratorParameters).validate_python(openai_generator(address))
    given = {"name": "list", "seed": 7, "max_attempts": 3, "locked_values": {"prompt": "abc"}, **changes}
    return ask_items(folder, items() if wanted is None else wanted, generator, accept, **given)


def questions(server: FaultServer) -> int:
    return sum(not user.startswith("Write one sentence") for user in server.seen.elements())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_second_start_asks_nothing_and_needs_no_server(tmp_path: Path, server: FaultServer) -> None:
    found = ask(tmp_path, server.address)
    assert list(found.replies) == [f"i{number}" for number in range(COUNT)] and questions(server) == COUNT
    stored = {line["id"]: line for line in lines(tmp_path / "replies.jsonl")}
    assert all(one["reply"] == f"question {name[1:]} / {one['seed']}" for name, one in stored.items())
    assert len({one["seed"] for one in stored.values()}) == COUNT
    assert ask(tmp_path, "http://127.0.0.1:9/v1") == found


def test_items_may_join_and_leave(tmp_path: Path, server: FaultServer) -> None:
    first = ask(tmp_path, server.address, items(4))
    more = ask(tmp_path, server.address, items(6)[2:])
    assert questions(server) == 6 and list(more.replies) == ["i2", "i3", "i4", "i5"]
    assert more.replies["i2"] == first.replies["i2"]


def test_what_was_asked_must_not_change(tmp_path: Path, server: FaultServer) -> None:
    ask(tmp_path, server.address, items(3))
    with pytest.raises(ReflectionError, match=r"the reply of 'i[0-9]' answers another question"):
        ask(tmp_path, server.address, items(3, "another"))
    with pytest.raises(ReflectionError, match='prompt: "abc", now "xyz"'):
        ask(tmp_path, server.address, items(3), locked_values={"prompt": "xyz"})
    with pytest.raises(ReflectionError, match="seed: 7, now 8"):
        ask(tmp_path, server.address, items(3), seed=8)
    with pytest.raises(ReflectionError, match="'i0' occurs twice"):
        ask(tmp_path, server.address, [*items(2), *items(1)])
    (tmp_path / "locked.json").unlink()
    with pytest.raises(ReflectionError, match=r"has replies and no locked\.json"):
        ask(tmp_path, server.address, items(3))


def test_a_start_that_asked_nothing_locks_nothing(tmp_path: Path, server: FaultServer) -> None:
    with pytest.raises(GeneratorError):
        ask(tmp_path, "http://127.0.0.1:9/v1", items(3))
    assert len(ask(tmp_path, server.address, items(3), seed=8).replies) == 3


def test_attempts_are_bounded_over_all_starts_and_kept_raw(tmp_path: Path, server: FaultServer) -> None:
    def script(body: dict[str, Any], asked: int) -> Any:
        text = body["messages"][-1]["content"]
        if text == "question 1":
            return f"bad {asked}"
        if text == "question 2":
            return (400, "longer than the model's context length")
        return "bad once" if text == "question 3" and asked == 0 else text

    server.script = script
    found = ask(tmp_path, server.address, items(5))
    assert list(found.replies) == ["i0", "i3", "i4"]
    assert found.failed == {"i1": "RefusedReply", "i2": "context"}
    assert found.failures == {"api": 1, "parse": 4} and found.attempts == 8
    kept = [line for line in lines(tmp_path / "failures.jsonl") if line["id"] == "i1"]
    assert [(line["attempt"], line["reply"]) for line in kept] == [(0, "bad 0"), (1, "bad 1"), (2, "bad 2")]
    assert len({line["seed"] for line in kept}) == 3
    before = questions(server)
    assert ask(tmp_path, server.address, items(5)) == found and questions(server) == before
    ask(tmp_path, server.address, items(5), max_attempts=4)
    assert questions(server) == before + 1  # i1 alone: no attempt makes a prompt shorter


def test_a_list_that_only_fails_ends_early(tmp_path: Path, server: FaultServer) -> None:
    server.script = lambda body, asked: "bad"
    with pytest.raises(GeneratorError, match=r"100 items in a row failed, the last one \(i[0-9]+\) with RefusedReply"):
        ask(tmp_path, server.address, items(150), max_attempts=1)


_START = """
import sys
from pathlib import Path
from tests.reflections.items.test_asked_items import ask
ask(Path(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.slow
def test_a_kill_loses_only_what_was_under_way(tmp_path: Path, server: FaultServer) -> None:
    wanted = ask(tmp_path / "undisturbed", server.address).replies
    before = questions(server)
    steady = server.script

    def slow(body: dict[str, Any], asked: int) -> Any:
        time.sleep(0.05)
        return steady(body, asked)

    server.script = slow
    draws, replies = python_random(5, "kills"), tmp_path / "run/replies.jsonl"
    for number in range(3):
        has = replies.read_bytes().count(b"\n") if replies.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", _START, str(tmp_path / "run"), server.address])
        end = time.monotonic() + 60
        while (replies.read_bytes().count(b"\n") if replies.exists() else 0) <= has and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(draws.random() * 0.1)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if number == 1:
            with replies.open("ab") as file:
                file.write(b'{"id": "i29", "reply": "to')
    assert ask(tmp_path / "run", server.address).replies == wanted
    assert max(Counter(line["id"] for line in lines(replies)).values()) == 1
    assert questions(server) - before <= COUNT + 3 * 8  # twice the concurrency was under way, at most, at each kill
