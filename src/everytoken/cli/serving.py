"""The commands over a model in use: ``serve`` has OpenAI's API, ``evaluate`` the benchmarks of lm-eval."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click

from everytoken.cli.models import arithmetic, opens_model, template_option
from everytoken.cli.project import is_in_project, project

_TOKEN = "EVERYTOKEN_SERVE_TOKEN"
_KEYS = ("version", "sha256", "shots", "examples")


@click.command("evaluate")
@opens_model
@click.option("--tasks", required=True, help="Names of tasks of lm-eval, with commas between.")
@click.option(
    "--task-folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with task files of your own (YAML).",
)
@click.option("--limit", type=click.IntRange(1), help="Most examples of each task.  [default: all]")
@click.option("--shots", type=click.IntRange(0), help="Examples in the prompt.  [default: as the task says]")
@click.option("--chat-template", is_flag=True, help="Ask in the form of a chat.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=8, show_default=True, help="Sequences that are computed at once."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Most tokens of an answer, where the task says none.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all draws.")
@click.option("--env", default=None, help="Kedro environment whose MLflow store records the figures.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def evaluate_command(
    model: Path,
    tokenizer: Path | None,
    device: Literal["cpu", "cuda"],
    threads: int | None,
    env: str | None,
    out: Path | None,
    tasks: str,
    task_folder: Path | None,
    shots: int | None,
    seed: int,
    **options: Any,
) -> None:
    """Evaluate MODEL, a checkpoint folder, a Hugging Face folder or a GGUF file, on standard benchmarks.

    This needs the extra `eval`. Tasks of lm-eval fetch their data from the Hugging Face hub. In a project MLflow
    records the figures, with version and hash of each task.

    Example:
      everytoken evaluate data/06_models/checkpoint --tasks hellaswag,arc_easy --limit 200
    """
    from everytoken.benchmark_tasks import open_tasks
    from everytoken.serving import open_model
    from everytoken.shards import write_text
    from everytoken.training.checkpoints import parameters_sha256
    from everytoken.training.step import execution

    names = [name.strip() for name in tasks.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("names no task", param_hint="--tasks")
    if out is not None and not out.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {out.parent}", param_hint="--out")
    opened_tasks = open_tasks(names, task_folder, shots=shots, seed=seed)
    opened = open_model(model, tokenizer=tokenizer, device=device)
    with execution(arithmetic(threads)):
        found = opened_tasks.evaluate(opened, **options)
    results = {"model": {"name": opened.name, "sha256": parameters_sha256(opened.model)}, **found}
    for task, result in found["tasks"].items():
        for name, value in result["metrics"].items():
            click.echo(f"{task:<24}{name:<32}{value:10.4f}")
    report = json.dumps(results, indent=2, ensure_ascii=False) + "\n"
    if out is not None:
        write_text(out, report)
    if is_in_project():
        click.echo(f"recorded in MLflow as run {_record(env, results, report)}", err=True)
    else:
        click.echo("not recorded in MLflow: this folder is in no project", err=True)


def _record(env: str | None, results: dict[str, Any], report: str) -> str:
    """Record an evaluation as a run of the project that one is in; return its id."""
    from everytoken.tracking import mlflow_environment, open_store, record_results, tracking_settings

    tasks = results["tasks"]
    metrics = {f"{name}.{key}": value for name, found in tasks.items() for key, value in found["metrics"].items()}
    with project(env) as (context, _), mlflow_environment():
        return record_results(
            open_store(context.project_path, tracking_settings(context)),
            "evaluate",
            tags={"job": "evaluate", "model.sha256": results["model"]["sha256"], "lm_eval": results["lm_eval"]},
            parameters={
                "model": results["model"]["name"],
                **{name: results[name] for name in ("seed", "limit")},
                "tasks": {name: {key: found[key] for key in _KEYS} for name, found in tasks.items()},
            },
            metrics=metrics,
            report=report,
        )


@click.command("serve")
@opens_model
@template_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help=f"Address to listen at; any but loopback needs {_TOKEN}."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen at; 0 takes a free one.",
)
@click.option(
    "--concurrency", type=click.IntRange(1), default=2, show_default=True, help="Requests that are answered at a time."
)
@click.option("--queue", type=click.IntRange(0), default=16, show_default=True, help="Requests that may wait.")
@click.option(
    "--max-body-bytes", type=click.IntRange(1), default=4 << 20, show_default=True, help="Most bytes of a request."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1),
    default=400,
    show_default=True,
    help="Most tokens of a reply, where the request does not say.",
)
def serve_command(
    model: Path,
    template: Path | None,
    tokenizer: Path | None,
    device: Literal["cpu", "cuda"],
    threads: int | None,
    **options: Any,
) -> None:
    """Serve MODEL: a checkpoint folder, a Hugging Face folder or a GGUF file.

    It speaks the chat and completions API of OpenAI. Clients need the token of the environment variable
    EVERYTOKEN_SERVE_TOKEN, where it is set.

    Example:
      everytoken serve data/06_models/finetuned_checkpoint
      curl http://127.0.0.1:8000/v1/models
    """
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise click.ClickException(f"{' and '.join(missing)} cannot be imported: pip install 'everytoken[serve]'")
    from everytoken.serving import ServerOptions, open_model, serve

    opened = open_model(model, tokenizer=tokenizer, template=template, device=device)
    serve(
        opened,
        ServerOptions(token=os.environ.get(_TOKEN) or None, threads=arithmetic(threads).threads, **options),
        lambda url: click.echo(f"{opened.name}: {url}/v1"),
    )
