"""The commands that run an environment in the background: submit, submit-test, status, rerun, cancel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from everytoken.cli.project import given_parameters, project

if TYPE_CHECKING:
    from kedro.pipeline import Pipeline

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
_TEST = click.option("--test", "is_test", is_flag=True, help="Of the last `everytoken submit-test`.")
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
    verb: str = "submit"

    def last(self) -> Submission:
        """Return the newest submission.

        Raises:
            ClickException: there is none.
        """
        from everytoken.submission import submissions_in

        if not (found := submissions_in(self.data)):
            option = "" if self.env is None else f" --env {self.env}"
            raise click.ClickException(f"nothing was submitted in {self.data}. Do it: everytoken {self.verb}{option}")
        return found[-1]

    def of_trial(self) -> _Place:
        """Return where its trials make their data."""
        from everytoken.submission import TRIAL

        return replace(self, data=self.data / TRIAL, verb="submit-test")


@contextmanager
def _place(env: str | None, *, of_trial: bool = False) -> Iterator[_Place]:
    with project(env) as (context, _):
        place = _place_in(context, env)
        yield place.of_trial() if of_trial else place


def _place_in(context: Any, env: str | None) -> _Place:
    from everytoken.shards import Slurm, make_engine

    found = context.config_loader["globals"]
    engine = make_engine(**found["engine"])
    return _Place(Path(found["data"]), engine.queue if isinstance(engine, Slurm) else None, env)


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


@click.command("submit-test")
@_orders_run
@click.option(
    "--parts",
    type=click.IntRange(min=1),
    help="Parts that are read, besides the first of each source.  [default: those of a job, engine.parts_per_job]",
)
def submission_submit_test(env: str | None, pipelines: str, params: str, wait: bool, parts: int | None) -> None:
    """Try a run on its first parts in the background: that it works, and how long a slice takes.

    It is the same run on the same engine, up to the tokens, in a data folder of its own: DATA/submit_test. It reads
    the first parts of the plan, and the first part of each source that has none among them. What follows the tokens
    is named and does not run; its parameters are checked. Mixtures and expected numbers are switched off, since they
    are of the whole. Each trial begins again.

    Example:
      everytoken submit-test --env test --wait
      everytoken status --env test --test
    """
    from everytoken.cli.submission.trial import plan_trial, trial_params
    from everytoken.configuration import groups_of, require_local, streams_of
    from everytoken.contract import require_consistent
    from everytoken.submission import RunOrder

    asked, command = _known(pipelines), click.get_current_context()
    (option,) = [one for one in command.command.params if one.name == "params"]
    with project(env, given_parameters(command, option, params)) as (context, catalog):
        require_local(context.config_loader["catalog"])
        place, (whole, _) = _place_in(context, env), _asked_and_job(asked)
        require_consistent(groups_of(whole, catalog), streams_of(whole))
        read = parts or (1 if place.queue is None else place.queue.options.parts_per_job)
        changed = trial_params(read, context.params.get("ingestion"))
    both = ",".join(filter(None, [params, changed]))
    with project(env, given_parameters(command, option, both)):
        trial = plan_trial(whole, *_asked_and_job(asked), place.data, changed)
        _submit(place.of_trial(), RunOrder(env, asked, params, trial=trial), wait)


def _asked_and_job(asked: Sequence[str]) -> tuple[Pipeline, Pipeline]:
    """Return the pipelines of these names as one, those of the job where there are none; and the job."""
    from kedro.framework.project import pipelines
    from kedro.pipeline import Pipeline

    job = pipelines["__default__"]
    return sum((pipelines[name] for name in asked), Pipeline([])) if asked else job, job


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
    from everytoken.cli.submission.run import SubmittedRun, tried_run
    from everytoken.submission import submit_run, wait_for

    submission = submit_run(place.data, order, SubmittedRun if order.trial is None else tried_run, place.queue)
    how = "started" if place.queue is None else "queued"
    click.echo(f"submission {submission.number} {how}: {order.command}\nlog: {submission.log}")
    if order.trial is not None and order.trial.left_out and not wait:
        click.echo(f"does not run: {', '.join(order.trial.left_out)}")
    if wait:
        state = wait_for(submission, place.queue)
        click.echo("\n".join(_status_lines(submission, place.queue)))
        if state != "done":
            raise SystemExit(1)


@click.command("status")
@_ENV
@_TEST
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def submission_status(env: str | None, is_test: bool, as_json: bool) -> None:
    """Show how far the last submission of an environment is.

    Example:
      everytoken status --env test
    """
    with _place(env, of_trial=is_test) as place:
        submission = place.last()
        told = _told(submission, place.queue)
        click.echo(json.dumps(told, indent=1) if as_json else "\n".join(_status_lines(submission, place.queue)))


def _told(submission: Submission, queue: JobQueue | None) -> dict[str, Any]:
    """Return what is known of a submission."""
    from everytoken.cli.submission.trial import told_of_trial
    from everytoken.configuration import stage_in
    from everytoken.submission import submission_state

    state, order = submission_state(submission, queue), submission.order()
    why = submission.why_ended() if state == "ended early" else None
    if order.trial is not None and submission.was_cancelled:
        why = "cancelled; everytoken submit-test begins again"
    log = submission.log.read_text(encoding="utf-8", errors="replace") if submission.log.exists() else ""
    stage, failed = stage_in(log), state == "ended early" and not submission.was_cancelled
    return {
        "number": submission.number,
        "command": order.command,
        "state": state,
        "error": why,
        "last_lines": log.splitlines()[-_LAST_LINES:] if failed else [],
        "stage": None if stage is None else asdict(stage),
        "log": str(submission.log),
        "trial": None if order.trial is None else told_of_trial(order.trial),
    }


def _status_lines(submission: Submission, queue: JobQueue | None) -> Iterator[str]:
    from everytoken.cli.submission.trial import trial_lines

    told = _told(submission, queue)
    yield f"submission   {told['number']}: {told['command']}"
    yield f"state        {told['state']}" + ("" if told["error"] is None else f": {told['error']}")
    if (stage := told["stage"]) is not None and told["state"] != "done":
        yield f"stage        {stage['number']} of {stage['stages']}: {stage['name']}"
        if stage["progress"] and told["state"] == "running":
            yield f"progress     {stage['progress']}"
    yield from (f"  {line}" for line in told["last_lines"])
    if told["trial"] is not None:
        yield from trial_lines(told["trial"])
    yield f"log          {told['log']}"


@click.command("cancel")
@_ENV
@_TEST
def submission_cancel(env: str | None, is_test: bool) -> None:
    """End the last submission of an environment with its workers and jobs; what is made stays.

    Example:
      everytoken cancel --env test
    """
    from everytoken.submission import cancel_run

    with _place(env, of_trial=is_test) as place:
        submission = place.last()
        if cancel_run(submission, place.queue):
            option = "" if env is None else f" --env {env}"
            again = (
                f"everytoken submit-test{option} begins again" if is_test else f"everytoken rerun{option} resumes it"
            )
            click.echo(f"submission {submission.number} is cancelled; {again}")
        else:
            click.echo(f"submission {submission.number} is not running: there is nothing to end")
