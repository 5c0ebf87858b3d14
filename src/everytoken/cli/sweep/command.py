"""The command `everytoken sweep`: the job of an environment for each point of a grid of parameters."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.project import project, session_of

if TYPE_CHECKING:
    from everytoken.cli.sweep.grid import GridPoint
    from everytoken.cli.sweep.points import PointResult


@click.command("sweep")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`: its job is run.")
@click.option(
    "--grid",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file with a list of values for each parameter, by its dotted name.",
)
@click.option("--name", help="Name of the sweep and its folder.  [default: the name of the grid file]")
def sweep_command(env: str | None, grid: Path, name: str | None) -> None:
    r"""Run the job of an environment for each combination of values in a grid; write one table and one plot.

    Each point is a run with a data folder of its own and an MLflow run with its values. What the values do not change
    is made once and shared. The same command resumes a sweep that was stopped or killed, and makes only what is
    missing; a grid may also grow. The table, sweep.csv, and the plot, sweep.html, are in DATA/sweeps/NAME.

    Example:
      printf 'subsampling.seed: [42, 43]\ntraining.optimisation.seed: [1, 2]\n' > grid.yml
      everytoken sweep --env test --grid grid.yml
    """
    from everytoken.cli.sweep.grid import read_grid

    points, grid, name = read_grid(grid), grid.resolve(), name or grid.stem
    if Path(name).name != name or name.startswith("."):
        raise click.BadParameter(f"{name!r} is no name of a folder", param_hint="--name")
    plans = _plans(env, grid, points)
    data = plans.data / "sweeps" / name
    from everytoken.cli.report import plain_lines
    from everytoken.cli.sweep.table import sweep_page, table_csv, table_section
    from everytoken.shards import write_text

    results: list[tuple[GridPoint, PointResult]] = []
    for number, point in enumerate(points, start=1):
        told = ", ".join(f"{one}={value}" for one, value in point.shown.items())
        click.echo(f"point {number} of {len(points)}: {told}  ({point.name})")
        results.append((point, plans.result(point, data, name, [one for one, _ in results])))
    title = f"Sweep {name} of {env or 'local'}"
    write_text(data / "sweep.csv", table_csv(results))
    write_text(data / "sweep.html", sweep_page(results, title))
    click.echo("\n".join(plain_lines(table_section(results, title))))
    click.echo(f"written to {data}: sweep.csv, sweep.html")


class _Plans:
    """What the points of a sweep have in common, read once before the first of them runs."""

    def __init__(
        self, env: str | None, data: Path, stores: dict[str, Path], digests: dict[str, str], order: list[str]
    ) -> None:
        self.data, self._order = data, order
        self._env, self._stores, self._digests = env, stores, digests

    def result(self, point: GridPoint, sweep: Path, name: str, before: list[GridPoint]) -> PointResult:
        """Return what a point found: of its earlier run, or of one that runs now."""
        from everytoken.cli.sweep.points import begin, conclude, finished, nearest_point
        from everytoken.configuration import COSTS_FILE, ResultsPlace, read_costs, results_in

        folder, digest = sweep / point.name, self._digests[point.name]
        if (found := finished(folder, digest)) is not None:
            click.echo("  finished before")
            return found
        other = nearest_point(point, before, self._order)
        source = self.data if other is None else sweep / other.name
        begin(folder, source, self._stores)
        self._take_exclusions(folder)
        costs = read_costs(source / COSTS_FILE)
        place = ResultsPlace(str(folder), {"sweep": name, "sweep.point": point.name})
        with results_in(place), session_of(self._env, point.parameters()) as session:
            _run(session)
        return conclude(folder, digest, costs)

    def _take_exclusions(self, folder: Path) -> None:
        """Copy the lists of documents that were taken down: a point brings none of them back."""
        from everytoken.provenance.takedown import LISTS_FOLDER

        own = folder / LISTS_FOLDER
        if own.exists():
            shutil.rmtree(own)
        if (self.data / LISTS_FOLDER).exists():
            shutil.copytree(self.data / LISTS_FOLDER, own)


def _run(session: Any) -> None:
    from kedro.runner import SequentialRunner

    session.run(runner=SequentialRunner())


def _plans(env: str | None, file: Path, points: list[GridPoint]) -> _Plans:
    """Check the parameters of every point before the first one runs.

    Raises:
        ClickException: a name that nothing reads, a value that its parameter does not take, or a contradiction.
    """
    from kedro.framework.project import pipelines

    from everytoken import __version__
    from everytoken.cli.sweep.grid import require_known
    from everytoken.cli.sweep.points import parameters_digest
    from everytoken.configuration import groups_of, parameters_in_words, require_local, streams_of
    from everytoken.contract import contradictions

    with project(env) as (context, _):
        loader = context.config_loader
        require_local(loader["catalog"])
        data, known = Path(loader["globals"]["data"]), loader["parameters"]
        stores = _stores(pipelines["__default__"], loader["catalog"], data)
    digests = {}
    for point in points:
        require_known(file, point, known)
        with session_of(env, point.parameters()) as session:
            context = session.load_context()
            parameters = context.config_loader["parameters"]
            if told := parameters_in_words(parameters):
                raise click.ClickException(f"{file}: {told}")
            job, values = pipelines["__default__"], context.catalog
            _require_read(file, point, job)
            if found := list(contradictions(groups_of(job, values), streams_of(job))):
                raise click.ClickException(f"{file}: a run of {dict(point.shown)} would be refused: {found[0]}")
        digests[point.name] = parameters_digest(parameters, __version__)
    return _Plans(env, data, stores, digests, _in_order_of_stages(points, job))


def _stores(job: Any, catalog: Any, data: Path) -> dict[str, Path]:
    """Return where the datasets of a job are below the data folder, by name; also those that are not made yet."""
    from everytoken.datasets import DatasetPaths

    paths, found = DatasetPaths(catalog), {}
    for name in sorted(name for name in job.datasets() if name.isidentifier()):
        try:
            path = paths[name]
        except KeyError:  # only in memory
            continue
        if path.is_relative_to(data) and not path.suffix:
            found[name] = path.relative_to(data)
    return found


def _require_read(file: Path, point: GridPoint, job: Any) -> None:
    from everytoken.tracking import TrackingError, refuse_unread

    try:
        refuse_unread(point.parameters(), job)
    except TrackingError as error:
        raise click.ClickException(str(error).replace("--params sets", f"{file} sets", 1)) from error


def _in_order_of_stages(points: list[GridPoint], job: Any) -> list[str]:
    """Return the names of a grid, first those of parameters that the first stages of the job read."""
    read = [name.removeprefix("params:") for node in job.nodes for name in node.inputs if name.startswith("params:")]
    place = {group: number for number, group in reversed([*enumerate(read)])}
    return sorted(points[0].values, key=lambda name: place.get(name.partition(".")[0], len(read)))
