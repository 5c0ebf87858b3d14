"""A server that a task starts, and a model in the process: real ones, with a tiny model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from everytoken.generation import GenerationParameters, PrefixReader, SequencePlaces
from everytoken.models import Llama
from everytoken.reflections.generators import (
    GeneratorError,
    Question,
    RequestFailed,
    ServerCommand,
    open_generator,
    task_server,
)
from everytoken.reflections.generators.framed_replies import FramedReply, Vocabulary, write_reply
from everytoken.reflections.parameters import ServerGenerator
from tests.generation.talking import byte_tokenizer, talking_model
from tests.reflections.generated import SAMPLING
from tests.serving.served import COMMAND, NAME, write_model

pytestmark = pytest.mark.sensitive


def command(*words: str, **changes: Any) -> ServerCommand:
    given = {"port": 0, "health": "/health", "check_seconds": 0.1, "start_seconds": 60.0, "environment": {}}
    return ServerCommand(command=words, **{**given, **changes})


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def gone(process: int) -> bool:
    end = time.monotonic() + 20
    while is_alive(process) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_alive(process)


# ---- a server that a task starts ----


def test_a_rank_starts_a_server_asks_it_and_stops_it(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    given = ServerGenerator.model_validate(
        {
            "kind": "server",
            "alias": "smollm2-tiny",
            "command": [*COMMAND, str(model), "--port", "{port}", "--threads", "1"],
            "check_seconds": 0.2,
            "concurrency": 2,
            "sampling": {"smollm2": {**SAMPLING, "max_tokens": 8}},
        }
    )

    async def asked() -> tuple[str, dict[str, Any]]:
        async with open_generator(given, server_log=tmp_path / "log") as generator:
            question = Question([{"role": "user", "content": "hello"}], 5)
            try:
                return (await generator.ask(question)).text, generator.facts
            except RequestFailed as error:  # a tiny model seldom ends a reply itself
                return error.reply, generator.facts

    text, facts = asyncio.run(asked())
    assert text and facts["model"] == NAME and facts["repeats_seed"] is True
    assert facts["thinking"]["sent"] is False and "torch" in facts["system_fingerprint"]
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(model) not in found


def test_a_server_that_dies_at_its_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    dying = command(sys.executable, "-m", "sglang.launch_server")
    with (
        pytest.raises(GeneratorError, match=r"(?s)^FATAL: sglang process died, exit code 1\..*No module named"),
        task_server(dying, tmp_path / "log"),
    ):
        pytest.fail("it never runs")
    absent = command("/no/such/program")
    with (
        pytest.raises(GeneratorError, match=r"(?s)^FATAL: program process died, exit code 127\..*cannot be started"),
        task_server(absent, tmp_path / "log"),
    ):
        pytest.fail("it never runs")


def test_a_server_that_is_never_healthy_is_ended(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
    silent = command(sys.executable, "-c", code, start_seconds=3.0)
    with (
        pytest.raises(GeneratorError, match=r"^FATAL: python[0-9.]* failed to start after 0\.05 minutes: http"),
        task_server(silent, tmp_path / "log"),
    ):
        pytest.fail("it is never healthy")
    assert gone(int((tmp_path / "log").read_text().split()[0]))


_HEALTHY = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(os.getpid(), child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_that_dies_while_it_is_used_is_noticed(tmp_path: Path) -> None:
    with task_server(command(sys.executable, "-c", _HEALTHY, "{port}"), tmp_path / "log") as server:
        server.check()
        own, child = map(int, (tmp_path / "log").read_text().split())
        os.kill(own, signal.SIGKILL)
        end = time.monotonic() + 20
        with pytest.raises(GeneratorError, match=r"^FATAL: .* process died, exit code 137"):
            while time.monotonic() < end:
                server.check()
                time.sleep(0.05)
        assert gone(child)


def test_a_task_that_is_killed_leaves_no_process_of_its_server(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from everytoken.reflections.generators import ServerCommand, task_server\n"
        "given = ServerCommand([sys.executable, '-c', sys.argv[2], '{port}'], 0, '/', 0.1, 60.0, {})\n"
        "with task_server(given, Path(sys.argv[1])):\n"
        "    print('ready', flush=True); time.sleep(1000)\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "log"), _HEALTHY]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as task:
        assert task.stdout is not None and task.stdout.readline() == b"ready\n"
        processes = list(map(int, (tmp_path / "log").read_text().split()))
        assert all(map(is_alive, processes))
        task.kill()
    assert all(map(gone, processes))


# ---- a model in the process ----


def vocabulary() -> Vocabulary:
    tokenizer = byte_tokenizer()
    return Vocabulary(tokenizer, frozenset({256, 258}))


def drawn_with(**changes: Any) -> GenerationParameters:
    return GenerationParameters(**{"seed": 1, "max_new_tokens": 60, "temperature": 1.0, **changes})


def written(
    model: Llama, fields: tuple[str, ...], prompts: list[list[int]], places: int, seeds: list[int]
) -> list[FramedReply]:
    """Write a reply to each prompt, as many at a time as there are places."""
    reader, side_by_side = PrefixReader(model), SequencePlaces(model, places)
    words, found, todo = vocabulary(), dict[int, FramedReply](), list(range(len(prompts)))
    growing: dict[int, tuple[int, Any, list[int]]] = {}
    while todo or growing:
        for place in side_by_side.free[: len(todo)]:
            number = todo.pop(0)
            writing = write_reply(words, fields, drawn_with(seed=seeds[number]))
            logits = reader.read_prompt(prompts[number] + next(writing))
            growing[place] = number, writing, list(writing.send(logits))
            side_by_side.take(place, reader.copied_cache())  # type: ignore[arg-type]
        after = side_by_side.read({place: unread.pop(0) for place, (_, _, unread) in growing.items()})
        for place, logits in after.items():
            number, writing, unread = growing[place]
            if unread:
                continue
            try:
                unread += writing.send(logits)
            except StopIteration as ended:
                found[number] = ended.value
                side_by_side.leave(place)
                del growing[place]
    return [found[number] for number in range(len(prompts))]


def test_a_framed_reply_is_json_with_the_fields_whatever_the_model_draws() -> None:
    model = talking_model()
    assert isinstance(model, Llama)
    for seed in range(20):
        (reply,) = written(model, ("analysis", "reflection_1p"), [[1, 2, 3]], 1, [seed])
        found = json.loads(reply.text)
        assert list(found) == ["analysis", "reflection_1p"] and 2 <= reply.drawn <= 60
        assert not any('"' in text or "\n" in text for text in found.values())


def test_a_reply_depends_on_no_other_reply_and_follows_from_its_seed() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = talking_model()
        assert isinstance(model, Llama)
        prompts = [[number, 7, 7, *range(number)] for number in range(10)]
        seeds = list(range(10))
        fields = ("analysis", "reflection_1p", "reflection_3p")
        together = written(model, fields, prompts, 4, seeds)
        assert together == written(model, fields, prompts, 4, seeds)
        alone = [written(model, fields, [prompt], 4, [seed])[0] for prompt, seed in zip(prompts, seeds, strict=True)]
        backwards = written(model, fields, prompts[::-1], 4, seeds[::-1])[::-1]
        assert together == alone == backwards
        assert together != written(model, fields, prompts, 4, [seed + 1 for seed in seeds])
    finally:
        torch.set_num_threads(threads)


def test_plain_text_needs_no_frame() -> None:
    model = talking_model()
    assert isinstance(model, Llama)
    (reply,) = written(model, (), [[1, 2, 3]], 2, [3])
    assert reply.text and not reply.text.startswith("{")


def test_sequences_side_by_side_compute_what_each_computes_alone() -> None:
    model = talking_model()
    assert isinstance(model, Llama)
    prompts = [[1, 2, 3], [4] * 70, [5]]
    reader, places = PrefixReader(model), SequencePlaces(model, 3)
    wanted = []
    for place, prompt in enumerate(prompts):
        reader.read_prompt(prompt)
        places.take(place, reader.copied_cache())  # type: ignore[arg-type]
        wanted.append([reader.read_token(9), reader.read_token(8)])
    for step, token in enumerate((9, 8)):
        found = places.read(dict.fromkeys(range(3), token))
        for place in range(3):
            torch.testing.assert_close(found[place], wanted[place][step])
