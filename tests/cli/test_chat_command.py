"""The command that talks, in a pipe and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from everytoken.cli import cli
from everytoken.generation import Conversation, PrefixReader, jinja_of_marks
from everytoken.training import ExecutionParameters
from everytoken.training.step import execution
from tests.generation.talking import MARKS, chat_format, generation, said, save_checkpoint, talking_model

OPTIONS = ["--max-new-tokens", "12", "--temperature", "1", "--seed", "5", "--threads", "1"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model"), 400)


def talk(checkpoint: Path, *lines: str, options: list[str] | None = None, expect: int = 0) -> Result:
    arguments = ["chat", str(checkpoint), *OPTIONS, *(options or [])]
    result = CliRunner().invoke(cli, arguments, input="".join(f"{line}\n" for line in lines))
    assert result.exit_code == expect, result.output
    return result


def conversation(**changes: object) -> Conversation:
    return Conversation(chat_format(), PrefixReader(talking_model()), generation(**changes))


def replies(*steps: object, **changes: object) -> str:
    """Return what the command writes when these steps of a conversation are made."""
    chat, shown = conversation(**changes), []
    with execution(ExecutionParameters(threads=1, matmul_precision="highest")):
        for step in steps:
            shown.append("".join(said(step(chat))[0]).lstrip(" ") + "\n")
    return "".join(shown)


def test_in_a_pipe_replies_are_all_that_is_written(checkpoint: Path) -> None:
    result = talk(checkpoint, "Hi", "", "//you")
    assert result.stdout == replies(lambda chat: chat.say("Hi"), lambda chat: chat.say("/you"))
    assert result.stderr == ""


def test_commands(checkpoint: Path) -> None:
    lines = [
        "/system S",
        "Hi",
        "/retry",
        "/edit Ho",
        "and",
        "/edit 1 Ha",
        "/seed 7",
        "/retry",
        "/reset",
        "Hi",
        "/quit",
        "x",
    ]

    def after_seed(chat: Conversation) -> object:
        chat.parameters = generation(seed=7)
        return chat.retry()

    def begun(chat: Conversation) -> object:
        chat.system = "S"
        return chat.say("Hi")

    def again(chat: Conversation) -> object:
        chat.messages = [{"role": "system", "content": "S"}]
        return chat.say("Hi")

    expected = replies(
        begun,
        lambda chat: chat.retry(),
        lambda chat: chat.edit("Ho"),
        lambda chat: chat.say("and"),
        lambda chat: chat.edit("Ha", 1),
        after_seed,
        again,
    )
    assert talk(checkpoint, *lines).stdout == expected
    shown = talk(checkpoint, "/help").stderr
    for name in ("/reset", "/retry", "/edit", "/save", "/load", "/seed", "/system", "/help", "/quit"):
        assert f"{name} " in shown


def test_a_conversation_is_saved_and_resumed(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    whole = talk(checkpoint, "Hi", "and").stdout
    first = talk(checkpoint, "Hi", f"/save {file}")
    assert first.stderr == f"[{file}: 2 messages]\n"
    second = talk(checkpoint, f"/load {file}", "and", options=["--seed", "9"])
    assert first.stdout + second.stdout == whole
    saved = json.loads(file.read_text())
    saved["model"]["sha256"] = "0"
    file.write_text(json.dumps(saved))
    assert "[it was with another model, " in talk(checkpoint, f"/load {file}").stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/foo", "error: /foo is no command; /help lists them. A message that begins with / begins with //"),
        ("/retry", "error: there is nothing to answer: the user has not said anything yet"),
        ("/edit 3 x", "error: there is no turn 3; the chat has 0"),
        ("/edit", "error: /edit needs a text: /edit TEXT, or /edit TURN TEXT"),
        ("/seed x", "error: /seed needs a whole number of 0 or more, found 'x'"),
        ("/save", "error: /save needs the name of a file"),
        ("/save no/x", "error: /save: there is no folder no"),
        ("/load", "error: /load needs the name of a file"),
        ("/load nowhere.json", "error: [Errno 2] No such file or directory: 'nowhere.json'"),
        ("x" * 500, "error: the last message makes a prompt of 520 tokens, and the model reads 400 with its reply"),
    ],
)
def test_a_line_that_cannot_be_followed_is_told_and_the_rest_is_answered(
    checkpoint: Path, line: str, message: str
) -> None:
    result = talk(checkpoint, line, "Hi", expect=1)
    assert message in result.stderr
    assert result.stdout == replies(lambda chat: chat.say("Hi"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.clear(), "format: Field required"),
        (lambda saved: saved.pop("messages"), "messages: Field required"),
        (lambda saved: saved.update(model=None), "model: Input should be"),
        (lambda saved: saved.update(attempts=-3), "attempts: Input should be greater than or equal to 0"),
        (lambda saved: saved["parameters"].update(seed=-1), "parameters.seed: Input should be"),
        (lambda saved: saved["messages"][0].update(role="zork"), "messages.0.role: Input should be"),
        (lambda saved: saved["messages"][0].update(content=None), "messages.0.content: Input should be a valid string"),
        (lambda saved: saved["messages"][0].update(content="\ud800"), "Invalid JSON"),
    ],
)
def test_a_file_that_holds_no_conversation_changes_nothing(
    checkpoint: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    file = tmp_path / "chat.json"
    talk(checkpoint, "Hi", f"/save {file}")
    saved = json.loads(file.read_text())
    change(saved)
    file.write_text(json.dumps(saved))
    result = talk(checkpoint, "Hi", f"/load {file}", "and", expect=1)
    assert f"error: {file} holds no conversation that /save wrote: {message}" in result.stderr
    assert result.stdout == talk(checkpoint, "Hi", "and").stdout


def test_lines_are_utf_8_with_any_end(checkpoint: Path) -> None:
    arguments = ["chat", str(checkpoint), *OPTIONS]
    plain = talk(checkpoint, "Hi", "and").stdout
    other = CliRunner().invoke(cli, arguments, input=b"\xef\xbb\xbfHi\r\nand\r\n/quit\r\n")
    assert (other.stdout, other.exit_code) == (plain, 0)
    broken = CliRunner().invoke(cli, arguments, input=b"Hi\nbad \xff\nand\n")
    assert (broken.stdout, broken.exit_code) == (plain, 1)
    assert "error: the line is not UTF-8 (byte 5: 0xff)" in broken.stderr


def test_options_that_are_no_numbers_are_refused(checkpoint: Path) -> None:
    result = talk(checkpoint, "Hi", options=["--temperature", "nan"], expect=2)
    assert "temperature: Input should be a finite number" in result.stderr


@pytest.mark.sensitive
def test_it_stops_when_nobody_reads(checkpoint: Path) -> None:
    code = "from everytoken.cli import cli; cli()"
    command = [sys.executable, "-c", code, "chat", str(checkpoint), *OPTIONS]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.write(b"Hi\nand\n")
    process.stdin.close()
    assert process.wait(120) == 0
    assert b"Broken pipe" not in process.stderr.read()
    process.stderr.close()


def test_turns_that_are_left_out_are_told(checkpoint: Path) -> None:
    result = talk(checkpoint, *["a" * 90] * 4)
    assert "[the context is full: the oldest 2 messages were left out]" in result.stderr


def test_a_model_without_template_says_what_to_do(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(checkpoint / name)
    result = talk(tmp_path, "Hi", expect=1)
    assert (
        "has no chat template, so nobody knows where a turn begins and ends. Give one in Jinja (--template"
        in result.stderr
    )
    (tmp_path / "form.jinja").write_text(jinja_of_marks(MARKS, "\n"))
    given = talk(tmp_path, "Hi", options=["--template", str(tmp_path / "form.jinja")])
    assert given.stdout.startswith(talk(checkpoint, "Hi").stdout.rstrip("\n"))  # its end is EOS alone


@pytest.mark.sensitive
def test_in_a_terminal_ctrl_c_stops_a_reply_and_the_end_of_input_leaves(tmp_path: Path) -> None:
    """The reply would take minutes: its model draws the same few tokens again and again."""
    checkpoint = save_checkpoint(tmp_path, 100_000)
    main, child = pty.openpty()
    code = "from everytoken.cli import cli; cli()"
    command = [sys.executable, "-c", code, "chat", str(checkpoint), "--temperature", "0", "--max-new-tokens", "99000"]
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, start_new_session=True)
    os.close(child)
    assert "/quit leaves" in _until(main, b"> ")
    os.write(main, b"Hi\n")
    _until(main, b"\r\n")  # the echo
    os.read(main, 1)
    process.send_signal(signal.SIGINT)
    assert "[stopped]" in _until(main, b"> ")
    os.write(main, b"\x04")
    assert process.wait(60) == 0
    os.close(main)


def _until(terminal: int, end: bytes) -> str:
    """Return what a terminal shows up to ``end``."""
    shown = b""
    while not shown.endswith(end):
        shown += os.read(terminal, 1)
    return shown.decode(errors="replace")
