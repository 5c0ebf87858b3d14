"""Commands that look at what runs left: a summary, checks, what differs between two runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Literal

import click

from everytoken.cli.project import project


@click.command()
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def summary(env: str | None) -> None:
    """Print documents, tokens and digests at each stage, and where to look next. All numbers come from the ledgers."""
    from kedro.framework.project import pipelines

    from everytoken.summary import summary_lines

    with project(env) as (_, catalog):
        click.echo("\n".join(summary_lines(catalog, pipelines, "" if env is None else f" --env {env}")))


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option("--full", is_flag=True, help="Read every byte: all windows, and the SHA-256 of all files.")
def verify(paths: tuple[Path, ...], env: str | None, full: bool) -> None:
    """Check that streams, raw shards, tokenizers and stores of tokens are what was written.

    PATHS are their folders, folders that hold such folders, or prefixes of .bin and .idx; without any, what the
    environment has of tokenization, canary and packing. One line a check; the exit code is 1 when one does not hold.
    """
    from everytoken.tokens.errors import StreamError
    from everytoken.tokens.integrity import LEDGER_FILE, find_stored, stored_bytes, tokenizers_of
    from everytoken.tokens.integrity import verify as checks_of

    if paths and env is not None:
        raise click.UsageError("--env chooses what is checked when no PATH is given: give one of them")
    targets = [(str(path), path) for path in paths] or _stored_by_environment(env)
    begun, size, failed = time.monotonic(), 0, 0
    stored: dict[Path, str] = {}
    for name, path in targets:
        try:
            stored |= {one: name if one == path else str(one) for one in find_stored(path)}
        except StreamError as error:
            click.echo(f"FAIL  {error}" if paths else f"--    {name}  not made")
            failed += bool(paths)
    tokenizers = tokenizers_of(list(stored))
    for path, name in stored.items():
        level: Literal["sampled", "full"] = "full" if full else "sampled"
        for check in checks_of(path, level, tokenizers.get(path), with_ledger=not paths):
            click.echo(f"{'ok  ' if check.ok else 'FAIL'}  {name}  {check.name}: {check.text}")
            failed += not check.ok
        if not (path if path.is_dir() else path.parent).joinpath(LEDGER_FILE).exists() and paths:
            click.echo(f"--    {name}  has no {LEDGER_FILE}: nothing says which digests its files should have")
        size += stored_bytes(path)
    if not stored and not failed:
        raise click.ClickException("there is nothing to verify: run the pipelines that make it (kedro run)")
    if full:
        seconds = time.monotonic() - begun
        click.echo(f"read {size:,} bytes in {seconds:.2f} s ({size / seconds / 1e9:.2f} GB/s)")
    else:
        click.echo("sizes and samples only; --full reads every byte")
    if failed:
        sys.exit(1)


@click.command()
@click.argument("first", default="last~1")
@click.argument("second", default="last")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`: which MLflow store.")
def compare(first: str, second: str, env: str | None) -> None:
    """Print what differs between two MLflow runs: seeds, parameters, contents of datasets, metrics, versions.

    FIRST and SECOND are run ids or their beginnings, `last`, or `last~N`; without them, the last two runs.
    """
    from everytoken.tracking.compare import compare_lines
    from everytoken.tracking.errors import TrackingError
    from everytoken.tracking.hook import tracking_settings

    with project(env) as (context, _):
        try:
            click.echo("\n".join(compare_lines(context.project_path, tracking_settings(context), first, second)))
        except TrackingError as error:
            raise click.ClickException(str(error)) from error


def _stored_by_environment(env: str | None) -> list[tuple[str, Path]]:
    """Return name and folder of every dataset with a ledger that tokenization, canary and packing make."""
    from kedro.framework.project import pipelines

    with project(env) as (context, catalog):
        nodes = [node for name in ("tokenization", "canary", "packing") for node in pipelines[name].nodes]
        names = [name for node in nodes for name in node.outputs if hasattr(catalog.get(name), "ledger_summary")]
        return [(name, Path(context.config_loader["catalog"][name]["filepath"])) for name in names]
