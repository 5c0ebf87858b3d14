"""Standard benchmarks: tasks of lm-evaluation-harness, and what tells one evaluation from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everytoken.serving.errors import ServingError
from everytoken.serving.opened_model import OpenedModel
from everytoken.shards import value_digest


def evaluate_tasks(
    opened: OpenedModel,
    *,
    tasks: Sequence[str],
    task_folder: Path | None = None,
    limit: int | None = None,
    shots: int | None = None,
    chat_template: bool = False,
    batch_size: int,
    max_new_tokens: int,
    seed: int,
) -> dict[str, Any]:
    """Evaluate a model on tasks.

    Args:
        tasks: names of tasks of the harness, or of ``task_folder``.
        task_folder: has task files of the user's own.
        limit: examples of each task; None: all.
        shots: examples in the prompt; None: as the task says.
        chat_template: whether the examples are messages of a chat.
        batch_size: sequences that are computed together.
        max_new_tokens: of a text, where its task does not say.
        seed: of the examples in prompts, and of texts that are drawn.

    Returns:
        ``model`` (name, SHA-256 of the parameters), ``lm_eval`` (version), ``seed``, ``limit``, and ``tasks``: by name
        ``metrics``, ``version``, ``sha256`` of its configuration, ``shots`` and ``examples``.

    Raises:
        ServingError: the extra ``eval`` is not installed, a task is not known, or it cannot be run.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager

        from everytoken.serving.harness import HarnessModel
    except ImportError as error:
        raise ServingError(f"evaluation needs lm-eval ({error}): pip install 'everytoken[eval]'") from error
    own = None if task_folder is None else str(task_folder)
    manager = TaskManager(include_path=own, include_defaults=False)  # those of the harness take seconds to list
    if set(tasks) - set(manager.all_tasks):
        manager = TaskManager(include_path=own)
    if unknown := [name for name in tasks if name not in manager.all_tasks]:
        raise ServingError(
            f"lm-eval {lm_eval.__version__} has no task {', '.join(unknown)}; `lm_eval ls tasks` lists them, and "
            "--task-folder names a folder with files of your own"
        )
    try:
        found = lm_eval.simple_evaluate(
            model=HarnessModel(opened, batch_size=batch_size, seed=seed, max_new_tokens=max_new_tokens),
            tasks=list(tasks),
            task_manager=manager,
            num_fewshot=shots,
            limit=limit,
            apply_chat_template=chat_template,
            bootstrap_iters=0,
            log_samples=False,
            random_seed=seed,
            numpy_random_seed=seed,
            torch_random_seed=seed,
            fewshot_random_seed=seed,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServingError(f"lm-eval cannot run {', '.join(tasks)}: {error}") from error
    return {
        "model": {"name": opened.name, "sha256": opened.digest},
        "lm_eval": lm_eval.__version__,
        "seed": seed,
        "limit": limit,
        "tasks": {name: _of_task(name, found) for name in found["results"]},
    }


def _of_task(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    configuration = {key: value for key, value in found["configs"].get(name, {}).items() if key != "metadata"}
    results = {key: value for key, value in found["results"][name].items() if key != "sample_len"}  # no measure
    measured = {key.removesuffix(",none"): value for key, value in results.items()}
    return {
        "metrics": {key: float(value) for key, value in measured.items() if isinstance(value, int | float)},
        "version": found["versions"].get(name),
        "sha256": value_digest(_plain(configuration)),
        "shots": found["n-shot"].get(name),
        "examples": found["n-samples"].get(name, {}).get("effective"),
    }


def _plain(value: Any) -> Any:
    """Return a configuration with what JSON does not have as its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
