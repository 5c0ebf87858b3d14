"""The options of every command that opens a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from everytoken.training import ExecutionParameters

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def opens_model(command: _Command) -> _Command:
    """Give a command the argument ``model`` and the options ``tokenizer``, ``device`` and ``threads``."""
    for decorate in (
        click.option("--threads", type=click.IntRange(1), help="Threads of the arithmetic.  [default: one a core]"),
        click.option(
            "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where it computes."
        ),
        click.option("--tokenizer", type=_FILE, help="Its tokenizer.json."),
        click.argument("model", type=click.Path(exists=True, path_type=Path)),
    ):
        command = decorate(command)
    return command


template_option = click.option("--template", type=_FILE, help="Chat template in Jinja.")


def arithmetic(threads: int | None) -> ExecutionParameters:
    """Return how a model is computed: float32, with one thread a core where none are given."""
    from everytoken.training import ExecutionParameters

    return ExecutionParameters(threads=threads or len(os.sched_getaffinity(0)), matmul_precision="highest")
