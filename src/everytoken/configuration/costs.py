"""What each stage took when it last made something: time, cores, GPUs and memory, as a table next to the reports.

A stage that finds all of its data made keeps its row. So the table says what the data cost, and not how long the
newest run took to find that nothing was to be done. A run that is killed leaves no row of the stage that it was in:
the row of the run that resumes it covers what that run did.
"""

from __future__ import annotations

import csv
import io
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from kedro.framework.context import KedroContext
from kedro.framework.hooks import hook_impl
from kedro.io import CatalogProtocol
from kedro.pipeline.node import Node
from pydantic import BaseModel

from everytoken.datasets import DatasetPaths
from everytoken.shards import LEDGER_FILE, ShardsError, write_text

COSTS_FILE = "08_reporting/stage_costs.csv"
_SAMPLED_EVERY = 0.25  # seconds
_PROCESSES = Path("/proc")


@dataclass(frozen=True)
class StageCost:
    """What a stage took.

    Attributes:
        seconds: of the clock on the wall.
        cpu_seconds: of all processes of the run, summed over cores; None where the system has no ``/proc``.
        gpu_seconds: ``seconds`` times the GPUs that the parameters of the stage name; 0 where they name none.
        peak_bytes: most resident memory of all processes of the run together, sampled four times a second.
    """

    stage: str
    seconds: float
    cpu_seconds: float | None
    gpu_seconds: float
    peak_bytes: int | None


class CostsHook:
    """Measures the nodes of a run that make stored data, and writes the table after each."""

    def __init__(self) -> None:
        self._file = Path()
        self._paths: DatasetPaths = DatasetPaths({})
        self._catalog: CatalogProtocol[Any, Any] | None = None
        self._begun: _Begun | None = None

    @hook_impl
    def after_context_created(self, context: KedroContext) -> None:
        """Remember where the data and the table are."""
        loader, project = context.config_loader, Path(context.project_path)
        self._file = project / loader["globals"]["data"] / COSTS_FILE
        self._paths = DatasetPaths(loader["catalog"], project)

    @hook_impl
    def after_catalog_created(self, catalog: CatalogProtocol[Any, Any]) -> None:
        """Remember the datasets."""
        self._catalog = catalog

    @hook_impl
    def before_node_run(self, node: Node, inputs: Mapping[str, Any]) -> None:
        """Begin to measure."""
        self._stop()
        states = [state for name in node.outputs if (state := self._state_of(name)) is not None]
        if states:
            self._begun = _Begun(states, gpus_of(inputs.values()))

    @hook_impl
    def after_dataset_saved(self, node: Node) -> None:
        """Write the row of a stage when it has made something; its work happens while its outputs are saved."""
        if self._begun is not None and self._begun.has_made():
            costs = {one.stage: one for one in read_costs(self._file)}
            costs[node.name] = self._begun.cost(node.name)
            _write(self._file, costs.values())

    @hook_impl
    def after_pipeline_run(self) -> None:
        """Measure no longer."""
        self._stop()

    @hook_impl
    def on_pipeline_error(self) -> None:
        """Measure no longer."""
        self._stop()

    def _stop(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.stop()

    def _state_of(self, name: str) -> Callable[[], object] | None:
        """Return what gives the state of a dataset; None: it is a single file, or only in memory."""
        if self._catalog is not None and self._paths.is_remote(name):
            return partial(_state_behind, self._catalog.get(name))
        try:
            path = self._paths[name]
        except KeyError:
            return None
        return None if path.suffix else partial(_state, path / LEDGER_FILE)


class _Begun:
    """A stage that has begun, and what its processes have taken since."""

    def __init__(self, states: Sequence[Callable[[], object]], gpus: int) -> None:
        self._states, self._gpus = states, gpus
        self._before = [state() for state in states]
        self._clock, self._taken = time.monotonic(), _processes()
        self._peak = 0 if self._taken is None else self._taken.resident
        self._ended = threading.Event()
        if self._taken is not None:
            threading.Thread(target=self._sample, daemon=True, name="memory of a stage").start()

    def has_made(self) -> bool:
        """Return whether a ledger is another one than before."""
        return [state() for state in self._states] != self._before

    def cost(self, stage: str) -> StageCost:
        """Return what it took until now."""
        seconds, now = time.monotonic() - self._clock, _processes()
        cpu = None if now is None or self._taken is None else max(0.0, now.cpu_seconds - self._taken.cpu_seconds)
        peak = None if now is None else max(self._peak, now.resident)
        rounded = None if cpu is None else round(cpu, 2)
        return StageCost(stage, round(seconds, 2), rounded, round(seconds * self._gpus, 2), peak)

    def stop(self) -> None:
        """Sample the memory no longer."""
        self._ended.set()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLED_EVERY):
            if (now := _processes()) is not None:
                self._peak = max(self._peak, now.resident)


def _state(file: Path) -> tuple[int, ...]:
    """Return what tells a file from one that was written later."""
    try:
        held = file.stat()
    except FileNotFoundError:
        return ()
    return held.st_ino, held.st_mtime_ns, held.st_size


def _state_behind(dataset: Any) -> object:
    try:
        return dataset.state()
    except ShardsError:  # a storage out of reach: the run itself says so
        return None


def gpus_of(values: Iterable[Any]) -> int:
    """Return how many GPUs the parameters of a stage name: a process of each distribution, or 1; 0 of none."""
    return max((_gpus_of_model(value) for value in values if isinstance(value, BaseModel)), default=0)


def _gpus_of_model(model: BaseModel) -> int:
    inner = max((_gpus_of_model(value) for _, value in model if isinstance(value, BaseModel)), default=0)
    if str(getattr(model, "device", "")).partition(":")[0] != "cuda":
        return inner
    return max(inner, 1, (getattr(model, "processes", 1) or 1) * (getattr(model, "nodes", 1) or 1))


class _Processes(NamedTuple):
    """Of this process and all that descend from it: seconds of all cores until now, and resident bytes."""

    cpu_seconds: float
    resident: int


def _processes() -> _Processes | None:
    """Return what Linux counts of this process and its descendants; None where there is no ``/proc``.

    Workers are children of a server that this process starts. A process counts its ended children as soon as it has
    waited for them, so nothing is lost when workers end.
    """
    counted: dict[int, tuple[int, int, int]] = {}
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            line = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended
            continue
        told = line.rpartition(")")[2].split()  # from the third field of proc(5) on
        counted[int(folder.name)] = (int(told[1]), sum(map(int, told[11:15])), int(told[21]))
    if os.getpid() not in counted:
        return None
    children: dict[int, list[int]] = {}
    for process, (parent, _, _) in counted.items():
        children.setdefault(parent, []).append(process)
    own, waiting = [0, 0], [os.getpid()]
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, ())
        own[0] += counted[process][1]
        own[1] += counted[process][2]
    return _Processes(own[0] / os.sysconf("SC_CLK_TCK"), own[1] * os.sysconf("SC_PAGE_SIZE"))


def read_costs(file: Path) -> list[StageCost]:
    """Return the rows of a table; none where there is none."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [_row(line) for line in csv.DictReader(lines)]


def _row(line: Mapping[str, str]) -> StageCost:
    cpu, peak = line["cpu_seconds"], line["peak_bytes"]
    return StageCost(
        line["stage"],
        float(line["seconds"]),
        float(cpu) if cpu else None,
        float(line["gpu_seconds"]),
        int(peak) if peak else None,
    )


def _write(file: Path, costs: Iterable[StageCost]) -> None:
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(StageCost)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(one) for one in costs)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text.getvalue())
