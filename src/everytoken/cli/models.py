"""Commands for models: train, plan a training, exchange checkpoints with other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from everytoken.cli.project import cause_of, known_errors, project, session_of

_CHECKPOINT_OF = {
    "training": "checkpoint",
    "pretraining": "pretrained_checkpoint",
    "finetuning": "finetuned_checkpoint",
}


@click.command()
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option(
    "--pipeline",
    type=click.Choice(list(_CHECKPOINT_OF)),
    default="training",
    show_default=True,
    help="Which pipeline trains.",
)
@click.option("--processes", type=click.IntRange(1), help="Processes on this machine, or on each node.")
@click.option("--nodes", type=click.IntRange(1), help="Machines; each runs torchrun on the file of --write-job.")
@click.option("--strategy", type=click.Choice(["ddp", "fsdp"]), help="Copies of the model (ddp), or shards of it.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where it computes.")
@click.option("--params", default="", help="Other parameters, as for `kedro run --params`.")
@click.option(
    "--write-job",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Train nothing: write what every process has to know, for torchrun on several machines.",
)
def train(env: str | None, pipeline: str, params: str, write_job: Path | None, **distribution: Any) -> None:
    """Train with one or many processes, as one MLflow run: `kedro run --pipelines training` with the options below.

    A run that was stopped goes on from its newest checkpoint. The samples of each step do not depend on the processes.
    """
    from kedro.framework.cli.utils import _split_params

    given: dict[str, Any] = _split_params(cast(Any, None), None, params) or {}
    chosen = {name: value for name, value in distribution.items() if value is not None}
    if chosen:
        group = "finetuning" if pipeline == "finetuning" else "training"
        given.setdefault(group, {}).setdefault("distribution", {}).update(chosen)
    try:
        if write_job is None:
            with session_of(env, given) as session:
                session.run(pipeline_names=[pipeline])
        else:
            click.echo(_write_job(env, given, pipeline, write_job))
    except known_errors() as error:
        raise click.ClickException(str(cause_of(error))) from error


def _write_job(env: str | None, given: dict[str, Any], pipeline: str, path: Path) -> str:
    """Write the job of a pipeline's training to ``path``; return how to run it."""
    from kedro.framework.project import pipelines

    from everytoken.training.artifacts import prepare_job
    from everytoken.training.job import write_job

    path = path.resolve()
    with project(env, given) as (_, catalog):
        (node,) = pipelines[pipeline].only_nodes_with_outputs(_CHECKPOINT_OF[pipeline]).nodes
        planned = node.func(*(catalog.load(name) for name in node.inputs))
        job = prepare_job(**planned.recipe.parameters)
        write_job(path, job)
    there = job.distribution
    return (
        f"{path}: run {job.run[:16]}, {job.training.steps} steps of {job.training.batch_size} windows, checkpoints in "
        f"{job.folder}\non each of {there.nodes} machines: torchrun --nnodes {there.nodes} --nproc-per-node "
        f"{there.processes} --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m everytoken.training.worker {path}\n"
        "then, on one of them, the same command without --write-job: it finds the run finished, and records it"
    )
