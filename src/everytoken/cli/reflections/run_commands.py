"""The commands ``everytoken reflections ...``: texts that a generator writes about the annotated documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.listing import ListedCommands
from everytoken.cli.reflections.run_project import (
    ENV_OPTION,
    PARAMS_OPTION,
    RUN_OPTION,
    RanksProject,
    RunProject,
    annotated_dataset,
    opened_run,
    with_options,
)

if TYPE_CHECKING:
    from everytoken.reflections.ranks import Forecast, RankFolder, RunProgress

RANKS_OPTION = click.option("--ranks", "ranks", default=None, help="Only these ranks: 7, 0-3, or 0-3,7.")
WAIT_OPTION = click.option("--wait", is_flag=True, help="Wait until the ranks have ended; Ctrl-C cancels them.")


@click.group("reflections", cls=ListedCommands)
def reflections() -> None:
    """Generate texts about annotated documents, merge them and export them.

    Example:
      everytoken reflections plan --env spp_small
      everytoken reflections submit --env spp_small --wait
    """


@reflections.command("plan")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Measured documents per second of a rank.")
@click.option(
    "--reply-tokens", type=click.IntRange(min=1), help="Measured tokens that a reply takes, thinking included."
)
def plan_command(
    name: str, env: str | None, params: dict[str, Any], rate: float | None, reply_tokens: int | None
) -> None:
    """Show what a run will take, before anything is asked.

    Example:
      everytoken reflections plan --rate 1.5 --reply-tokens 400
    """
    from everytoken.reflections.ranks import forecast

    with opened_run(name, env, params) as opened:
        if not opened.catalog.exists(annotated_dataset()):
            click.echo("\n".join(_without_stream(opened)))
            return
        lines = _forecast_lines(forecast(opened.plan()), rate, reply_tokens, _max_tokens(opened))
        click.echo(with_options("\n".join(lines), name, env))


def _without_stream(opened: RunProject) -> Iterator[str]:
    given = opened.context.params["reflection"]
    if given.rows is None:
        raise click.ClickException(
            "the annotated stream is not made, and reflection.rows is null: nobody knows how many rows there are. Make "
            "the stream (kedro run --pipelines tokenization), or give reflection.rows"
        )
    first, end = given.rows
    yield f"run          {opened.name}"
    yield f"rows         [{first:,}, {end:,})"
    yield f"ranks        {-(-(end - first) // given.rows_per_task):,} of {given.rows_per_task:,} rows"
    yield "the annotated stream is not made: requests, tokens and canaries are not known"


def _max_tokens(opened: RunProject) -> int | None:
    """Return how many tokens a reply may have; None where the context decides."""
    most = opened.context.params["reflection"].generator.chosen_sampling.max_tokens
    return most if isinstance(most, int) else None


def _forecast_lines(
    found: Forecast, rate: float | None, reply_tokens: int | None, max_tokens: int | None
) -> Iterator[str]:
    from everytoken.reflections.ranks import PUBLISHED_GPU_HOURS, PUBLISHED_ROWS, PUBLISHED_TOKENS_OF_A_REPLY

    first, end = found.rows
    yield f"run          {found.run}"
    yield f"rows         [{first:,}, {end:,})"
    yield f"ranks        {found.ranks:,}"
    yield f"requests     {found.requests:,}, if each reply is accepted at once"
    yield f"tokens in    about {found.input_tokens:,}, from {found.sampled:,} rows"
    tokens, origin = PUBLISHED_TOKENS_OF_A_REPLY, "as published; give a measured number (--reply-tokens)"
    if reply_tokens is not None:
        tokens, origin = reply_tokens, "as measured"
    elif max_tokens is not None and max_tokens < tokens:
        tokens, origin = max_tokens, "at most (max_tokens); give a measured number (--reply-tokens)"
    yield f"tokens out   about {tokens * found.requests:,}: {tokens:,} a reply, {origin}"
    if rate is None:
        yield "hours        not known: give a measured rate (--rate), as `everytoken reflections status` shows it"
    else:
        hours = found.requests / rate / 3600
        a_rank = hours / max(1, found.ranks)
        yield f"hours        {hours:,.1f} of one rank at {rate:g} documents/s, {a_rank:,.2f} a rank"
    yield f"published    {PUBLISHED_GPU_HOURS:,} GPU-hours for {PUBLISHED_ROWS:,} rows"
    counted = "" if found.canaries_counted else "about "
    yield f"canaries     {counted}{found.canaries:,} documents; canaries: drop would mask as many windows"


@reflections.command("submit")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
@RANKS_OPTION
@WAIT_OPTION
def submit_command(name: str, env: str | None, params: dict[str, Any], ranks: str | None, wait: bool) -> None:
    """Start a process for each rank that is not complete; they run after this command has ended.

    Example:
      everytoken reflections submit --ranks 0-3 --wait
    """
    from everytoken.reflections.ranks import submit

    with opened_run(name, env, params) as opened:
        start_ranks(submit, opened, ranks, wait)


@reflections.command("rerun")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
@RANKS_OPTION
@WAIT_OPTION
def rerun_command(name: str, env: str | None, params: dict[str, Any], ranks: str | None, wait: bool) -> None:
    """Submit the ranks that are not complete, and those with failures; only what is missing is asked.

    Example:
      everytoken reflections rerun --wait
    """
    from everytoken.reflections.ranks import rerun

    with opened_run(name, env, params) as opened:
        start_ranks(rerun, opened, ranks, wait)


def start_ranks(verb: Callable[..., list[RankFolder]], opened: RanksProject, ranks: str | None, wait: bool) -> None:
    """Submit ranks, all or those that ``0-3,7`` names, and say what became of them."""
    started = verb(opened.plan(), opened.root, at_once=opened.at_once, numbers=chosen_ranks(ranks), wait=wait)
    if not started:
        click.echo("nothing to do: all ranks are complete")
    elif wait:
        click.echo("\n".join(progress_lines(_progress(opened))))
    else:
        click.echo(f"{len(started):,} ranks started in {opened.root}, {opened.at_once} at a time")


@reflections.command("status")
@RUN_OPTION
@ENV_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def status_command(name: str, env: str | None, as_json: bool) -> None:
    """Show how far the ranks of a run are.

    Example:
      everytoken reflections status
    """
    with opened_run(name, env) as opened:
        found = _progress(opened)
        click.echo(json.dumps(found.to_json(), indent=1) if as_json else "\n".join(progress_lines(found)))


def _progress(opened: RanksProject) -> RunProgress:
    from everytoken.reflections.ranks import progress_of

    return progress_of(opened.root)


def progress_lines(found: RunProgress) -> Iterator[str]:
    """Yield what `status` prints of a run."""
    from everytoken.reflections.sft import SFT_RUN

    told = found.to_json()
    yield f"{told['run']} in {told['folder']}"
    yield f"ranks        {_listed(told['states'])}"
    yield f"rows         {told['done']:,} of {told['rows']:,}: {_listed(told['statuses'])}"
    yield f"failed       {_listed(told['failed'])}"
    tokens, asked = told["tokens"], max(1, sum(told["statuses"].get(name, 0) for name in ("ok", "empty", "skipped")))
    generated, stored = tokens["generated_tokens"] / asked, tokens["stored_tokens"] / asked
    is_sft = told["run"] == SFT_RUN.name
    if is_sft:
        yield f"tokens       {tokens['output_tokens'] / asked:,.0f} a prompt, as the generator counts them"
    else:
        yield f"tokens       {generated:,.0f} generated and {stored:,.0f} stored a document (published: 4,400 and 101)"
    if (requests := told["requests"]) is not None:
        yield (
            f"asked        {requests['questions']:,} questions by the last processes; replies refused: "
            f"{requests['refused_replies']:,}; tries failed: {_listed(requests['failed_tries'])}"
        )
    if (rate := told["documents_per_second"]) is not None:
        left = told["seconds_left"]
        until = "" if left is None else f"; {left / 3600:,.2f} hours left"
        unit = "prompts/s of a rank" if is_sft else "documents/s of a rank, as plan --rate takes it"
        yield f"rate         {rate:.4g} {unit}{until}"
    makers = {json.dumps(rank["generator"], sort_keys=True): rank["generator"] for rank in told["ranks"]}
    for maker in makers.values():
        if maker is not None:
            yield f"generator    {maker['model']}; server {maker.get('server')}, version {maker.get('version')}"
    for rank in told["ranks"]:
        if rank["error"] is not None:
            yield f"rank {rank['rank']}   ended early: {rank['error']}"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


@reflections.command("cancel")
@RUN_OPTION
@ENV_OPTION
@RANKS_OPTION
def cancel_command(name: str, env: str | None, ranks: str | None) -> None:
    """End the processes of ranks; what they have written stays.

    Example:
      everytoken reflections cancel --ranks 0-3,7
    """
    from everytoken.reflections.ranks import cancel

    with opened_run(name, env) as opened:
        count = len(cancel(opened.root, chosen_ranks(ranks)))
        told = f"{count:,} ranks cancelled; everytoken reflections submit resumes them"
        click.echo(with_options(told, name, env))


@reflections.command("merge")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
def merge_command(name: str, env: str | None, params: dict[str, Any]) -> None:
    """Turn the results of a run into a dataset of columns.

    Example:
      everytoken reflections merge
    """
    from everytoken.reflections.merging import MergedStatistics

    with opened_run(name, env, params) as opened:
        columns = opened.merge()
        counted: Sequence[MergedStatistics] = columns.statistics_as(MergedStatistics)
        sums = {key: sum(one[key] for one in counted) for key in ("with_point", "usable", "with_1p")}
        click.echo(
            f"{columns.rows:,} rows: {sums['with_point']:,} with a point, {sums['usable']:,} usable, "
            f"{sums['with_1p']:,} with a text in the first person"
        )


@reflections.command("export")
@click.option("--sidecar", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to write.")
@click.option(
    "--run",
    "names",
    multiple=True,
    default=("reflections",),
    show_default=True,
    help="Name of a generation run; repeat it for several.",
)
@ENV_OPTION
def export_command(sidecar: Path, names: tuple[str, ...], env: str | None) -> None:
    """Write the columns of runs into a sidecar in the published form.

    A file that exists keeps its other columns. Without it the sidecar of the annotated stream is extended.

    Example:
      everytoken reflections export --sidecar sidecar.parquet
    """
    from everytoken.reflections import find_generation_run
    from everytoken.reflections.merging import export_sidecar
    from everytoken.tokens.streams import SIDECAR_FILE

    target = sidecar.absolute()
    with opened_run(names[0], env) as opened:
        catalog = opened.catalog
        base = target if target.exists() else catalog.load(annotated_dataset()).path(SIDECAR_FILE)
        columns = {name: (find_generation_run(name)[0], catalog.load(f"{name}_columns")) for name in names}
        rows = export_sidecar(base, columns, target)
        click.echo(f"{target}: {rows:,} rows with the columns of {', '.join(names)}")


def chosen_ranks(ranks: str | None) -> set[int] | None:
    """Return the ranks that ``0-3,7`` names."""
    if ranks is None:
        return None
    found: set[int] = set()
    for piece in ranks.split(","):
        first, _, last = piece.partition("-")
        try:
            found |= set(range(int(first), int(last or first) + 1))
        except ValueError:
            raise click.BadParameter(f"{ranks!r}: expected numbers such as 0-3,7", param_hint="--ranks") from None
    return found
