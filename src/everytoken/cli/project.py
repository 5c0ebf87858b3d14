"""The Kedro project that a command runs in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from everytoken.system_errors import SystemTrouble, explained


@contextmanager
def session_of(env: str | None, given: dict[str, Any]) -> Iterator[Any]:
    """Give a Kedro session of the project, in its folder: the paths of the catalog are relative to it."""
    from kedro.config import MissingConfigException
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project
    from kedro.validation.exceptions import ParameterValidationError

    folder = project_folder()
    os.chdir(folder)
    bootstrap_project(folder)
    try:
        with KedroSession.create(project_path=folder, env=env, runtime_params=given) as session:
            yield session
    except MissingConfigException as error:
        raise click.UsageError(missing_in_words(error)) from error
    except ParameterValidationError as error:
        raise click.ClickException(_parameters_in_words(env, given) or str(error)) from error


def _parameters_in_words(env: str | None, given: dict[str, Any]) -> str:
    from everytoken.configuration import parameters_in_words

    return parameters_in_words(_raw_parameters({"env": env, "params": given, "conf_source": None}))


def missing_in_words(error: Exception) -> str:
    """Return what Kedro says of files that are missing; of an environment, with the names of those that are there."""
    named = Path(str(error).rpartition(": ")[2])
    if named.is_dir() or not named.parent.is_dir():
        return str(error)
    known = sorted(folder.name for folder in named.parent.iterdir() if folder.is_dir())
    return f"there is no environment {named.name!r} in {named.parent}, only {', '.join(known)}. Correct --env."


def failure_of_a_run(error: Exception, options: dict[str, Any]) -> tuple[int, str]:
    """Return exit code and words for an error of ``kedro run``."""
    from kedro.config import MissingConfigException
    from kedro.io.core import DatasetError
    from kedro.validation.exceptions import ParameterValidationError

    from everytoken.configuration import (
        MissingConfigurationError,
        missing_dataset,
        parameters_in_words,
        unexpected,
        unknown_selection,
    )

    if isinstance(error, MissingConfigException):
        return 2, missing_in_words(error)
    if isinstance(error, MissingConfigurationError):
        return 2, str(error)
    if isinstance(error, ParameterValidationError):
        return 2, parameters_in_words(_raw_parameters(options)) or str(error)
    if isinstance(error, DatasetError) and (told := missing_dataset(error, options["env"])) is not None:
        return 1, told
    if isinstance(error, ValueError | AttributeError) and (told := unknown_selection(options)) is not None:
        return 2, told
    if (told := explained(error)) is not None:
        return 1, told
    return 1, str(cause_of(error)) if isinstance(error, (SystemTrouble, *known_errors())) else unexpected(error)


def _raw_parameters(options: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that a run was given, as its configuration says them."""
    from kedro.framework.project import settings

    conf = options["conf_source"] or str(project_folder() / settings.CONF_SOURCE)
    loader = settings.CONFIG_LOADER_CLASS(
        conf_source=conf, env=options["env"], runtime_params=options["params"], **settings.CONFIG_LOADER_ARGS
    )
    found: dict[str, Any] = loader["parameters"]
    return found


@contextmanager
def project(env: str | None, given: dict[str, Any] | None = None) -> Iterator[tuple[Any, Any]]:
    """Give context and catalog of the project with parameters ``given`` over those of its environment."""
    with session_of(env, given or {}) as session:
        try:
            context = session.load_context()
            catalog = context.catalog
        except ValueError as error:
            raise click.ClickException(str(error)) from error
        yield context, catalog


def known_errors() -> tuple[type[Exception], ...]:
    """Return the errors whose message says all that there is to say: ours, and Kedro's around them."""
    from kedro.io.core import DatasetError

    from everytoken.benchmark_tasks import TaskError
    from everytoken.configuration import ConfigurationError
    from everytoken.contract import ContractError
    from everytoken.corpus import CorpusError
    from everytoken.generation import GenerationError
    from everytoken.locks import LocksRefused
    from everytoken.models import ModelsError
    from everytoken.outofcore import ShuffleError
    from everytoken.provenance import ProvenanceError
    from everytoken.reflections import ReflectionError
    from everytoken.serving import ServingError
    from everytoken.shards import ShardsError
    from everytoken.submission import SubmissionError
    from everytoken.tokens import TokensError
    from everytoken.tracking import TrackingError
    from everytoken.training import TrainingError

    ours = (
        ConfigurationError,
        ContractError,
        CorpusError,
        GenerationError,
        LocksRefused,
        ModelsError,
        ProvenanceError,
        ReflectionError,
        ServingError,
        ShardsError,
        ShuffleError,
        SubmissionError,
        TaskError,
        TokensError,
        TrackingError,
        TrainingError,
    )
    return (DatasetError, *ours)


def cause_of(error: BaseException) -> BaseException:
    """Return the error that says what to do: ours inside those of Kedro, and not the library's inside ours."""
    from kedro.io.core import DatasetError

    while isinstance(error, DatasetError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def given_parameters(context: click.Context, option: click.Parameter, value: str) -> dict[str, Any]:
    """Return ``--params`` as `kedro run` reads it."""
    from kedro.framework.cli.project import run

    (read,) = [one.callback for one in run.params if one.name == "params"]
    assert read is not None, "it turns the option into a dict"
    given: dict[str, Any] = read(context, option, value) or {}
    return given


def named_values(items: Iterable[str], option: str, form: str) -> dict[str, str]:
    """Return what an option that is given as NAME=VALUE says, by name; ``form`` is how its help spells that."""
    named = {}
    for item in items:
        name, _, value = item.partition("=")
        if not name or not value:
            raise click.BadParameter(f"{item!r}: expected {form}", param_hint=option)
        named[name] = value
    return named


def is_in_project() -> bool:
    """Return whether one is in the folder of a project, or below it."""
    return any(map(_is_project, (Path.cwd(), *Path.cwd().parents)))


def _is_project(folder: Path) -> bool:
    return (folder / "pyproject.toml").exists() and (folder / "conf").is_dir()


def project_folder() -> Path:
    """Return the folder of the project that one is in.

    Raises:
        ClickException: one is in none.
    """
    for folder in (Path.cwd(), *Path.cwd().parents):
        if _is_project(folder):
            return folder
    raise click.ClickException(
        f"{Path.cwd()} is in no Kedro project; run this inside the project's folder (verify also takes paths)"
    )
