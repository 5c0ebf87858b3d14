"""Groups of commands whose help lists each command with the whole first sentence of its own help."""

from __future__ import annotations

import inspect
import re
from typing import Any

import click

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=\.)\s")


def with_example_lines(help: str | None) -> str | None:
    """Return a help text whose paragraph ``Example:`` keeps its lines, by click's mark for such a paragraph."""
    return None if help is None else _EXAMPLE.sub("\b\nExample:", inspect.cleandoc(help), count=1)


def first_sentence(command: click.Command) -> str:
    """Return the first sentence of a command's help, on one line; empty where it has none."""
    paragraph = inspect.cleandoc(command.help or "").split("\n\n", 1)[0]
    return _SENTENCE_END.split(" ".join(paragraph.split()), maxsplit=1)[0]


class ListedCommands(click.Group):
    """Commands that are listed by what they are for; click's own list cuts each sentence to fit its line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sections: dict[str, list[str]] = {}
        self.help = with_example_lines(self.help)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command; the lines of its example stay lines."""
        if not isinstance(cmd, ListedCommands):
            cmd.help = with_example_lines(cmd.help)
        super().add_command(cmd, name)

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands, which are listed under ``title``."""
        for command in commands:
            self.add_command(command)
            self.sections.setdefault(title, []).append(str(command.name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list for each section, then one of the commands that are in none."""
        in_sections = {name for names in self.sections.values() for name in names}
        others = [name for name in self.list_commands(ctx) if name not in in_sections]
        for title, names in (*self.sections.items(), ("Commands", others)):
            rows = [(name, first_sentence(self.commands[name])) for name in names if not self.commands[name].hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
