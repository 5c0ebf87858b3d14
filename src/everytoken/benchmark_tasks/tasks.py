"""Tasks of lm-evaluation-harness, opened once and run on models; and what tells one evaluation from another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any, TypedDict

import yaml

from everytoken.benchmark_tasks.errors import TaskError
from everytoken.generation import OpenedModel
from everytoken.seeds import seeded_everywhere
from everytoken.shards import value_digest


class TaskResult(TypedDict):
    """What came out for one task; ``sha256`` is of its configuration."""

    metrics: dict[str, float]
    version: int | float | str | None
    sha256: str
    shots: int | None
    examples: int | None


class TaskResults(TypedDict):
    """Results by task, the harness's version, and what the evaluation was done with."""

    lm_eval: str
    seed: int
    limit: int | None
    tasks: dict[str, TaskResult]


@dataclass(frozen=True)
class OpenedTasks:
    """Tasks with their data, for one evaluation at a time."""

    names: tuple[str, ...]
    version: str
    seed: int
    loaded: Any

    def evaluate(
        self,
        opened: OpenedModel,
        *,
        limit: int | None = None,
        chat_template: bool = False,
        batch_size: int,
        max_new_tokens: int,
    ) -> TaskResults:
        """Evaluate a model. Generators of random numbers, which the harness seeds, are put back afterwards.

        Args:
            limit: examples of each task; None: all.
            chat_template: whether the examples are messages of a chat.

        Raises:
            TaskError: a task cannot be run.
            NonFiniteLogits: what the model computes is not finite, in a task that draws texts.
        """
        import lm_eval

        from everytoken.benchmark_tasks.harness import HarnessModel

        model = HarnessModel(opened, batch_size=batch_size, seed=self.seed, max_new_tokens=max_new_tokens)
        with _in_words(self.names), seeded_everywhere(self.seed), _without_bars():
            for task in self.loaded["tasks"].values():
                task.set_fewshot_seed(seed=self.seed)
            # `simple_evaluate` around it would run pip to describe the machine, each time
            found = lm_eval.evaluate(
                model,
                self.loaded,
                limit=limit,
                apply_chat_template=chat_template,
                fewshot_as_multiturn=True,
                bootstrap_iters=0,
                log_samples=False,
            )
        return {
            "lm_eval": self.version,
            "seed": self.seed,
            "limit": limit,
            "tasks": {name: _of_task(name, found) for name in found["results"]},
        }


def open_tasks(
    names: Sequence[str], task_folder: Path | None = None, *, shots: int | None = None, seed: int
) -> OpenedTasks:
    """Read tasks and their data. Generators of random numbers are put back afterwards.

    Args:
        names: tasks of the harness, or of ``task_folder``.
        task_folder: has task files of the user's own.
        shots: examples in the prompt; None: as the task says. A task that says 0 has none.
        seed: of the examples in prompts, and of texts that are drawn.

    Raises:
        TaskError: the extra ``eval`` is not installed, a task file is broken, a task is not known, or has no data.
    """
    try:
        import lm_eval
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise TaskError(f"evaluation needs lm-eval ({error}): pip install 'everytoken[eval]'") from error
    if task_folder is not None:
        _require_readable(task_folder)
    manager = TaskManager(include_path=task_folder, include_defaults=False)  # those of the harness take seconds to list
    if set(names) - set(manager.all_tasks):
        manager = TaskManager(include_path=task_folder)
    if unknown := [name for name in names if name not in manager.all_tasks]:
        raise TaskError(
            f"lm-eval {lm_eval.__version__} has no task {', '.join(unknown)}; `lm_eval ls tasks` lists them, and "
            "--task-folder names a folder with files of your own"
        )
    with _in_words(names), seeded_everywhere(seed), _without_bars():
        loaded = manager.load(list(names))
    for task in loaded["tasks"].values():
        own = task.get_config("num_fewshot")
        if own is None or (own and shots is not None):
            task.set_config(key="num_fewshot", value=shots or 0)
    return OpenedTasks(tuple(names), str(lm_eval.__version__), seed, loaded)


def _require_readable(task_folder: Path) -> None:
    """Raise for a file of a folder that is no YAML: the harness passes over it."""
    from lm_eval.tasks._yaml_loader import load_yaml

    for path in sorted(task_folder.rglob("*.yaml")):
        try:
            load_yaml(path, resolve_func=False)
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise TaskError(f"{path} is no task file: {' '.join(str(error).split())}. Correct or remove it") from error


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the bars of the harness and of its data sets out of the log: `everytoken.progress` shows how far it is."""
    from tqdm import tqdm

    original = tqdm.__init__
    tqdm.__init__ = partialmethod(original, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = original


@contextmanager
def _in_words(names: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TaskError(f"lm-eval cannot run {', '.join(names)}: {error}") from error


def _of_task(name: str, found: Mapping[str, Any]) -> TaskResult:
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
