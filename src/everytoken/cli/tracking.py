"""The commands `everytoken tracking`: what became of the records of runs."""

from __future__ import annotations

import click

from everytoken.cli.listing import ListedCommands
from everytoken.cli.project import project


@click.group(cls=ListedCommands)
def tracking() -> None:
    """Look after the records of runs in MLflow.

    Example:
      everytoken tracking deliver
    """


@tracking.command("deliver")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def deliver_command(env: str | None) -> None:
    """Send MLflow what it could not take while runs were running; each record arrives once.

    The exit code is 1 if records of a run that has ended are still kept.

    Example:
      everytoken tracking deliver --env test
    """
    from everytoken.tracking import FOLDER, deliver, mlflow_environment, open_store, tracking_settings, waiting

    with project(env) as (context, _), mlflow_environment():
        if not waiting(context.project_path / FOLDER):
            click.echo("nothing to deliver: MLflow has all records of all runs")
            return
        store = open_store(context.project_path, tracking_settings(context))
        is_left = False
        for delivery in deliver(store):
            click.echo(str(delivery))
            is_left |= delivery.left != 0
        for path in [] if is_left else waiting(store.backlogs):
            click.echo(f"run {path.stem}: has not ended, or another process delivers its records")
    if is_left:
        raise SystemExit(1)
