"""The command `everytoken report`: what a run left, on one page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.project import project

if TYPE_CHECKING:
    from everytoken.cli.report.left import RunLeft

_FOLDER = "08_reporting"


@click.command("report")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the files.  [default: 08_reporting of the environment's data]",
)
@click.option(
    "--mlflow/--no-mlflow",
    default=None,
    help="Add the files to the newest MLflow run that made something.  [default: when the store has such a run]",
)
def report_command(env: str | None, out: Path | None, mlflow: bool | None) -> None:
    """Write what a run left on one page, as report.html and report.md, and its beginning as card.md; print that.

    The card says data, model, bits per byte, time and digests. The report adds contract, stages, published figures,
    mixture, scores, cuts, curves, samples, costs of each stage and all digests. Nothing is calculated again, and what
    has not been made is said to be missing. The files name no folder and no machine.

    Example:
      kedro run --env test
      everytoken report --env test
    """
    from kedro.framework.project import pipelines

    from everytoken.cli.report.blocks import plain_lines
    from everytoken.cli.report.card import card_sections
    from everytoken.cli.report.left import run_left
    from everytoken.shards import write_text

    out = None if out is None else out.resolve()
    with project(env) as (context, catalog):
        left = run_left(context, catalog, pipelines)
        folder = out or Path(context.config_loader["globals"]["data"], _FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        texts = report_files(left)
        for name, text in texts.items():
            write_text(folder / name, text)
        lines = [line for section in card_sections(left) for line in (*plain_lines(section), "")]
        click.echo("\n".join(lines))
        click.echo(f"written to {os.path.relpath(folder)}: {', '.join(texts)}")
        click.echo("`everytoken summary` prints all stages, and where to look next")
        if mlflow is not False:
            _add_to_run(context, left.env, [folder / name for name in texts], is_asked=mlflow is True)


def report_files(left: RunLeft) -> dict[str, str]:
    """Return the text of each file of a report, by name."""
    from everytoken.cli.report.blocks import html_elements, markdown
    from everytoken.cli.report.card import model_card
    from everytoken.cli.report.sections import report_sections
    from everytoken.html_pages import element, static_page

    sections, title = report_sections(left), f"Report of {left.env}"
    head = element("h1", title)
    made = element("p", f"Written by everytoken {left.version} from ledgers and report files.")
    return {
        "report.html": static_page(__package__, "page.html", head, made, *html_elements(sections)),
        "report.md": f"# {title}\n\n{markdown(sections)}",
        "card.md": model_card(left),
    }


def _add_to_run(context: Any, env: str, files: list[Path], *, is_asked: bool) -> None:
    from everytoken.tracking import TrackingError, add_to_newest_run, tracking_settings

    try:
        run = add_to_newest_run(context.project_path, tracking_settings(context), env, files, "report")
    except TrackingError as error:
        if is_asked:
            raise
        click.echo(f"not added to an MLflow run: {error}", err=True)
        return
    if run is not None:
        click.echo(f"added to the MLflow run {run} as the folder report")
    elif is_asked:
        raise click.ClickException(f"MLflow has no finished run of the environment {env!r}: run it first, then report")
