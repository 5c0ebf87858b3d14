"""The command ``everytoken evaluate``: standard benchmarks, by EleutherAI's lm-evaluation-harness."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click


@click.command("evaluate")
@click.argument("model", type=click.Path(exists=True, path_type=Path))
@click.option("--tasks", required=True, help="Names of tasks of lm-eval, with commas between.")
@click.option(
    "--task-folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with task files of your own (YAML).",
)
@click.option("--limit", type=click.IntRange(1), help="Examples of each task.  [default: all]")
@click.option("--shots", type=click.IntRange(0), help="Examples in the prompt.  [default: as the task says]")
@click.option("--chat-template", is_flag=True, help="Ask in the form of a chat.")
@click.option("--batch-size", type=click.IntRange(1), default=8, show_default=True, help="Sequences at once.")
@click.option(
    "--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Where a task says none."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of all draws.")
@click.option("--threads", type=click.IntRange(1), help="Threads of the arithmetic.  [default: one a core]")
@click.option("--tokenizer", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its tokenizer.json.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def evaluate_command(
    model: Path, tokenizer: Path | None, threads: int | None, out: Path | None, **options: Any
) -> None:
    r"""Evaluate MODEL, a checkpoint folder, a Hugging Face folder or a GGUF file, on standard benchmarks.

    Needs the extra `eval`. Tasks of lm-eval fetch their data from the Hugging Face hub.

    \b
    everytoken evaluate data/06_models/checkpoint --tasks hellaswag,arc_easy --limit 200
    """
    from everytoken.serving import evaluate_tasks, open_model
    from everytoken.shards import write_text
    from everytoken.training import ExecutionParameters
    from everytoken.training.step import execution

    opened = open_model(model, tokenizer=tokenizer)
    options["tasks"] = [name.strip() for name in options["tasks"].split(",") if name.strip()]
    arithmetic = ExecutionParameters(threads=threads or len(os.sched_getaffinity(0)), matmul_precision="highest")
    with execution(arithmetic):
        results = evaluate_tasks(opened, **options)
    for task, found in results["tasks"].items():
        for name, value in found["metrics"].items():
            click.echo(f"{task:<24}{name:<32}{value:10.4f}")
    if out is not None:
        write_text(out, json.dumps(results, indent=2, ensure_ascii=False) + "\n")
