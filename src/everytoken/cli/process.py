"""How a command begins and ends as a process: logging, Ctrl-C, errors of the system."""

from __future__ import annotations

import copy
import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from everytoken.cli.listing import ListedCommands
from everytoken.redaction import redact_output, redacted
from everytoken.system_errors import explained

_LOGGING = "KEDRO_LOGGING_CONFIG"
# Plugins of pydantic would be looked for among all installed packages, and could change what a parameter says.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")


class Commands(ListedCommands):
    """Commands that log alike in every folder of a project, and that Ctrl-C ends with one line and exit code 130.

    Kedro asks the group of a project for its commands first: ``kedro run`` ends in the same way.
    """

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; for Kedro also ``run`` and ``jupyter``."""
        asked_by: click.Context | None = ctx  # kedro-telemetry asks without one
        if cmd_name in _OF_KEDRO and (asked_by is None or asked_by.command is not self):
            return _OF_KEDRO[cmd_name]()
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        redact_output()
        with _logging_of_the_project(), _interruptible(), _without_secrets(), _errors_in_words():
            return super().invoke(ctx)


def run_command() -> click.Command:
    """Return the ``run`` of the project: Kedro's own, which ends with exit code 130 at Ctrl-C.

    An error ends it with a few lines: exit code 2 if what was asked for is not there, and else 1.
    """
    from kedro.framework.cli.project import run

    own: click.Command = copy.copy(run)
    assert own.callback is not None, "it is a command"
    option = click.Option(["--traceback"], is_flag=True, help="Print where in the code an error was raised.")
    own.params = [*own.params, option]
    own.callback = _interruptible()(_failing_in_few_lines(own.callback))
    return own


def jupyter_command() -> click.Command:
    """Return the ``jupyter`` of the project: Kedro's own, which names the package that is not installed."""
    from kedro.framework.cli.jupyter import jupyter

    own = copy.copy(jupyter)
    own.commands = {name: copy.copy(command) for name, command in jupyter.commands.items()}
    for name, package in _JUPYTER_PACKAGES.items():
        callback = own.commands[name].callback
        assert callback is not None, "it is a command"
        own.commands[name].callback = _needing(package, f"kedro jupyter {name}", callback)
    return own


_JUPYTER_PACKAGES = {"lab": "jupyterlab", "notebook": "notebook", "setup": "ipykernel"}
_OF_KEDRO: dict[str, Callable[[], click.Command]] = {"run": run_command, "jupyter": jupyter_command}


def _needing(package: str, command: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def with_package(*given: Any, **options: Any) -> Any:
        if find_spec(package) is None:
            raise click.ClickException(f"{command} needs {package}, which is not installed: pip install {package}")
        return callback(*given, **options)

    return with_package


def _failing_in_few_lines(callback: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(callback)
    def run(*, traceback: bool, **options: Any) -> Any:
        from everytoken.configuration import few_lines, unknown_pipelines

        asked = [*(options["pipelines"] or ()), *filter(None, [options["pipeline"]])]
        if (unknown := unknown_pipelines(asked)) is not None:
            raise click.UsageError(unknown)
        try:
            return callback(**options)
        except click.ClickException:
            raise
        except Exception as error:
            if traceback:
                raise
            from everytoken.cli.project import failure_of_a_run

            code, told = failure_of_a_run(error, options)
            click.echo(f"Error: {few_lines(redacted(told))}", err=True)
            raise SystemExit(code) from None

    return run


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("Interrupted. The same command resumes.", err=True)
        raise SystemExit(130) from None


@contextmanager
def _without_secrets() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        error.message = redacted(error.message)  # type: ignore[misc]  # each kind of it says more than its message
        raise


@contextmanager
def _errors_in_words() -> Iterator[None]:
    """Turn errors whose message says all that there is to say into one line: ours, and those of the system."""
    try:
        yield
    except (click.Abort, click.exceptions.Exit):
        raise
    except click.ClickException as error:
        if error.__cause__ is None or (told := explained(error.__cause__)) is None:
            raise
        raise click.ClickException(told) from error
    except Exception as error:
        from everytoken.cli.project import cause_of, known_errors  # late: it imports all that has errors of its own

        if (told := explained(error)) is None:
            if not isinstance(error, known_errors()):
                raise
            told = str(cause_of(error))
        raise click.ClickException(told) from error


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


@contextmanager
def _logging_of_the_project() -> Iterator[None]:
    """Name the project's logging.yml to Kedro, which looks for it in the working directory alone."""
    from everytoken.cli.project import project_folder

    try:
        config = project_folder() / "conf" / "logging.yml"
    except click.ClickException:  # some commands need no project
        config = Path()
        # Kedro says on standard output which logging it takes where there is no project; a filter outlives that
        logging.getLogger("kedro.framework.project").addFilter(_is_warning)
    if _LOGGING in os.environ or not config.is_file() or config.parents[1] == Path.cwd():
        yield
        return
    os.environ[_LOGGING] = str(config)
    try:
        yield
    finally:
        os.environ.pop(_LOGGING, None)
