"""The commands ``everytoken prompts ...``: the prompt of a generation run, from its first version to a frozen one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.listing import ListedCommands
from everytoken.cli.reflections.run_project import (
    ENV_OPTION,
    PARAMS_OPTION,
    RUN_OPTION,
    RunProject,
    opened_run,
    with_options,
)

if TYPE_CHECKING:
    from everytoken.reflections.development import Candidate, Trial, VersionFigures

_FOLDER = "07_model_output/prompt_development"
_PAGES = "08_reporting"
_RECORDED = "recorded.json"


@click.group("prompts", cls=ListedCommands)
def prompts() -> None:
    """Develop the prompt of a generation run: write, improve, compare and freeze its versions.

    Example:
      everytoken prompts seed --run preflections
      everytoken prompts eval --version v1 --version v2
    """


@prompts.command("seed")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
def seed_command(name: str, env: str | None, params: dict[str, Any]) -> None:
    """Write the first version of a prompt, from a template, the constitution and the guidelines.

    Example:
      everytoken prompts seed --params reflection.generator.alias=smollm2-mine
    """
    from everytoken.reflections.development import seed_prompt

    with opened_run(name, env, params) as opened:
        path = seed_prompt(opened.plan())
        click.echo(with_options(f"{path} is written; try it: everytoken prompts eval", name, env))


@prompts.command("improve")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
@click.option("--version", help="Version that is improved, such as v1.  [default: the newest]")
def improve_command(name: str, env: str | None, params: dict[str, Any], version: str | None) -> None:
    """Let a judge score replies of a version, and ask it for the next version.

    The rows are none of those that versions are compared on. A version is improved once: its replies are stored.

    Example:
      everytoken prompts improve --version v1
    """
    from everytoken.reflections.development import figures_of, improve_prompt

    with opened_run(name, env, params) as opened:
        (candidate,) = _candidates(opened, [version] if version else _versions(opened)[-1:])
        found = improve_prompt(candidate)
        click.echo("\n".join(_figure_lines(figures_of(found.trial))))
        click.echo(f"shown        {found.rejected:,} rejected and {found.accepted:,} accepted replies")
        if found.path is None:
            (kind,) = found.asked.failed.values()
            raise click.ClickException(
                f"no reply was a prompt that can be used: {found.asked.attempts:,} attempts, the last one: {kind}. "
                f"They are in {candidate.folder / 'improvements' / candidate.name}. Raise "
                "reflection.development.judging_attempts, or choose another judge (reflection.development.judge)"
            )
        told = f"{found.path} is version {found.version}; compare it: everytoken prompts eval"
        click.echo(with_options(told, name, env))


@prompts.command("eval")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
@click.option(
    "--version", "versions", multiple=True, help="Version that is compared; repeat it for several.  [default: all]"
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def eval_command(name: str, env: str | None, params: dict[str, Any], versions: tuple[str, ...], as_json: bool) -> None:
    """Score versions of a prompt on one sample of rows, and show them side by side.

    Replies and scores are stored, and asked for once. Each version becomes an MLflow run, and a page shows the texts.

    Example:
      everytoken prompts eval --version v1 --version v2
    """
    from everytoken.reflections.development import (
        EVAL,
        development_of,
        figures_of,
        rank_versions,
        ranking_lines,
        sampled_rows,
        try_candidate,
        versions_page,
    )
    from everytoken.shards import write_text

    with opened_run(name, env, params) as opened:
        candidates = _candidates(opened, versions or _versions(opened))
        given = development_of(candidates[0].plan)
        rows = sampled_rows(candidates[0].plan, candidates[0].builder, given.items, given.seed, EVAL)
        trials = [try_candidate(candidate, rows, EVAL) for candidate in candidates]
        page = opened.data / _PAGES / f"{name}_prompts.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, versions_page(name, trials))
        recorded = [_record(opened, trial, figures_of(trial)) for trial in trials]
        if as_json:
            ranking = rank_versions(trials)
            found = {
                "versions": [{"name": one.name, **one.metrics()} for one in map(figures_of, trials)],
                "rows": ranking.rows,
                "best": ranking.best,
                "against": ranking.against,
                "page": str(page),
                "mlflow_runs": recorded,
            }
            click.echo(json.dumps(found, indent=1))
            return
        for trial in trials:
            click.echo("\n".join(_figure_lines(figures_of(trial))))
        click.echo("\n".join(ranking_lines(rank_versions(trials))))
        click.echo(f"page         {page}\nMLflow       {', '.join(recorded)}")


@prompts.command("freeze")
@RUN_OPTION
@ENV_OPTION
@PARAMS_OPTION
@click.option("--version", help="Version that is fixed.  [default: that of reflection.prompts.versions]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the record.  [default: next to the prompt, with .frozen.json]",
)
def freeze_command(name: str, env: str | None, params: dict[str, Any], version: str | None, out: Path | None) -> None:
    """Fix generator, prompt, constitution, guidelines and sampling in a record that runs may name.

    A run that names the record (`reflection.frozen`) is refused when any of these differs from it.

    Example:
      everytoken prompts freeze --version v2
    """
    from everytoken.reflections import freeze_prompt
    from everytoken.reflections.development import versioned_builder

    target = None if out is None else out.absolute()
    with opened_run(name, env, params) as opened:
        builder = versioned_builder(opened.plan(), version)
        path = target or builder.files["prompt"].path.with_suffix(".frozen.json")
        record = freeze_prompt(path, builder)
        click.echo(f"{path} fixes {record['generator']} with {record['prompt']} {record['version']}")
        click.echo(f"name it in the run: reflection.frozen={path}")


def _versions(opened: RunProject) -> list[str]:
    """Return the versions of the prompt of a run for its generator."""
    from everytoken.reflections import ReflectionError, find_generation_run
    from everytoken.reflections.prompts import prompt_versions

    run, _ = find_generation_run(opened.name)
    given = opened.context.params["reflection"]
    found = prompt_versions(given.prompts, run.prompt, given.generator.alias)
    if not found:
        raise ReflectionError(
            f"{given.generator.alias} has no prompt of the kind {run.prompt}: write the first one "
            "(everytoken prompts seed)"
        )
    return found


def _candidates(opened: RunProject, versions: Sequence[str]) -> list[Candidate]:
    from everytoken.reflections import find_generation_run
    from everytoken.reflections.development import Candidate

    _, folder = find_generation_run(opened.name)
    plan = opened.plan()
    return [Candidate.open(plan, version, opened.data / _FOLDER / folder) for version in dict.fromkeys(versions)]


def _figure_lines(found: VersionFigures) -> Iterator[str]:
    yield found.name
    yield f"  items      {found.items:,}: {found.generated:,} with a reply, {found.judged:,} with scores"
    if found.mean_aggregate is not None and found.accept_rate is not None:
        yield f"  scores     mean {found.mean_aggregate:.3f}, accepted {found.accept_rate:.1%}"
        yield f"  by         {', '.join(f'{name} {value:.3f}' for name, value in found.by_dimension.items())}"
        shares = (f"{value:.1%} of score {score}" for score, value in found.accept_by_safety_score.items())
        yield f"  accepted   {', '.join(shares)}"
    yield f"  parsed     {_parse_rates(found)}"
    yield f"  failures   {', '.join(f'{name} {rate:.1%}' for name, rate in found.failure_rates.items())} of attempts"


def _parse_rates(found: VersionFigures) -> str:
    said = []
    for stage, rate in found.parse_rates.items():
        said.append(f"no {stage} reply came" if rate is None else f"{rate:.1%} of {stage} replies")
    return ", ".join(said)


def _record(opened: RunProject, trial: Trial, found: VersionFigures) -> str:
    """Record a version as an MLflow run; return its id. Figures that are recorded already are not recorded again."""
    from everytoken.shards import value_digest, write_text
    from everytoken.tracking import mlflow_environment, open_store, record_results, tracking_settings

    parameters = trial.candidate.tracked_parameters()
    metrics = found.metrics()
    digest, file = value_digest([parameters, metrics]), trial.candidate.folder / _RECORDED
    known: Mapping[str, str] = json.loads(file.read_bytes()) if file.exists() else {}
    if digest in known:
        return known[digest]
    context = opened.context
    with mlflow_environment():
        run = record_results(
            open_store(context.project_path, tracking_settings(context)),
            f"prompts_{found.name}",
            tags={"job": "prompts eval", "run": opened.name, "prompt.sha256": parameters["prompt_sha256"]},
            parameters=parameters,
            metrics=metrics,
            report=json.dumps({"parameters": parameters, "metrics": metrics}, indent=1) + "\n",
        )
    write_text(file, json.dumps({**known, digest: run}, indent=1, sort_keys=True) + "\n")
    return run
