"""The command ``everytoken`` (and the project commands of ``kedro``): what Kedro itself does not give."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import click


@click.group()
def cli() -> None:
    """Language-model training data, exact to the token."""


@cli.command()
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def summary(env: str | None) -> None:
    """Print documents, tokens and digests at each stage, and where to look next. All numbers come from the ledgers."""
    from kedro.framework.project import pipelines

    from everytoken.summary import summary_lines

    with _project(env) as (_, catalog):
        click.echo("\n".join(summary_lines(catalog, pipelines, "" if env is None else f" --env {env}")))


@cli.command("audit-scores")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option("--per-class", type=click.IntRange(1), help="Documents of each class; else annotation.audit.per_class.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the draw; else annotation.audit.seed.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the audit; else 08_reporting/score_audit in the folder of the environment's data.",
)
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The labels that the page saved: report on them instead of drawing.",
)
def audit_scores(
    env: str | None, per_class: int | None, seed: int | None, out: Path | None, labels: Path | None
) -> None:
    """Draw scored documents of every class to label without seeing the score; with --labels, say how right scores are.

    Open label.html of the folder in a browser, label, save labels.jsonl, and give it to --labels.
    """
    from kedro.io.core import DatasetError

    from everytoken.corpus.errors import CorpusError
    from everytoken.corpus.scoring.audit import PAGE_FILE, AuditParameters, audit_lines, draw_audit, write_audit
    from everytoken.corpus.scoring.audit_report import REPORT_FILE, report_labels, report_lines
    from everytoken.shards import ShardsError
    from everytoken.summary import reason_of

    if labels is not None and (per_class is not None or seed is not None):
        raise click.UsageError("--labels reports on an audit that is drawn already: --seed and --per-class do nothing")
    out, labels = (None if path is None else path.resolve() for path in (out, labels))  # of the folder one is in
    with _project(env) as (context, catalog):
        folder = out or (Path(context.config_loader["globals"]["data"]) / "08_reporting" / "score_audit").resolve()
        try:
            if labels is not None:
                report = report_labels(folder, labels)
                threshold = context.params["subsampling"].annotation_threshold
                click.echo("\n".join([*report_lines(report, threshold), "", f"The same in {folder / REPORT_FILE}"]))
                return
            given = {name: value for name, value in (("seed", seed), ("per_class", per_class)) if value is not None}
            parameters = AuditParameters.model_validate({**context.params["annotation"].audit.model_dump(), **given})
            drawn = write_audit(draw_audit(catalog.load("scored_documents"), parameters), folder)
        except DatasetError as error:
            raise click.ClickException(reason_of(error)) from error
        except (CorpusError, ShardsError) as error:
            raise click.ClickException(str(error)) from error
        options = ("" if env is None else f" --env {env}") + ("" if out is None else f" --out {out}")
        click.echo("\n".join(audit_lines(drawn)))
        click.echo(f"\nlabel in a browser: {folder / PAGE_FILE}")
        click.echo(f"then: everytoken audit-scores{options} --labels labels.jsonl")


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of documents.bin and .idx."
)
@click.option(
    "--tokenizer",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tokenizer.json.",
)
@click.option("--eos", required=True, help="The token that ends each document, as <|endoftext|>.")
@click.option("--workers", type=click.IntRange(1), help="Processes that encode.  [default: one a core]")
@click.option("--text-field", default="text", show_default=True, help="Field of each line's object.")
@click.option(
    "--special-tokens-in-text",
    type=click.Choice(["literal", "control", "error"]),
    default="literal",
    show_default=True,
    help="A special token that a text spells stays plain text, becomes the token, or is an error.",
)
@click.option("--max-tokens", default="none", show_default=True, help="Cap of a document, EOS included, or none.")
@click.option("--max-lossy-share", type=click.FloatRange(0, 1), default=0.0, show_default=True)
@click.option("--engine", default="fastest", show_default=True, help="fastest, tokenizers or another installed one.")
@click.option("--certificate", type=click.Path(file_okay=False, path_type=Path), help="Default: OUT.certificate.")
@click.option("--cases", type=click.IntRange(1), default=100_000, show_default=True, help="Texts of the certificate.")
@click.option(
    "--recheck-share",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Share of the documents that the reference encodes again.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of certificate and recheck.")
@click.option("--max-line-bytes", type=click.IntRange(1), default=1 << 29, show_default=True)
@click.option(
    "--keep-parts", is_flag=True, help="Keep each file's tokens in OUT.parts: more files need only themselves."
)
def tokenize(files: tuple[Path, ...], **options: Any) -> None:
    """Write the documents of .jsonl, .jsonl.gz or .jsonl.zst FILES as one Megatron stream; no project is needed.

    One document a line, one sequence a document: its tokens and EOS, in the order of the files' names. The same bytes
    for any number of workers and any engine; an interrupted run goes on where it stopped.
    """
    from everytoken.preprocessing import command

    try:
        click.echo("\n".join(command.run(files, **options)))
    except command.ERRORS as error:
        raise click.ClickException(str(error)) from error


@cli.command()
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


@cli.command()
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

    with _project(env) as (context, _):
        try:
            click.echo("\n".join(compare_lines(context.project_path, tracking_settings(context), first, second)))
        except TrackingError as error:
            raise click.ClickException(str(error)) from error


def _stored_by_environment(env: str | None) -> list[tuple[str, Path]]:
    """Return name and folder of every dataset with a ledger that tokenization, canary and packing make."""
    from kedro.framework.project import pipelines

    with _project(env) as (context, catalog):
        nodes = [node for name in ("tokenization", "canary", "packing") for node in pipelines[name].nodes]
        names = [name for node in nodes for name in node.outputs if hasattr(catalog.get(name), "ledger_summary")]
        return [(name, Path(context.config_loader["catalog"][name]["filepath"])) for name in names]


@contextmanager
def _project(env: str | None) -> Iterator[tuple[Any, Any]]:
    """Give context and catalog of the project, in its folder: the paths of the catalog are relative to it."""
    from kedro.config import MissingConfigException
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project
    from kedro.validation.exceptions import ParameterValidationError

    project = _project_folder()
    os.chdir(project)
    bootstrap_project(project)
    with KedroSession.create(project_path=project, env=env) as session:
        try:
            context = cast(KedroSession, session).load_context()
            catalog = context.catalog
        except MissingConfigException as error:
            raise click.ClickException(f"there is no environment {env!r} in {project / 'conf'}: {error}") from error
        except (ValueError, ParameterValidationError) as error:
            raise click.ClickException(str(error)) from error
        yield context, catalog


def _project_folder() -> Path:
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "pyproject.toml").exists() and (folder / "conf").is_dir():
            return folder
    raise click.ClickException(
        f"{Path.cwd()} is in no Kedro project; run this inside the project's folder (verify also takes paths)"
    )
