"""The help of every command: whole sentences, an example, and a word for each option and argument."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from everytoken.cli import cli
from everytoken.cli.listing import ListedCommands, first_sentence

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "mlflow", "kedro", "numpy", "pydantic", "pyarrow", "pandas", "transformers", "tokenizers")


def _commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            yield from _commands(below, *path, name)


COMMANDS = dict(_commands(cli, "everytoken"))
every_command = pytest.mark.parametrize("path", COMMANDS)


def _paragraphs(command: click.Command) -> tuple[list[str], list[str]]:
    """Return the paragraphs of a help that are prose, each on one line, and the lines of its example."""
    prose, _, example = (command.help or "").partition("\b\nExample:\n")
    return [" ".join(one.split()) for one in prose.strip().split("\n\n")], example.splitlines()


def test_all_commands_are_found() -> None:
    assert len(COMMANDS) > 30 and {"everytoken trace", "everytoken reflections merge"} < set(COMMANDS)


@every_command
def test_a_help_is_whole_sentences_and_an_example_that_names_the_command(path: str) -> None:
    prose, example = _paragraphs(COMMANDS[path])
    for paragraph in prose:
        assert re.fullmatch(r"[A-Z`].*\.", paragraph), paragraph
    first, *_ = first_sentence(COMMANDS[path]).split()
    assert not first.endswith("s"), "the first sentence says what to do: an imperative"
    assert any(line.strip().startswith(path) for line in example), example


@every_command
def test_the_example_keeps_its_lines_when_it_is_printed(path: str) -> None:
    _, example = _paragraphs(COMMANDS[path])
    printed = CliRunner().invoke(cli, [*path.split()[1:], "--help"]).output
    assert "\\b" not in printed
    for line in example:
        assert line.strip() in printed


@every_command
def test_each_option_and_argument_is_explained(path: str) -> None:
    command = COMMANDS[path]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            told = re.sub(r"  \[default: [^]]+\]$", "", parameter.help or "")
            assert re.fullmatch(r"[A-Z].{8,}\.", told), f"{parameter.opts}: {told!r}"
        else:
            name = parameter.make_metavar(click.Context(command)).strip("[].")
            assert re.search(rf"\b{name}\b", " ".join(_paragraphs(command)[0])), f"nothing explains {name}"


@every_command
def test_an_example_parses(path: str) -> None:
    """Options of an example exist: each is in the help of the command that its line runs."""
    _, example = _paragraphs(COMMANDS[path])
    for line in example:
        if (at := line.find("everytoken ")) < 0:
            continue
        words = line[at:].split()
        run = max((one for one in COMMANDS if words[: len(one.split())] == one.split()), key=len)
        known = {name for parameter in COMMANDS[run].params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_commands_are_listed_in_sections_with_whole_sentences() -> None:
    printed = CliRunner().invoke(cli, ["--help"], terminal_width=100).output
    assert "..." not in printed.partition("\n")[2]
    flat = " ".join(printed.split())
    for name, command in cli.commands.items():
        assert f"{name} {first_sentence(command)}" in flat
    assert isinstance(cli, ListedCommands)
    listed = [name for names in cli.sections.values() for name in names]
    assert sorted(listed) == sorted(cli.commands), "each command is in one section"
    assert [title for title in cli.sections if f"\n{title}:\n" in printed] == list(cli.sections)


def test_sub_commands_are_listed_with_whole_sentences() -> None:
    printed = CliRunner().invoke(cli, ["reflections", "--help"]).output
    assert "..." not in printed.partition("\n")[2] and "\nCommands:\n" in printed


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom everytoken.cli import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("path", "option"),
    [("everytoken trace", "step"), ("everytoken exposure", "at_step"), ("everytoken train", None)],
)
def test_help_says_how_steps_are_numbered(path: str, option: str | None) -> None:
    command = COMMANDS[path]
    told = next((one.help for one in command.params if isinstance(one, click.Option) and one.name == option), None)
    assert re.search(r"numbered from 0|the first is 0", (told if option else command.help) or "")
