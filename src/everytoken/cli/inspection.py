"""Commands that look at what runs left: a summary, checks, what differs between two runs or two builds."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.differences import comparison_lines, difference_lines
from everytoken.cli.project import named_values, project
from everytoken.measurements import rate
from everytoken.redaction import is_url

if TYPE_CHECKING:
    from everytoken.checks import Check

_MADE_AGAIN = "run the same pipelines again (kedro run{}): what is damaged is made again, all else is kept"
_NOT_REPLIES = "; but not the replies of a generator: their lines say what to do"
_MARKS = {"passed": "ok  ", "failed": "FAIL", "not made": "--  "}


@click.command()
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def summary(env: str | None) -> None:
    """Print documents, tokens and digests at each stage, and where to look next. All numbers come from the ledgers.

    Example:
      everytoken summary --env test
    """
    from kedro.framework.project import pipelines

    from everytoken.cli.summary import stages_left, summary_lines

    with project(env) as (_, catalog):
        click.echo("\n".join(summary_lines(stages_left(catalog, pipelines), "" if env is None else f" --env {env}")))


@click.command("verify")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option("--full", is_flag=True, help="Read every byte: all windows, and the SHA-256 of all files.")
@click.option(
    "--documents",
    "--windows",
    "count",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Documents and windows of a release that are checked.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of their draw from a release."
)
@click.option("--upstream", is_flag=True, help="Read documents of a release again from upstream, and encode them.")
@click.option(
    "--against",
    metavar="PUBLISHED",
    help="Compare the streams in PATHS with what is published of them, without tokens: indexes, lengths, SHA-256. "
    "A folder, or ORGANISATION/NAME@COMMIT of the hub.",
)
@click.option(
    "--files",
    type=click.Path(path_type=Path),
    default=Path("data/01_raw"),
    show_default=True,
    help="Folder for files that --upstream and --against fetch.",
)
@click.option(
    "--root",
    "roots",
    multiple=True,
    metavar="SOURCE=PLACE",
    help="Folder or URL of a source for --upstream, where the release names none, or one that is not public.",
)
def verify_command(
    paths: tuple[Path, ...],
    env: str | None,
    full: bool,
    count: int,
    seed: int,
    upstream: bool,
    against: str | None,
    files: Path,
    roots: tuple[str, ...],
) -> None:
    """Check that documents, streams, indexes, raw shards, tokenizers and models are what was written.

    PATHS are their folders, folders that hold such folders, or prefixes of .bin and .idx; without any, what the
    environment has made. With --full indexes and reflected streams are made again and compared. Each check is
    a line, and the exit code is 1 when one does not hold.

    Where the first path is a release, it is checked itself, and the streams in the other paths against it. With
    --against the streams in all paths are compared with published files; the first document that differs is named.

    Example:
      everytoken verify --full
      everytoken verify data/08_reporting/release data/replay --full
    """
    from everytoken.provenance.verification import is_meant_as_release

    if paths and env is not None:
        raise click.UsageError("--env chooses what is checked when no PATH is given: give one of them")
    if against is not None:
        if not paths or upstream:
            raise click.UsageError("--against compares the streams in PATHS with PUBLISHED, without --upstream")
        _verify_published(list(paths), against, files, full)
        return
    if paths and is_meant_as_release(paths[0]):
        given = {"upstream": files if upstream else None, "roots": named_values(roots, "--root", "SOURCE=PLACE")}
        _verify_release(paths[0], list(paths[1:]), full=full, documents=count, seed=seed, **given)
        return
    if upstream:
        raise click.UsageError("--upstream is for a release: give its folder as the first path")
    _verify_stored(paths, env, full)


def _verify_release(release: Path, paths: list[Path], **how: Any) -> None:
    from everytoken.checks import Check
    from everytoken.provenance.releases import open_release
    from everytoken.provenance.verification import each_release_check, find_streams

    printed = _Printed(columns=120)
    streams, faults = find_streams(release, paths) if paths else ({}, [])
    printed.add(Check("", "failed", fault) for fault in faults)
    printed.add(each_release_check(release, streams, **how))
    for name in sorted(open_release(release).streams.keys() - streams) if streams else []:
        click.echo(f"--    {name}: not compared, as none of the paths holds this stream")
    read = (file for path in (release, *streams.values()) for file in path.rglob("*") if file.is_file())
    size = sum(file.stat().st_size for file in read) if how["full"] else None
    printed.end(size, f"sizes and a sample of seed {how['seed']} only")


def _verify_published(paths: list[Path], against: str, fetched: Path, full: bool) -> None:
    from everytoken.checks import Check
    from everytoken.corpus import CorpusError
    from everytoken.provenance import ProvenanceError
    from everytoken.provenance.verification import PublishedStreams, published_checks

    try:
        published = PublishedStreams(against, fetched)
    except (ProvenanceError, CorpusError) as error:
        raise click.ClickException(str(error)) from error
    streams, faults = published.find(paths)
    printed = _Printed(columns=120)
    printed.add(Check("", "failed", fault) for fault in faults)
    printed.add(published_checks(published, streams, full=full))
    for name in sorted(published.indexes.keys() - streams) if streams else []:
        click.echo(f"--    {name}: not compared, as none of the paths holds this stream")
    read = [path for folder in streams.values() for path in folder.iterdir() if path.suffix in (".bin", ".idx", ".npy")]
    printed.end(sum(path.stat().st_size for path in read) if full else None, "indexes and lengths only")


def _verify_stored(paths: tuple[Path, ...], env: str | None, full: bool) -> None:
    from everytoken.checks import Check
    from everytoken.provenance.verification import index_checks, is_index, is_reflected, splice_checks, stored_around
    from everytoken.reflections.ranks import find_run_folders, run_folder_checks
    from everytoken.shards import LEDGER_FILE
    from everytoken.tokens import StreamError
    from everytoken.tokens.checks import Level, find_stored, stored_bytes, tokenizers_of, verify
    from everytoken.training.checkpoints import find_step_folders, step_checks

    printed, stored, kept, runs = _Printed(), dict[Path, str](), list[Path](), dict[Path, str]()
    targets = [(str(path), path) for path in paths] or _stored_by_environment(env, printed)
    for name, path in targets:
        steps, asked = find_step_folders(path), find_run_folders(path)
        kept += steps
        runs |= {one: name if one == path else str(one) for one in asked}
        try:
            stored |= {one: name if one == path else str(one) for one in find_stored(path)}
        except StreamError as error:
            if not steps and not asked:
                printed.add([Check("", "failed", str(error))])
    tokenizers = tokenizers_of(list(stored))
    level: Level = "full" if full else "sampled"
    around: dict[Path, dict[str, Path]] = {}  # several lie in one data folder
    for path, name in stored.items():
        printed.add(verify(path, level, tokenizers.get(path), with_ledger=not paths, covers=name))
        if is_index(path) or is_reflected(path):
            data = path.resolve().parents[1]
            if full and data not in around:
                around[data] = stored_around(path)
            checks = index_checks if is_index(path) else splice_checks
            printed.add(checks(path, level, around.get(data, {}), covers=name))
        if not (path if path.is_dir() else path.parent).joinpath(LEDGER_FILE).exists() and paths:
            click.echo(f"--    {name}  has no {LEDGER_FILE}: nothing says which digests its files should have")
    for path in kept:
        printed.add(step_checks(path, full=full, covers=str(path)))
    for path, name in runs.items():
        printed.add(run_folder_checks(path, full=full, covers=name), made_again=False)
    if not printed.made:
        raise click.ClickException("there is nothing to verify: run the pipelines that make it (kedro run)")
    size = sum(map(stored_bytes, [*stored, *kept, *runs])) if full else None
    options = "" if env is None else f" --env {env}"
    printed.end(size, "sizes and samples only", None if paths else _MADE_AGAIN.format(options))


class _Printed:
    """Prints checks as they come, and the verdict; faults are wrapped at ``columns``, or one line each."""

    def __init__(self, columns: int | None = None) -> None:
        self._columns, self._begun, self._outcomes = columns, time.monotonic(), Counter[str]()
        self._made_again = 0  # faults of what a run makes again

    @property
    def made(self) -> int:
        """How many checks were made."""
        return self._outcomes["passed"] + self._outcomes["failed"]

    def add(self, checks: Iterable[Check], *, made_again: bool = True) -> None:
        """Print and count; ``made_again``: whether a run makes again what is damaged."""
        for check in checks:
            said = "  ".join(filter(None, [check.covers, ": ".join(filter(None, [check.name, check.text]))]))
            if check.ok or self._columns is None:
                click.echo(f"{_MARKS[check.outcome]}  {' '.join(said.splitlines())}")
            else:
                click.echo("\n".join(_wrapped(said, self._columns)))
            self._outcomes[check.outcome] += 1
            self._made_again += made_again and check.outcome == "failed"

    def end(self, size: int | None, sampled: str, remedy: str | None = None) -> None:
        """Print the verdict, and the remedy when a check does not hold; then exit with 1."""
        seconds, failed, not_made = time.monotonic() - self._begun, self._outcomes["failed"], self._outcomes["not made"]
        if size is None:
            click.echo(f"{sampled}; --full reads every byte")
        else:
            speed = rate(size / 1e9, seconds)
            said = "" if speed is None else f" ({speed:.2f} GB/s)"
            click.echo(f"read {size:,} bytes in {seconds:.2f} s{said}")
        without = f"; {not_made:,} could not be made" if not_made else ""
        if failed:
            click.echo(f"{failed:,} of {self.made:,} checks {'does' if failed == 1 else 'do'} not hold{without}")
            if remedy is not None and self._made_again:
                click.echo(remedy + ("" if self._made_again == failed else _NOT_REPLIES))
            sys.exit(1)
        click.echo(f"all {self.made:,} checks hold{without}")


def _wrapped(fault: str, columns: int) -> Iterator[str]:
    """Yield the lines of a fault, those after its first line indented."""
    for number, line in enumerate(fault.split("\n")):
        indent = " " * (6 + len(line) - len(line.lstrip()))
        first, then = (indent, f"{indent}  ") if number else ("FAIL  ", indent)
        wrapper = textwrap.TextWrapper(columns, first, then, break_long_words=False, break_on_hyphens=False)
        yield from wrapper.wrap(line.strip())


@click.command()
@click.argument("first", required=False)
@click.argument("second", default="last")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`: which MLflow store.")
@click.option("--all", "show_all", is_flag=True, help="Name also what only one of the two has.")
def compare(first: str | None, second: str, env: str | None, show_all: bool) -> None:
    """Print what differs between two MLflow runs: seeds, parameters, contents of datasets, metrics, versions.

    FIRST and SECOND are run ids or their beginnings, `last`, or `last~N`; without them, the last run and the one before
    it that ran the same pipelines. What only one of them has is a count, unless --all.

    Example:
      everytoken compare
      everytoken compare last~2 last
    """
    from everytoken.tracking import compare_runs, tracking_settings

    with project(env) as (context, _):
        compared = compare_runs(context.project_path, tracking_settings(context), first, second)
        click.echo("\n".join(comparison_lines(compared, show_all=show_all)))


@click.command()
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Most documents that are printed of each kind of difference.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=1 << 26),
    default=1 << 30,
    show_default=True,
    help="Bytes for the join of documents; the rest is in the system's temporary folder.",
)
@click.option("--all", "show_all", is_flag=True, help="Name parameters and stages that only one of the two has.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all of it.")
def diff(a: Path, b: Path, limit: int, memory: int, show_all: bool, as_json: bool) -> None:
    """Print what differs between two builds: parameters, the first stage of another content, documents.

    A and B are data folders of environments (data, data/test), or folders of releases. The exit code is 0
    when all stages that both have are equal. It is 0 too when all streams are, and no document differs in address, id,
    text, score, split, order or tokens. Else it is 1, and 2 when the builds cannot be compared.

    Example:
      everytoken diff data data/replay
    """
    from everytoken.provenance import ProvenanceError
    from everytoken.provenance.diff import diff_builds
    from everytoken.shards import ShardsError

    try:
        found = diff_builds(a, b, stages=_stages_in_order(), limit=limit, memory=memory)
    except (ProvenanceError, ShardsError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(found.plain(), ensure_ascii=False, indent=1))
    else:
        click.echo("\n".join(difference_lines(found.plain(), show_all=show_all)))
    if not found.is_same:
        sys.exit(1)


def _stages_in_order() -> list[str]:
    """Return the datasets that the pipelines make, in the order in which data flows."""
    from kedro.pipeline import Pipeline

    from everytoken import pipelines
    from everytoken.pipeline_registry import JOBS

    # what these make is made by the steps of `corpus` too, or by a generator
    apart = {"splitting", "published_reflections", *JOBS} - {"pretraining"}
    names = [module.name for module in pkgutil.iter_modules(pipelines.__path__) if module.name not in apart]
    made = [importlib.import_module(f"everytoken.pipelines.{name}").create_pipeline() for name in names]
    return [output for node in sum(made, Pipeline([])).nodes for output in node.outputs]


def _stored_by_environment(env: str | None, printed: _Printed) -> list[tuple[str, Path]]:
    """Return name and folder of every store and artifact but the release and what a replay makes.

    Single files, which have no ledger, are checked here.
    """
    from kedro.framework.project import pipelines
    from kedro.io.core import DatasetError

    from everytoken.checks import READ_FAULTS, run_checks
    from everytoken.datasets import DatasetPaths, JsonFile
    from everytoken.tokens.streams import WHEN_MADE
    from everytoken.training.checkpoints import find_step_folders

    found = []
    with project(env) as (context, catalog):
        left_out = ("__default__", "corpus", "release", "replay")
        nodes = [node for name in pipelines if name not in left_out for node in pipelines[name].nodes]
        outputs = dict.fromkeys(output for node in nodes for output in node.outputs if not output.endswith(WHEN_MADE))
        paths = DatasetPaths(context.config_loader["catalog"])
        for name, dataset in ((name, catalog.get(name)) for name in outputs):
            if isinstance(dataset, JsonFile) and dataset.exists():
                printed.add(run_checks((("file", _check_json),), dataset, (DatasetError, *READ_FAULTS), covers=name))
            if not hasattr(dataset, "ledger_summary"):
                continue
            if is_url(place := str(dataset._describe()["filepath"])):
                found += _fetched(name, place, dataset)
            elif not _is_made(paths[name]):
                click.echo(f"--    {name}  not made")
            elif paths[name].is_dir():
                found.append((name, paths[name]))
            else:
                printed.add(run_checks((("list", _check_list),), dataset, (DatasetError, *READ_FAULTS), covers=name))
        trained = [one.checkpoints for one in context.params.values() if hasattr(one, "checkpoints")]
        folders = {str(checkpoints.folder) for checkpoints in trained if checkpoints is not None}
        found += [(folder, Path(folder)) for folder in sorted(folders) if find_step_folders(Path(folder))]
    return found


_held: list[Any] = []  # artifacts behind URLs, whose local copies stay while this process reads them


def _fetched(name: str, place: str, dataset: Any) -> list[tuple[str, Path]]:
    """Return name and folder of the local copies of a dataset behind a URL; nothing where there are none."""
    from everytoken.datasets import ArtifactFolder

    if not isinstance(dataset, ArtifactFolder):
        click.echo(f"--    {name}  is at {place}: its parts are verified when they are read")
        return []
    if not dataset.exists():
        click.echo(f"--    {name}  not made")
        return []
    _held.append(artifact := dataset.load())
    assert artifact.folder is not None
    return [(name, artifact.folder)]


def _is_made(path: Path) -> bool:
    """Return whether a file exists, or a folder with more than hidden files (``.making``: parts of a store)."""
    return path.is_file() or (
        path.is_dir() and any(one.name == ".making" or not one.name.startswith(".") for one in path.iterdir())
    )


def _check_json(dataset: Any) -> str:
    dataset.load()
    return "can be read"


def _check_list(dataset: Any) -> dict[str, int]:
    files = dataset.load()
    return {"files": sum(map(len, files.values())), "sources": len(files)}
