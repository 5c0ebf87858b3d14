"""The commands that run an environment in the background: submit, status, rerun, cancel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everytoken.cli.project import given_parameters, project

if TYPE_CHECKING:
    from everytoken.shards import JobQueue
    from everytoken.submission import RunOrder, Submission

_Command = TypeVar("_Command", bound=Callable[..., Any])
_LAST_LINES = 6


def _params_as_given(context: click.Context, option: click.Parameter, value: str) -> str:
    """Return ``--params`` as it was written, since it is kept; what `kedro run` refuses, or a secret, is refused."""
    from everytoken.redaction import SecretError, require_no_secrets

    try:
        require_no_secrets(given_parameters(context, option, value))
    except SecretError as error:
        raise click.BadParameter(str(error), param_hint="--params") from None
    return value


_ENV = click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
_PARAMS = click.option(
    "--params", default="", callback=_params_as_given, help="Parameters, as for `kedro run --params`."
)
_WAIT = click.option("--wait", is_flag=True, help="Wait until the run has ended; Ctrl-C ends the waiting alone.")


def _orders_run(command: _Command) -> _Command:
    for decorate in (
        _WAIT,
        click.option(
            "--params", default="", callback=_params_as_given, help="Parameters, as for `kedro run --params`."
        ),
        click.option("--pipelines", default="", help="Pipelines, as for `kedro run --pipelines`.  [default: the job]"),
        _ENV,
    ):
        command = decorate(command)
    return command


@dataclass(frozen=True)
class _Place:
    """Where an environment makes its data, and the queue of its engine; None: processes of this machine."""

    data: Path
    queue: JobQueue | None
    env: str | None

    def last(self) -> Submission:
        """Return the newest submission.

        Raises:
            ClickException: there is none.
        """
        from everytoken.submission import submissions_in

        if not (found := submissions_in(self.data)):
            option = "" if self.env is None else f" --env {self.env}"
            raise click.ClickException(f"nothing was submitted in {self.data}. Do it: everytoken submit{option}")
        return found[-1]


@contextmanager
def _place(env: str | None) -> Iterator[_Place]:
    from everytoken.shards import Slurm, make_engine

    with project(env) as (context, _):
        found = context.config_loader["globals"]
        engine = make_engine(**found["engine"])
        yield _Place(Path(found["data"]), engine.queue if isinstance(engine, Slurm) else None, env)


@click.command("submit")
@_orders_run
def submission_submit(env: str | None, pipelines: str, params: str, wait: bool) -> None:
    """Start `kedro run` of an environment in the background, and return when it is queued.

    It is a process of this machine. Where the engine of the environment is slurm, it is a job, which queues further
    jobs. It goes on when the terminal is closed.

    Example:
      everytoken submit --env test
      everytoken status --env test
    """
    from everytoken.submission import RunOrder

    with _place(env) as place:
        _submit(place, RunOrder(env, _known(pipelines), params), wait)


@click.command("rerun")
@_ENV
@_WAIT
def submission_rerun(env: str | None, wait: bool) -> None:
    """Submit what was submitted last once more; it makes what is missing, and keeps the rest.

    Example:
      everytoken rerun --env test
    """
    with _place(env) as place:
        _submit(place, replace(place.last().order(), jobs=None), wait)


def _known(pipelines: str) -> tuple[str, ...]:
    from everytoken.configuration import unknown_pipelines

    names = [name.strip() for name in pipelines.split(",") if name.strip()]
    if (told := unknown_pipelines(names)) is not None:
        raise click.UsageError(told)
    return tuple(names)


def _submit(place: _Place, order: RunOrder, wait: bool) -> None:
    from everytoken.cli.submission.run import SubmittedRun
    from everytoken.submission import submit_run, wait_for

    submission = submit_run(place.data, order, SubmittedRun, place.queue)
    how = "started" if place.queue is None else "queued"
    click.echo(f"submission {submission.number} {how}: {order.command}\nlog: {submission.log}")
    if wait:
        state = wait_for(submission, place.queue)
        click.echo("\n".join(_status_lines(submission, place.queue)))
        if state != "done":
            raise SystemExit(1)


@click.command("status")
@_ENV
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def submission_status(env: str | None, as_json: bool) -> None:
    """Show how far the last submission of an environment is.

    Example:
      everytoken status --env test
    """
    with _place(env) as place:
        submission = place.last()
        told = _told(submission, place.queue)
        click.echo(json.dumps(told, indent=1) if as_json else "\n".join(_status_lines(submission, place.queue)))


def _told(submission: Submission, queue: JobQueue | None) -> dict[str, Any]:
    """Return what is known of a submission."""
    from everytoken.configuration import stage_in
    from everytoken.submission import submission_state

    state, order = submission_state(submission, queue), submission.order()
    log = submission.log.read_text(encoding="utf-8", errors="replace") if submission.log.exists() else ""
    stage, failed = stage_in(log), state == "ended early" and not submission.was_cancelled
    return {
        "number": submission.number,
        "command": order.command,
        "state": state,
        "error": submission.why_ended() if state == "ended early" else None,
        "last_lines": log.splitlines()[-_LAST_LINES:] if failed else [],
        "stage": None if stage is None else asdict(stage),
        "log": str(submission.log),
    }


def _status_lines(submission: Submission, queue: JobQueue | None) -> Iterator[str]:
    told = _told(submission, queue)
    yield f"submission   {told['number']}: {told['command']}"
    yield f"state        {told['state']}" + ("" if told["error"] is None else f": {told['error']}")
    if (stage := told["stage"]) is not None and told["state"] != "done":
        yield f"stage        {stage['number']} of {stage['stages']}: {stage['name']}"
        if stage["progress"] and told["state"] == "running":
            yield f"progress     {stage['progress']}"
    yield from (f"  {line}" for line in told["last_lines"])
    yield f"log          {told['log']}"


@click.command("cancel")
@_ENV
def submission_cancel(env: str | None) -> None:
    """End the last submission of an environment with its workers and jobs; what is made stays.

    Example:
      everytoken cancel --env test
    """
    from everytoken.submission import cancel_run

    with _place(env) as place:
        submission = place.last()
        if cancel_run(submission, place.queue):
            option = "" if env is None else f" --env {env}"
            click.echo(f"submission {submission.number} is cancelled; everytoken rerun{option} resumes it")
        else:
            click.echo(f"submission {submission.number} is not running: there is nothing to end")
