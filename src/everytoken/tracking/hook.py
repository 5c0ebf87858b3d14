"""The Kedro hook: one MLflow run for each ``kedro run``, with all that is needed to understand and compare it.

The run is opened before the first node with every parameter that its nodes read, so a run that fails at once
still shows the seeds of its later steps. Each dataset is recorded when it is read or written, by name also as
metrics or artifact:

=====================================  ==========================================================================
``<x>_metrics``                        (nested) dict of numbers: metrics ``x.key``, of those that ``mlflow.yml`` lists;
                                       its file: ``reports/``
``<x>_history``                        DataFrame or dict of lists with ``step``: metric series ``x.column``; what is
                                       announced while a node of pipeline x runs (`everytoken.measurements`) is
                                       recorded at once, under the same keys
``*_report *_samples *_metadata``      its file: artifacts ``reports/ samples/ metadata/``
a Plotly figure                        ``figures.html`` (works offline) and ``figures/<name>.json``
=====================================  ==========================================================================

What cannot be recorded (a metric that is no number) is an error and fails the run; when a node has failed already it is
a note on that error. A store that is lost during the run is neither: see `everytoken.tracking.delivery`.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Collection, Generator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog, MemoryDataset
from kedro.pipeline import Node, Pipeline
from pydantic import ValidationError

from everytoken.measurements import MetricRows, listening
from everytoken.redaction import redact_output, redacted, without_secrets
from everytoken.tracking import environment
from everytoken.tracking.database import SQLITE
from everytoken.tracking.delivery import deliver
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.mlflow_keys import flat_metrics, leaves, metric_points, plain, shorten
from everytoken.tracking.opening import TrackingSettings, open_store
from everytoken.tracking.run import NOTHING, TrackedRun, contents, is_figure, local_path, state_of
from everytoken.tracking.store import DISCARDED, mlflow_environment
from everytoken.tracking.system import system_metrics

logger = logging.getLogger(__name__)

_SECONDS_FOR_EARLIER_RUNS = 20.0
_PREFIX = "params:"
_REFUSED_RUNNERS = {
    "ParallelRunner": "in processes of their own, which this run cannot see",
    "ThreadRunner": "at once that share generators and torch's threads; curves would be recorded for the wrong one",
}
_FOLDERS = {"report": "reports", "samples": "samples", "metadata": "metadata"}
_REPORTS = {*_FOLDERS, "metrics", "history"}
_MOST_IN_NAME = 3  # parameters
_NAME_LIMIT = 40  # characters of a value
_SELECTION = (
    *("tags", "from_nodes", "to_nodes", "node_names"),
    *("from_inputs", "to_outputs", "load_versions", "namespaces"),
)


class TrackingHook:
    """Record every run: one instance in ``HOOKS``, and ``mlflow`` in the config patterns of ``settings.py``."""

    _context: KedroContext  # Kedro creates it before it runs
    _catalog: DataCatalog

    def __init__(self) -> None:
        redact_output()
        self._run: TrackedRun | None = None
        self._running: str | None = None  # the pipeline of the node that runs
        self._while_open = ExitStack()
        self._metrics: tuple[str, ...] | None = None
        self._changed: dict[str, bool] = {}  # of each dataset that was saved, whether it was made
        self._held: dict[str, str] = {}  # digest of each dataset
        self._before: object = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember the project; nothing is opened, as most Kedro commands run nothing."""
        self._context = context

    @hook_impl(wrapper=True)
    def before_pipeline_run(
        self, run_params: dict[str, Any], pipeline: Pipeline, catalog: DataCatalog
    ) -> Generator[None, Any, Any]:
        """Refuse what cannot be recorded, or where, before anything happens; open the run when other hooks agreed."""
        context = self._context
        refuse_unread(run_params["runtime_params"], pipeline, getattr(context.config_loader, "read_by_every_run", ()))
        _refuse_options(run_params, pipeline, catalog)
        project, settings = context.project_path, tracking_settings(context)
        if not settings.uri(project).startswith(SQLITE):  # opening a file may write to it
            open_store(project, settings)
        result = yield
        self._close("KILLED", "interrupted; the process went on to another run")  # Ctrl-C in a notebook
        self._catalog = catalog
        self._open(settings, run_params, pipeline, catalog)
        return result

    @hook_impl
    def before_node_run(self, node: Node) -> None:
        """Remember whose history is announced from now on; without a namespace it is nobody's."""
        self._running = node.namespace

    @hook_impl
    def after_dataset_loaded(self, dataset_name: str) -> None:
        """Record an input, unless this run has made it."""
        self._record(dataset_name, "input")

    @hook_impl
    def before_dataset_saved(self, dataset_name: str) -> None:
        """Remember what the dataset was, to know whether anything is made."""
        self._before = state_of(self._catalog.get(dataset_name))

    @hook_impl
    def after_dataset_saved(self, dataset_name: str, data: Any) -> None:
        """Record an output, and by its name as metrics, series or artifact."""
        dataset = self._catalog.get(dataset_name)
        is_changed = not isinstance(dataset, MemoryDataset) and state_of(dataset) != self._before
        if is_changed or hasattr(dataset, "state"):
            self._changed[dataset_name] = is_changed
        if isinstance(data, list | dict) and not data:  # a report on what is switched off
            return
        run, dataset = self._record(dataset_name, "output")
        stem, _, kind = dataset_name.rpartition("_")
        if is_figure(data):
            run.log_figure(dataset_name, data)
        elif kind == "metrics":
            values = flat_metrics(stem, data, dataset_name)
            shown = values if self._metrics is None else {key: values[key] for key in self._metrics if key in values}
            run.log_metrics(shown, dataset_name)
            if self._metrics is not None and (path := local_path(dataset)) is not None:
                run.log_file(path, f"reports/{dataset_name}{path.suffix}")
        elif kind == "history":
            run.log_series(metric_points(stem, data, dataset_name), dataset_name)
        elif kind in _FOLDERS and (path := local_path(dataset)) is not None:
            run.log_file(path, f"{_FOLDERS[kind]}/{dataset_name}{path.suffix}")
        if hasattr(dataset, "models") and self._changed[dataset_name]:
            held_out = [held for held in self._held.items() if held[0].startswith("held_out_documents")]
            for model in dataset.models():
                run.log_model(model, held_out[0] if held_out else ("", ""))

    @hook_impl(wrapper=True)
    def after_pipeline_run(self) -> Generator[None, Any, Any]:
        """End the run as FINISHED, or as FAILED if another hook fails here."""
        try:
            result = yield
        except Exception as error:
            self._fail(error)
            raise
        if self._changed and not any(self._changed.values()):
            self._close(DISCARDED)
        else:
            self._close("FINISHED")
        return result

    @hook_impl
    def on_pipeline_error(self, error: Exception) -> None:
        """End the run as FAILED, with the traceback."""
        self._fail(error)

    def _open(
        self, settings: TrackingSettings, run_params: dict[str, Any], pipeline: Pipeline, catalog: DataCatalog
    ) -> None:
        context, tree = self._context, parameters_read(pipeline, catalog)
        self._metrics = settings.metrics
        self._changed, self._held = {}, {}
        store = open_store(context.project_path, settings)
        self._while_open.enter_context(environment.exit_watched(partial(self._close, "KILLED")))
        try:
            self._while_open.enter_context(mlflow_environment())
            for delivery in deliver(store, _SECONDS_FOR_EARLIER_RUNS):
                logger.warning("Tracking: %s", delivery)
            tags = _tags(context, run_params)
            if seeds := [f"{'.'.join(path)}={value}" for path, value in leaves(tree) if path[-1] == "seed"]:
                tags["seed"] = ", ".join(seeds)
            self._run = TrackedRun(store, _run_name(context, run_params), tags)
            logger.info("Run %s is recorded in %s", self._run.id, store.shown)
            self._run.log_parameters(tree)
            installed = "".join(f"{package}=={version}\n" for package, version in environment.packages().items())
            self._run.log_text(installed, "requirements.txt")
            self._run.require_recorded()
            self._while_open.enter_context(listening(self._announced))
            if settings.system_metrics:
                self._while_open.enter_context(system_metrics(self._run))
        except Exception as error:  # Kedro calls on_pipeline_error only for what its runner raises
            self._fail(error)
            raise

    def _announced(self, rows: MetricRows) -> None:
        if self._run is not None and self._running is not None:
            self._changed["announced"] = True
            owner = f"{self._running}_history"
            self._run.log_series(metric_points(self._running, rows, owner), owner)

    def _record(self, name: str, context: str) -> tuple[TrackedRun, Any]:
        assert self._run is not None, "datasets are loaded and saved only within a run"
        dataset = self._catalog.get(name)
        if name == "parameters" or name.startswith(_PREFIX) or isinstance(dataset, MemoryDataset):
            return self._run, dataset
        held = contents(dataset)
        if held is None:
            logger.warning("Dataset %s (%s) has neither ledger nor local file: recorded by name", name, dataset)
            self._run.set_tag(f"without_digest.{name}", type(dataset).__name__)
        elif held is not NOTHING:
            is_data = name.rpartition("_")[2] not in _REPORTS
            self._run.log_dataset(name, held, context, self._source(dataset), is_data=is_data)
            self._held[name] = held.digest
        return self._run, dataset

    def _source(self, dataset: Any) -> str:
        """Return where the dataset lies, as a URL, or within the project as a relative path: it may be moved."""
        said = str(dataset._describe().get("filepath", type(dataset).__name__))
        if (path := local_path(dataset)) is None and "://" in said:
            return said
        path, project = path or Path(said), self._context.project_path
        return str(path.relative_to(project) if path.is_relative_to(project) else path)

    def _fail(self, error: Exception) -> None:
        """End the run as FAILED; what goes wrong in that is a note on ``error``, which is what the user has to see."""
        run = self._run
        try:
            if run is not None:
                run.log_error(error)
        except Exception as second:
            error.add_note(f"Tracking failed as well, the traceback is not recorded: {second!r}")
        try:
            self._close("FAILED")
        except Exception as second:
            error.add_note(f"Tracking failed as well, run {run and run.id} may look alive: {second!r}")

    def _close(self, status: str, reason: str = "") -> None:
        """End the open run, if there is one, and leave no trace of it in the process."""
        run, self._run = self._run, None
        with self._while_open:
            if run is None:
                return
            if reason:
                run.set_tag("error", reason)
            run.end(status)
            if status == DISCARDED:
                logger.info("Nothing was made: MLflow has no run of it")


def tracking_settings(context: KedroContext) -> TrackingSettings:
    """Return ``mlflow.yml`` of the environment."""
    try:
        return TrackingSettings.model_validate(context.config_loader["mlflow"])
    except ValidationError as error:
        raise TrackingError(f"mlflow.yml: {without_secrets(error)}") from None


def _refuse_options(run_params: Mapping[str, Any], pipeline: Pipeline, catalog: DataCatalog) -> None:
    """Refuse options of Kedro with which a run would not be what is recorded."""
    for runner, why in _REFUSED_RUNNERS.items():
        if runner in run_params["runner"]:
            raise TrackingError(
                f"{runner} runs nodes {why}. Parallel work belongs inside a node, over parts: use the default runner."
            )
    if run_params.get("only_missing_outputs"):
        raise TrackingError(
            "--only-missing-outputs takes any output that exists for the one that the parameters give, which would be "
            "recorded though they made nothing. Leave it out: only what is missing or other is made."
        )
    for name in run_params.get("load_versions") or ():
        if name not in pipeline.inputs() or getattr(catalog.get(name), "_version", None) is None:
            raise TrackingError(
                f"--load-versions names {name}, which this run does not read or which has no versions. Leave it out."
            )


def _environment_of(context: KedroContext, run_params: Mapping[str, Any]) -> str:
    return str(run_params["env"] or getattr(context.config_loader, "default_run_env", None) or "base")


def _run_name(context: KedroContext, run_params: Mapping[str, Any]) -> str:
    """Return ``ENV · JOB · key=value``: what a list of runs shows of the parameters that the command line gave."""
    job = getattr(context.config_loader, "job", "__default__")
    given = leaves(plain(run_params["runtime_params"] or {}))
    values = [f"{'.'.join(path)}={shorten(redacted(str(value)), _NAME_LIMIT)}" for path, value in given]
    shown, more = values[:_MOST_IN_NAME], len(values) - _MOST_IN_NAME
    pipelines = "+".join(sorted(run_params["pipeline_names"] or [job]))
    parts = (_environment_of(context, run_params), pipelines, ", ".join([*shown, *[f"and {more} more"] * (more > 0)]))
    return " · ".join(filter(None, parts))


def _tags(context: KedroContext, run_params: Mapping[str, Any]) -> dict[str, str]:
    command, installed = environment.command_line(), environment.packages()
    git = environment.git_state(context.project_path)
    return {
        "mlflow.user": environment.user_name(),
        "mlflow.source.name": command,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": git.commit,
        **{f"git.{key}": value for key, value in git._asdict().items() if value},
        "kedro.command": command,
        "environment": _environment_of(context, run_params),
        "kedro.env": _environment_of(context, run_params),
        "kedro.pipelines": ",".join(sorted(run_params["pipeline_names"] or ["__default__"])),
        "kedro.run_id": run_params["run_id"],
        "kedro.runtime_params": json.dumps(plain(run_params["runtime_params"])),
        "kedro.selection": json.dumps({key: plain(run_params[key]) for key in _SELECTION if run_params[key]}),
        "version.python": platform.python_version(),
        **{f"version.{name}": installed[name] for name in environment.KEY_PACKAGES if name in installed},
        **environment.machine(),
        **getattr(context.config_loader, "run_tags", dict)(),
    }


def refuse_unread(
    runtime_params: Mapping[str, Any] | None, pipeline: Pipeline, read_by_every_run: Collection[str] = ()
) -> None:
    """Check that every runtime parameter lies within one that a node of ``pipeline`` reads.

    Kedro takes ``--params subsamplng.seed=7`` without a word and runs with the old seed. Names inside a typed model
    are refused by the model itself.

    Args:
        read_by_every_run: names that are read also where no node does, as other parameters follow from them.

    Raises:
        TrackingError: naming those that do not, and all that is read.
    """
    if not runtime_params or _reads_all(pipeline):
        return
    read = sorted({*_names(pipeline), *read_by_every_run})
    given = [".".join(path) for path, _ in leaves(runtime_params)]
    unread = [path for path in given if not any(f"{path}.".startswith(f"{name}.") for name in read)]
    if unread:
        raise TrackingError(
            f"--params sets {', '.join(unread)}, which no node of this run reads. "
            f"It reads: {', '.join(read) or 'nothing'}. Correct the name, or run the pipeline that reads it."
        )


def parameters_read(pipeline: Pipeline, catalog: DataCatalog) -> dict[str, Any]:
    """Return every parameter that a node of ``pipeline`` reads, as one plain nested dict."""
    if _reads_all(pipeline):
        return dict(plain(catalog["parameters"].load()))
    tree: dict[str, Any] = {}
    for name in _names(pipeline):  # sorted: "training" before "training.lr", which lies within it
        *parents, last = name.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch.setdefault(last, plain(catalog[_PREFIX + name].load(), tuple(name.split("."))))
    return tree


def _names(pipeline: Pipeline) -> list[str]:
    return sorted(name.removeprefix(_PREFIX) for name in pipeline.inputs() if name.startswith(_PREFIX))


def _reads_all(pipeline: Pipeline) -> bool:
    return "parameters" in pipeline.inputs()
