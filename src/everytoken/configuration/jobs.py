"""What an environment says: its job, the parameters that follow from that, and a check that all of it is read.

Configuration that no code reads is refused: a mistyped key would silently leave the value of ``base`` in force. The job
``replay`` takes the parameters that decide bytes from the release that it replays: they are part of the release, and a
copy of them in ``conf`` could differ. What the command line sets goes over them. (A resolver of OmegaConf could not do
that: ``--params`` replaces the whole of what one gives, and the values of ``base`` would come back.) Without a release
this environment can be looked at (``kedro viz``, a notebook) and nothing can be run in it. A list of excluded
documents that is in force in the data folder is taken where the parameters name none.

The context of a session sets the default pipeline, because only there Kedro knows the environment in every case:
``kedro run``, ``KedroSession.run()``, ``kedro viz`` (which runs no hooks) and a notebook then have the same job.
"""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, reduce
from importlib import import_module
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kedro.config import AbstractConfigLoader, OmegaConfigLoader
from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.framework.project import pipelines
from kedro.io import CatalogProtocol, DataCatalog
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node
from omegaconf.errors import InterpolationKeyError

from everytoken.configuration.errors import ConfigurationError
from everytoken.configuration.files import CONFIG_LOADER_ARGS, read_folder, read_plainly
from everytoken.configuration.viz_files import EVENTS_FILE, is_of_viz, viz_file
from everytoken.locks import TRUST_VARIABLE
from everytoken.pipeline_registry import DEFAULT_JOB, JOBS
from everytoken.redaction import Redaction, SecretError, is_url, require_no_secrets
from everytoken.shards import write_text
from everytoken.system_errors import SystemTrouble, explained
from everytoken.tagged_unions import with_whole_families
from everytoken.tokens.streams import STREAM_KINDS, WHEN_MADE

if TYPE_CHECKING:
    from everytoken.provenance.releases import Release

logger = logging.getLogger(__name__)

_REGISTERED: dict[str, Pipeline] = {}
"""Pipelines in whose place a context of this process put their part of its job; the next context puts them back."""

_SUBSAMPLING = "params:subsampling"
_EVALUATION, _MEMORISATION = "evaluation", "memorisation"
_REFLECTION, _REPLIES, _COLUMNS = "reflection", "reflections_replies", "reflections_columns"

GLOBALS = {"data", "raw", "engine", "model_size", "job", "locks"}

_LOCKS = ("by_file_system", "trust")


@dataclass(frozen=True)
class ResultsPlace:
    """Where the results of sessions go in the place of ``data`` in ``globals.yml``, and tags of their MLflow runs."""

    data: str
    tags: Mapping[str, str]


_results: ContextVar[ResultsPlace | None] = ContextVar("results", default=None)


@contextmanager
def results_in(place: ResultsPlace) -> Iterator[None]:
    """Let sessions that begin inside the block have their data folder in another place."""
    token = _results.set(place)
    try:
        yield
    finally:
        _results.reset(token)


def require_local(catalog: Mapping[str, Any]) -> None:
    """Check that another data folder is another place for all data.

    Raises:
        ConfigurationError: a dataset is behind a URL, and would be made in the place of the one that is there.
    """
    if remote := [name for name, entry in catalog.items() if is_url(str(entry.get("filepath", "")))]:
        raise ConfigurationError(
            f"{', '.join(remote)} of this environment are behind URLs, and would be replaced: a trial or a sweep has "
            "data folders of its own. Give them local paths in an environment with the same parameters, and try that"
        )


class JobConfigLoader(OmegaConfigLoader):
    """Loads an environment, with the parameters that its job and its data folder decide.

    ``project_path`` is the folder of the project, which a `JobContext` sets: in its data folder a list of excluded
    documents may be in force. None: no such list is looked for.
    """

    project_path: Path | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._told: set[str] = set()
        self._results = _results.get()
        if self._results is not None:
            self["globals"] = {**self["globals"], "data": self._results.data}

    def __getitem__(self, key: str) -> dict[str, Any]:
        """Return the configuration of a kind; the parameters of a replay are those of the release.

        Where there is none they are those of the environment, to look at: `ReplayHook` lets no run begin with them.
        """
        if key in ("catalog", "globals", "mlflow") and self._is_read_from_files(key):
            plain = read_plainly(Path(self.conf_source), self.env, key)
            if plain is not None:
                return plain
        if key != "parameters" or key in self:
            found: dict[str, Any] = super().__getitem__(key)
            if key == "catalog" and self._results is not None:
                require_local(found)
            return found
        return self._with_list_in_force(self._parameters_of_job())

    def _is_read_from_files(self, key: str) -> bool:
        """Return whether nobody has given a value for the configuration, or for the globals that it names."""
        return key not in self and "globals" not in self and self.base_env == CONFIG_LOADER_ARGS["base_env"]

    @cached_property
    def job(self) -> str:
        """Name of the pipeline that the environment runs."""
        job = str(self["globals"].get("job"))
        _refuse({job}, set(JOBS), "globals.yml: job", self)
        return job

    def default_pipelines(self) -> tuple[str, ...]:
        """Return the names of the pipelines that a run without ``--pipelines`` has: the job, and what it needs besides.

        A replay makes what its release asks; where there is no release to see, that is nothing. The job ``corpus``
        makes the streams on request that its training names, such as ``canary``, and probes what was memorised where
        ``evaluation.memorisation`` is given.
        """
        from everytoken.provenance import ProvenanceError
        from everytoken.provenance.replay import rebuilding_pipelines

        try:
            if self.job == DEFAULT_JOB:
                probed = [_MEMORISATION] if self._probes_memorisation() else []
                return (self.job, *self._pipelines_of_streams(), *probed)
            release = self.replayed_release()
            return (self.job,) if release is None else (self.job, *rebuilding_pipelines(release))
        except (ProvenanceError, InterpolationKeyError):  # told with the parameters, before anything runs
            return (self.job,)

    def _pipelines_of_streams(self) -> list[str]:
        """Return the pipelines of the streams that the training names and that are no part of the job."""
        from everytoken.parameters import listed  # not for `kedro --help`

        named = (self["parameters"].get("training") or {}).get("streams") or ()
        kinds = (STREAM_KINDS.get(name) for name in listed(named))
        return [kind.pipeline for kind in kinds if kind is not None and kind.is_of_windows and kind.is_on_request]

    def _probes_memorisation(self) -> bool:
        return bool((self["parameters"].get(_EVALUATION) or {}).get(_MEMORISATION))

    def replayed_release(self) -> Release | None:
        """Return the release that the parameters are taken from; None: this job takes them from none.

        Raises:
            ProvenanceError: there is no release where ``replay.release`` says.
        """
        if self.job != "replay":
            return None
        from everytoken.provenance.replay import named_release

        return named_release(self._parameters_of_files())

    @property
    def read_by_every_run(self) -> tuple[str, ...]:
        """Names of parameters that decide others, and so belong to every run of the environment."""
        return ("replay.release",) if self.job == "replay" else ()

    def run_tags(self) -> dict[str, str]:
        """Return what the tracking of a run says of its configuration."""
        release = self.replayed_release()
        tags = {} if self._results is None else self._results.tags
        return {"job": self.job, **tags, **({} if release is None else {"replay.release.digest": release.digest})}

    def _parameters_of_files(self) -> dict[str, Any]:
        """Return the parameters of base with those of the environment, and then of the command line, over them.

        Kedro's soft merge drops a value that an environment says is ``???``, not looked up yet, and keeps that of base.
        """
        own = self._parameters_of_folder(self.env or self.default_run_env)  # first: it may not be there
        base = self._parameters_of_folder(self.base_env)
        given = self.runtime_params or {}
        _require_sources_to_take_away(base, own, f"the environment {self.env or 'local'!r}")
        merged = with_whole_families(with_whole_families(_merged(base, own), own), given)
        if given:
            without = copy.copy(self)
            without.runtime_params = {}
            _require_sources_to_take_away(without._parameters_of_files(), given, "--params")
        return _merged(merged, _unknown(given))

    def _parameters_of_folder(self, name: str) -> dict[str, Any]:
        if not self.runtime_params and self._is_read_from_files("parameters"):
            plain = read_folder(Path(self.conf_source), name, self.env, "parameters")
            if plain is not None:
                return plain
        folder = copy.copy(self)
        folder.env = folder.base_env = name  # Kedro merges nothing where the environment is base
        return OmegaConfigLoader.__getitem__(folder, "parameters")

    def _parameters_of_job(self) -> dict[str, Any]:
        found = self._parameters_of_files()
        if self.job != "replay":
            return found
        from everytoken.provenance import ProvenanceError
        from everytoken.provenance.replay import with_released_parameters

        try:
            given = self.runtime_params or {}
            return with_whole_families(_merged(with_released_parameters(found), given), given)
        except ProvenanceError as error:
            self.tell(f"warning: the parameters are those of conf/, to look at, and no run's: {error}", logging.WARNING)
            return found

    def _with_list_in_force(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Let ``subsampling.exclude`` be the list that is in force in the data folder, where the parameters name none.

        Raises:
            ConfigurationError: the parameters would bring a document back.
        """
        subsampling = parameters.get("subsampling")
        if self.project_path is None or not isinstance(subsampling, Mapping):
            return parameters
        from everytoken.provenance.takedown import LISTS_FOLDER, is_told, list_of_run

        data = Path(self["globals"]["data"])
        if not is_told(self.project_path / data / LISTS_FOLDER):
            return parameters
        from everytoken.corpus import ExclusionError, ExclusionParameters
        from everytoken.provenance import ProvenanceError

        configured = subsampling.get("exclude")
        of_command_line = (self.runtime_params or {}).get("subsampling") or {}
        try:
            listed = list_of_run(
                None if configured is None else ExclusionParameters.model_validate(configured),
                is_null_given="exclude" in of_command_line and of_command_line["exclude"] is None,
                root=self.project_path,
                data=data,
                environment=self.env or "local",
            )
        except (ExclusionError, ProvenanceError) as error:
            raise ConfigurationError(str(error)) from error
        if configured is not None or listed is None:
            return parameters
        self.tell(f"subsampling.exclude is the list in force: {listed.path}")
        return {**parameters, "subsampling": {**subsampling, "exclude": listed.model_dump()}}

    def tell(self, message: str, level: int = logging.INFO) -> None:
        """Log a message once, however often the parameters are read."""
        if message not in self._told:
            logger.log(level, "%s", message)
        self._told.add(message)


class JobContext(KedroContext):
    """The context of a session: ``__default__`` is the job of the environment, other pipelines are their part of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_shown = is_of_viz(kwargs.get("hook_manager"))
        loader = self.config_loader
        if not isinstance(loader, JobConfigLoader):
            return
        loader.project_path = self.project_path
        pipelines.update({name: whole for name, whole in _REGISTERED.items() if name in pipelines})
        if "__default__" in pipelines:  # not for `kedro run --pipelines NAME`
            pipelines["__default__"] = reduce(add, (pipelines[name] for name in loader.default_pipelines()))
        for name, part in _parts_of(loader.job).items():
            if name in pipelines:
                _REGISTERED.setdefault(name, pipelines[name])
                pipelines[name] = part
        for added in _added_to_ingestion(loader):
            for name in [name for name, whole in pipelines.items() if _selects(whole)]:
                _REGISTERED.setdefault(name, pipelines[name])
                pipelines[name] += _as_ingestion(added)
        if _has_published_reflections(loader):
            for name in [name for name, whole in pipelines.items() if _generates(whole)]:
                _REGISTERED.setdefault(name, pipelines[name])
                pipelines[name] = _with_published_reflections(pipelines[name])
        if "__default__" in pipelines and _EVALUATION in _namespaces(pipelines["__default__"]) and _holds_none(loader):
            loader.tell("subsampling.held_out_share is 0: nothing is held out, and the evaluation is left out")
            kept = [node for node in pipelines["__default__"].nodes if _namespace(node) != _EVALUATION]
            pipelines["__default__"] = Pipeline(kept)

    @property
    def catalog(self) -> CatalogProtocol[Any, Any]:
        """The catalog; kedro-viz, unless it runs hooks, then shows the rows of what is in it."""
        found = super().catalog
        if self._is_shown:
            from everytoken.configuration.viz_view import show  # not for `kedro run`

            whole = dict(pipelines)
            show(found, pipelines, str(self.config_loader["globals"]["data"]))
            for name in whole:
                _REGISTERED.setdefault(name, whole[name])
        return found


def _require_same_places(pipeline: Pipeline, catalog: CatalogProtocol[Any, Any]) -> None:
    """Check that what is read when it is made is read where it is made.

    Raises:
        ConfigurationError: an entry was given another place, and the one that reads it was not.
    """
    for name in sorted(name for name in pipeline.inputs() if name.endswith(WHEN_MADE)):
        made = name.removesuffix(WHEN_MADE)
        pair: list[Any] = [catalog.get(made), catalog.get(name)]
        places = [str(dataset._describe().get("filepath")) for dataset in pair]
        if places[0] != places[1]:
            raise ConfigurationError(
                f"the catalog makes {made} in {places[0]} and reads it from {places[1]}: give the dataset in {name} "
                "the same filepath, cache and credentials"
            )


class ConfigurationHook:
    """Checks ``globals.yml`` and the names of parameters when a command loads the project; and exclusions in a run."""

    def __init__(self) -> None:
        self._project = self._data = Path()

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Refuse unknown keys; say where results go."""
        loader = context.config_loader
        _refuse(set(loader["globals"]), GLOBALS, "globals.yml", loader)
        locks = str(loader["globals"].get("locks", _LOCKS[0]))
        _refuse({locks}, set(_LOCKS), "globals.yml: locks", loader)
        if locks == "trust":
            os.environ[TRUST_VARIABLE] = locks  # workers are other processes
        from everytoken import parameters  # not for `kedro --help`

        known = {name.removesuffix("Parameters").lower() for name in parameters.__all__}
        try:
            parameters_of_files = loader["parameters"]
        except InterpolationKeyError as error:  # globals are checked: what is left is the name of a template
            raise ConfigurationError(
                f"{str(error).splitlines()[0]} (environment {loader.env or 'local'!r}): globals.yml says model_size = "
                f"{loader['globals']['model_size']!r}; give one of the names in conf/base/parameters_sizes.yml"
            ) from error
        try:
            require_no_secrets(parameters_of_files)
        except SecretError as error:
            raise ConfigurationError(str(error)) from None
        named = {name for name in parameters_of_files if not name.startswith("_")}  # templates for others to name
        _refuse(named - _of_command_line(loader), known, "the parameters", loader)
        self._project, self._data = Path(context.project_path), Path(loader["globals"]["data"])
        logger.info("Results go to %s", (self._project / self._data).resolve())

    @hook_impl
    def before_pipeline_run(self, pipeline: Pipeline, catalog: DataCatalog) -> None:
        """Put the list of excluded documents that this run is given in force: later runs keep it."""
        _require_same_places(pipeline, catalog)
        listed = catalog.load(_SUBSAMPLING).exclude if any(map(_finds_excluded, pipeline.nodes)) else None
        if listed is not None:
            from everytoken.provenance.takedown import LISTS_FOLDER, remember

            remember(self._project / self._data / LISTS_FOLDER, listed, self._project)

    @hook_impl
    def before_node_run(self, node: Node, inputs: Mapping[str, Any]) -> None:
        """Stop a run that began before documents were taken down, before it brings them back."""
        if _finds_excluded(node):
            from everytoken.provenance.takedown import LISTS_FOLDER, require_in_force

            require_in_force(self._project / self._data / LISTS_FOLDER, inputs[_SUBSAMPLING].exclude)


class SystemErrorHook:
    """Ends a run that the operating system stopped with what to do about it, and redacts what kedro-viz keeps of it."""

    @hook_impl(wrapper=True)
    def on_node_error(self) -> Iterator[None]:
        """Redact the error that kedro-viz has just written."""
        try:
            return (yield)
        finally:
            _redact_events()

    @hook_impl(wrapper=True)
    def on_pipeline_error(self, error: Exception) -> Iterator[None]:
        """Say it in words, after all other hooks have looked at the error itself."""
        try:
            yield
        finally:
            _redact_events()
        if (told := explained(error)) is not None:
            raise SystemTrouble(told) from error


def _redact_events() -> None:
    """Write the events of the run again without secrets: kedro-viz keeps the text of each error as it is."""
    file = viz_file(EVENTS_FILE)
    if file is None or not file.exists():
        return
    try:
        events = json.loads(file.read_text(encoding="utf-8"))
        if (shown := Redaction().tree(events)) != events:
            write_text(file, json.dumps(shown, indent=2))
    except (OSError, ValueError) as error:  # the run has failed already, and of that it is told
        logger.warning("%s may show secrets, delete it: it cannot be redacted (%s)", file, error)


class ReplayHook:
    """Lets no run begin whose parameters are to be those of a release, and are not, or not that of its data folder."""

    def __init__(self) -> None:
        self._loader: JobConfigLoader | None = None
        self._project = Path()

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the parameters are from; whoever only looks is not stopped."""
        self._loader = context.config_loader if isinstance(context.config_loader, JobConfigLoader) else None
        self._project = Path(context.project_path)

    @hook_impl(tryfirst=True)
    def before_pipeline_run(self) -> None:
        """Look for the release, compare its checksums, and look for the note in the data folder."""
        release = None if self._loader is None else self._loader.replayed_release()
        if release is not None and self._loader is not None:
            from everytoken.provenance.replay import keep_to_release, require_whole

            require_whole(release)
            keep_to_release(self._project / self._loader["globals"]["data"], release)


def _parts_of(job: str) -> dict[str, Pipeline]:
    """Return the pipelines that a job is made of, by name; nothing where they are as they are registered."""
    if job == DEFAULT_JOB:
        return {}
    whole: Pipeline = import_module(f"everytoken.pipelines.{job}").create_pipeline()
    return {name: whole.only_nodes_with_namespaces([name]) for name in sorted(_namespaces(whole) - {job})}


def _namespaces(pipeline: Pipeline) -> set[str]:
    return {_namespace(node) for node in pipeline.nodes}


def _namespace(node: Node) -> str:
    return (node.namespace or "").split(".")[0]


def _holds_none(loader: JobConfigLoader) -> bool:
    """Return whether the parameters hold no document out; where they cannot be read, they are refused later."""
    try:
        subsampling = loader["parameters"].get("subsampling")
    except InterpolationKeyError:
        return False
    return isinstance(subsampling, Mapping) and subsampling.get("held_out_share") == 0


def _added_to_ingestion(loader: JobConfigLoader) -> list[str]:
    """Return the pipelines that the parameters of the ingestion ask for.

    Budgets in tokens are counted before documents are selected; languages are those of the documents that stay.
    """
    try:
        ingestion = loader["parameters"].get("ingestion") or {}
    except InterpolationKeyError:
        return []
    mixture = ingestion.get("mixture")
    counts_tokens = isinstance(mixture, Mapping) and mixture.get("unit") == "tokens"
    return [*(["counting"] if counts_tokens else []), *(["languages"] if ingestion.get("languages") else [])]


def _as_ingestion(name: str) -> Pipeline:
    """Return the nodes of a pipeline as a part of the ingestion: they lie between nodes of it, or follow them."""
    made: Pipeline = import_module(f"everytoken.pipelines.{name}").create_pipeline()
    return Pipeline(made, namespace="ingestion", prefix_datasets_with_namespace=False)


def _has_published_reflections(loader: JobConfigLoader) -> bool:
    """Return whether reflections are taken from what somebody published, and no generator writes them."""
    try:
        return bool((loader["parameters"].get("reflection") or {}).get("published"))
    except InterpolationKeyError:
        return False


def _generates(pipeline: Pipeline) -> bool:
    return any(_REPLIES in node.outputs for node in pipeline.nodes)


def _with_published_reflections(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline whose columns of reflections are published ones, and no replies of a generator."""
    made: Pipeline = import_module("everytoken.pipelines.published_reflections").create_pipeline()
    others = [node for node in pipeline.nodes if not {_REPLIES, _COLUMNS} & set(node.outputs)]
    return Pipeline(others) + Pipeline(made, namespace=_REFLECTION, prefix_datasets_with_namespace=False)


def _selects(pipeline: Pipeline) -> bool:
    return any("selection" in node.outputs for node in pipeline.nodes)


def _finds_excluded(node: Node) -> bool:
    return "exclusions" in node.outputs and _SUBSAMPLING in node.inputs


def _of_command_line(loader: AbstractConfigLoader) -> set[str]:
    """Return the names set by ``--params``, which the tracking hook checks against what the run reads."""
    return set(loader.runtime_params or {})


def _require_sources_to_take_away(below: Mapping[str, Any], own: Mapping[str, Any], place: str) -> None:
    """Refuse null for a source that there is not: a misspelled name would leave the one that was meant in force."""
    known, given = ((one.get("ingestion") or {}).get("sources") or {} for one in (below, own))
    for name in given:
        if given[name] is None and name not in known:
            raise ConfigurationError(
                f"{place} takes the source {name!r} away (ingestion.sources.{name}: null), and there is no such source "
                f"to take away, only {sorted(known)}. Correct the name, or remove the line."
            )


def _unknown(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves that are ``???``, not looked up yet: OmegaConf would drop them and keep the value of base."""
    branches = {name: _unknown(value) for name, value in given.items() if isinstance(value, Mapping)}
    leaves = {name: value for name, value in given.items() if isinstance(value, str) and value == "???"}
    return {**{name: branch for name, branch in branches.items() if branch}, **leaves}


def _merged(values: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with the leaves of ``over`` in the place of theirs."""
    both = {
        name: _merged(values[name], value) for name, value in over.items() if _are_mappings(values.get(name), value)
    }
    return {**values, **over, **both}


def _are_mappings(*values: Any) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def _refuse(found: set[str], known: set[str], where: str, loader: AbstractConfigLoader) -> None:
    if unknown := sorted(found - known):
        raise ConfigurationError(
            f"{where} of environment {loader.env or 'local'!r} (conf/) has {', '.join(unknown)}, which nothing reads. "
            f"Known are {', '.join(sorted(known))}: correct the name or remove the entry."
        )
