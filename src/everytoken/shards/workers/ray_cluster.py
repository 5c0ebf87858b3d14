"""The engine ``ray``: tasks on the machines of a Ray cluster.

The caller connects once in its process, and keeps as many tasks with the cluster as the engine has workers. A task
runs in a process of its own kind, which has no thread of another task. When this process or its machine is lost, the
task runs a second time; a second loss is a `Failure`. When the caller stops, its tasks are killed: outputs are atomic,
so there is nothing to wait for. When the caller itself is killed, Ray ends the processes of its job.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everytoken.shards.errors import Failure, ShardsError
from everytoken.shards.workers.attempts import ONE_CORE, attempt


class RayOptions(BaseModel):
    """What ``globals.yml: engine`` says for ``kind: ray``.

    Attributes:
        address: ``local`` starts a cluster on this machine, with a core for each worker; ``auto`` is the cluster that
            runs here, and ``host:port`` another one.
        workers: tasks at a time.
        cpus_per_task: cores that Ray reserves for a task.
        gpus_per_task: devices that Ray reserves for a task, and shows it alone (``CUDA_VISIBLE_DEVICES``).
        memory_gb: memory that Ray reserves for a task.
        resources: further resources of a task, by the names that the nodes of the cluster give them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    address: str
    workers: int = Field(ge=1)
    cpus_per_task: int = Field(1, ge=1)
    gpus_per_task: int = Field(0, ge=0)
    memory_gb: float | None = Field(None, gt=0)
    resources: dict[str, float] = {}


def ray_engine(**options: Any) -> RayTasks:
    """Return the engine of these options (see `RayOptions`).

    Raises:
        ShardsError: an option is unknown or has no right value, or ray is not installed.
    """
    try:
        read = RayOptions(**options)
    except ValidationError as error:
        told = "; ".join(f"engine.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ShardsError(f"globals.yml or catalog, engine of kind 'ray': {told}. See docs/cluster.md") from None
    if find_spec("ray") is None:
        raise ShardsError("engine.kind is 'ray', which needs Ray: pip install 'everytoken[ray]'")
    return RayTasks(read)


@dataclass(frozen=True)
class RayTasks:
    """Runs tasks on a Ray cluster."""

    options: RayOptions

    def __str__(self) -> str:
        return f"Ray(workers={self.options.workers})"

    @property
    def workers(self) -> int:
        """How many tasks run at a time."""
        return self.options.workers

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        """Run all tasks.

        Raises:
            ShardsError: no cluster answers, or none of its nodes has what a task needs.
        """
        if not tasks:
            return
        ray = _Connection.to(self.options)
        self._check_room(ray)
        remote = ray.remote(**self._reserved())(_work)
        given = ray.put(pickle.dumps(function))
        waiting, losses = deque(range(len(tasks))), Counter[int]()
        flying: dict[Any, int] = {}
        try:
            while waiting or flying:
                while waiting and len(flying) < self.workers:
                    number = waiting.popleft()
                    flying[remote.remote(given, pickle.dumps(tasks[number]), str(Path.cwd()))] = number
                done, _ = ray.wait(list(flying))
                for reference in done:
                    number = flying.pop(reference)
                    try:
                        outcome = pickle.loads(ray.get(reference))
                    except ray.exceptions.RayError as lost:
                        losses[number] += 1
                        if losses[number] == 1:
                            waiting.append(number)
                            continue
                        death = "its process was lost twice (killed? out of memory? its machine gone?)"
                        outcome = Failure(death, f"{death}\n{lost}")
                    yield tasks[number], outcome
        finally:
            for reference in flying:
                with suppress(ray.exceptions.RayError):
                    ray.cancel(reference, force=True)

    def _reserved(self) -> dict[str, Any]:
        """Return what Ray keeps free for a task; a task is tried again by the caller, who counts."""
        given = self.options
        memory = {} if given.memory_gb is None else {"memory": int(given.memory_gb * 1024**3)}
        return {
            "num_cpus": given.cpus_per_task,
            "num_gpus": given.gpus_per_task,
            "resources": given.resources,
            "max_retries": 0,
            **memory,
        }

    def _check_room(self, ray: Any) -> None:
        """Refuse tasks that no node has room for: Ray would let them wait for ever."""
        wanted = {
            "CPU": self.options.cpus_per_task,
            "GPU": self.options.gpus_per_task,
            "memory": (self.options.memory_gb or 0) * 1024**3,
            **self.options.resources,
        }
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= count for name, count in wanted.items()) for node in nodes):
            has = "; ".join(", ".join(f"{name} {node.get(name, 0):g}" for name in wanted) for node in nodes)
            raise ShardsError(
                f"no node of the Ray cluster has what a task reserves. The nodes have: {has}. Lower cpus_per_task, "
                "gpus_per_task, memory_gb or resources of the engine (globals.yml or catalog)"
            )


class _Connection:
    """The cluster that this process is connected to: Ray knows one at a time."""

    made: ClassVar[tuple[str, int] | None] = None

    @classmethod
    def to(cls, options: RayOptions) -> Any:
        """Return ray, connected."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        wanted = (options.address, options.workers * options.cpus_per_task if options.address == "local" else 0)
        if cls.made == wanted and ray.is_initialized():
            return ray
        if ray.is_initialized():
            ray.shutdown()
        options_of_init: dict[str, Any] = {"address": options.address, "log_to_driver": False, "logging_level": "ERROR"}
        if options.address == "local":
            gpus = options.gpus_per_task * options.workers
            options_of_init |= {"num_cpus": wanted[1], "num_gpus": gpus, "include_dashboard": False}
            options_of_init["_node_ip_address"] = "127.0.0.1"
        try:
            with _own_answer_to_sigterm():
                ray.init(**options_of_init)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ShardsError(
                f"no Ray cluster answers at engine.address: {reason}. Start one with `ray start --head`, correct the "
                "address (globals.yml or catalog), or give engine.address: local"
            ) from error
        cls.made = wanted
        return ray


@contextmanager
def _own_answer_to_sigterm() -> Iterator[None]:
    """Keep this process's own handler: Ray puts another one in its place."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _work(function: bytes, task: bytes, folder: str) -> bytes:
    """Run one task in a process of Ray, in the folder of the caller."""
    os.chdir(folder)
    os.environ.update(ONE_CORE)
    return pickle.dumps(attempt(pickle.loads(function), pickle.loads(task), ends_run=()))
