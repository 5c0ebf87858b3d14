"""The project of a generation run, as the commands about runs open it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.cli.project import cause_of, given_parameters, known_errors, project

if TYPE_CHECKING:
    from everytoken.reflections.ranks import GenerationPlan

_COMMAND = re.compile(r"(everytoken (?:reflections|prompts) [a-z]+)( --run [^\s,).]+)?")
_KEDRO_RUN = re.compile(r"kedro run(?! --env)")

RUN_OPTION = click.option(
    "--run", "name", default="reflections", show_default=True, help="Name of the generation run, or an alias."
)
ENV_OPTION = click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
PARAMS_OPTION = click.option(
    "--params", default="", callback=given_parameters, help="Parameters, as for `kedro run --params`."
)


def annotated_dataset() -> str:
    """Return the dataset of the stream that runs are about."""
    from everytoken.tokens.streams import dataset_of_stream  # not for `everytoken --help`

    return dataset_of_stream("annotated")


@dataclass(frozen=True)
class RanksProject(ABC):
    """A project, and the ranks that commands start and follow."""

    context: Any
    catalog: Any

    @property
    @abstractmethod
    def root(self) -> Path:
        """Folder of the ranks."""

    @property
    def at_once(self) -> int:
        """Ranks that are made at a time: the workers of the engine."""
        from everytoken.shards import processes_of

        return max(1, processes_of(**self.context.config_loader["globals"]["engine"]))

    @abstractmethod
    def plan(self) -> Any:
        """Return what the ranks ask, as the node of the pipeline plans it."""


@dataclass(frozen=True)
class RunProject(RanksProject):
    """The project of one generation run."""

    name: str

    @property
    def root(self) -> Path:
        """Folder of the run."""
        from everytoken.datasets import DatasetPaths
        from everytoken.reflections import find_generation_run

        _, folder = find_generation_run(self.name)
        return DatasetPaths(self.context.config_loader["catalog"])[f"{folder}_replies"]

    @property
    def data(self) -> Path:
        """Folder of the data of the environment."""
        return Path(self.context.config_loader["globals"]["data"])

    def plan(self) -> GenerationPlan:
        """Return the run as the node of its pipeline plans it."""
        from everytoken.pipelines.reflection.nodes import generating

        stream, tokenizer = self.catalog.load(annotated_dataset()), self.catalog.load("tokenizer")
        parameters = self.context.params["reflection"], self.context.params["tokenization"]
        planned: GenerationPlan = generating(self.name)(stream, tokenizer, *parameters)
        return planned

    def merge(self) -> Any:
        """Merge the replies of the run; return the columns."""
        from everytoken.pipelines.reflection.nodes import merging
        from everytoken.reflections.merging import list_replies

        stream, parameters = self.catalog.load(annotated_dataset()), self.context.params["reflection"]
        self.catalog.save(f"{self.name}_columns", merging(self.name)(list_replies(self.root), stream, parameters))
        return self.catalog.load(f"{self.name}_columns")


@contextmanager
def opened_run(name: str, env: str | None, given: dict[str, Any] | None = None) -> Iterator[RunProject]:
    """Give the project; the commands that its errors name get the options of this one."""
    with opened_project(env, given, lambda message: with_options(message, name, env)) as (context, catalog):
        yield RunProject(context, catalog, name)


@contextmanager
def opened_project(
    env: str | None, given: dict[str, Any] | None, completed: Callable[[str], str]
) -> Iterator[tuple[Any, Any]]:
    """Give context and catalog; ``completed`` gives the commands in the messages of errors their options."""
    from kedro.io.core import DatasetError

    from everytoken.configuration import missing_dataset

    try:
        with project(env, given) as opened:
            yield opened
    except click.ClickException as error:
        error.message = completed(error.message)  # type: ignore[misc]
        raise
    except Exception as error:
        if not isinstance(error, known_errors()):
            raise
        missing = missing_dataset(error, env) if isinstance(error, DatasetError) else None
        raise click.ClickException(completed(missing or str(cause_of(error)))) from error


def with_options(message: str, name: str, env: str | None) -> str:
    """Return a message whose commands have ``--run`` and ``--env``."""
    option = "" if env is None else f" --env {env}"
    told = _COMMAND.sub(lambda found: f"{found[1]}{found[2] or f' --run {name}'}{option}", message)
    return _KEDRO_RUN.sub(f"kedro run{option}", told)
