"""Several processes that train one model, on torch's own engine: DistributedDataParallel or FSDP2.

Process r of R reads rows [r B / R, (r + 1) B / R) of the global batch of B, so the batch does not depend on R. The
gradient is the sum over processes of the gradients of ``loss sum of my rows / counted predictions of the whole batch``.

Tensors are gathered to, and spread from, the process of rank 0, which alone writes and reads checkpoints, unless these
are in shards (`everytoken.training.checkpoints.sharded`). They carry the names of the plain model, so any number of
processes with either strategy can go on from any.

Processes send each other tensors alone, whose shapes both know: what arrives is never unpickled, as torch's functions
for objects and for loading state dicts would do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from everytoken.models import LanguageModel
from everytoken.training.checkpoints import check_tensors, model_tensors
from everytoken.training.errors import TrainingError
from everytoken.training.parameters import Device, DistributionParameters
from everytoken.training.step.objective import Objective
from everytoken.training.step.optimizer_state import (
    begin_state,
    flat_state,
    load_optimizer_tensors,
    optimizer_tensors,
)

# one process writes checkpoints and samples while the others wait
_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True)
class Ranks:
    """Who trains: this process's ``rank`` among ``size``, how they share the model, and where they compute."""

    rank: int
    size: int
    strategy: Literal["alone", "ddp", "fsdp"]
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that reads and writes for all."""
        return self.rank == 0

    @property
    def gradient_divisor(self) -> float:
        """What the gradients of all processes are divided by when they are added: DDP takes the mean."""
        return float(self.size) if self.strategy == "ddp" else 1.0

    def rows(self, batch_size: int) -> slice:
        """Return which rows of a global batch this process reads."""
        if batch_size % self.size:
            raise TrainingError(
                f"training.batch_size = {batch_size} is not a multiple of the {self.size} processes; each reads as "
                "many rows: change distribution.processes, or the batch (which makes another run)"
            )
        each = batch_size // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def to_device(self, tensor: Tensor) -> Tensor:
        """Return the tensor on this process's device; the copy does not wait."""
        return to_device(tensor, self.device)

    def share(self, objective: Objective) -> nn.Module:
        """Return the module to train with; the objective's model has the values of rank 0 afterwards.

        DDP keeps the model whole in each process. FSDP2 makes its parameters shards, layer by layer; rank 0 alone needs
        to have them in memory before. The result's forward pass is the one to call.
        """
        if self.strategy == "alone":
            return objective.to(self.device)
        if self.strategy == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            devices = None if self.device.type == "cpu" else [self.device]
            # all change buffers alike: they are not sent before every forward pass; torch 2.13 has another name
            names = signature(DistributedDataParallel).parameters
            options: dict[str, Any] = {
                "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False
            }
            return DistributedDataParallel(objective.to(self.device), devices, gradient_as_bucket_view=True, **options)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        model = objective.model
        whole: dict[str, Any] = {**model_tensors(model)} if self.first else {}
        mesh = init_device_mesh(self.device.type, (self.size,))
        for part in (*model.layers(), objective):
            fully_shard(part, mesh=mesh)
            # plain sums: the loss is divided already, and gloo has no other
            cast(FSDPModule, part).set_gradient_divide_factor(1.0)
            cast(FSDPModule, part).set_force_sum_reduction_for_comms(True)
        self._spread(whole, model_tensors(model), "the model of rank 0")
        return objective

    def settle(self, module: nn.Module, rows: int, seq_length: int) -> None:
        """Do a backward pass whose gradient is thrown away, where the first one changes how gradients are added.

        DDP orders its buckets anew after its first backward pass. More than two floats add up to other bits in another
        order, so without this the first step after a restart would differ from the same step of a run that went on.
        """
        if self.strategy != "ddp":
            return
        tokens = torch.zeros(rows, seq_length + 1, dtype=torch.int64, device=self.device)
        module(tokens, tokens[:, 1:] == 0, None).sum().backward()
        module.zero_grad(set_to_none=True)

    def accumulating(self, module: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch.

        DDP adds gradients up over processes after the last one only; FSDP2 after each, so that no process ever holds
        a whole gradient.
        """
        if self.strategy == "ddp" and not last:
            return cast(AbstractContextManager[Any], cast(Any, module).no_sync())
        return nullcontext()

    def add(self, tensor: Tensor) -> Callable[[], None]:
        """Begin to add a tensor over all processes, in place; call the result before using it."""
        if self.size == 1:
            return _nothing
        work = dist.all_reduce(tensor, async_op=True)
        waiting = [work]

        def known() -> None:
            while waiting:
                waiting.pop().wait()

        return known

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        total = tensor.clone()
        self.add(total)()
        return total

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor that may be in shards as a plain one, in every process."""
        return cast(Tensor, cast(Any, tensor).full_tensor()) if hasattr(tensor, "full_tensor") else tensor

    def evaluate(self, module: nn.Module, *arguments: Tensor | None) -> Tensor:
        """Return the losses of single predictions (see `Objective`); every process must call it equally often."""
        with torch.no_grad():
            inner = module.module if self.strategy == "ddp" else module
            losses: Tensor = cast(Any, inner)(*arguments, each=True)
            if self.strategy == "fsdp":
                cast(Any, inner).reshard()  # a backward pass would have done it
            return losses

    def gather(self, model: LanguageModel, optimizer: torch.optim.AdamW | None) -> tuple[dict[str, Tensor], ...]:
        """Return the model's tensors and, for an optimiser, its own, whole on rank 0 and empty elsewhere.

        Every process must call it.
        """
        if self.strategy == "fsdp":
            from torch.distributed.checkpoint.state_dict import (
                StateDictOptions,
                get_model_state_dict,
                get_optimizer_state_dict,
            )

            options = StateDictOptions(full_state_dict=True, strict=True, cpu_offload=True)
            tensors = [cast(dict[str, Tensor], get_model_state_dict(model, options=options))]
            if optimizer is not None:
                begin_state(optimizer)
                found = get_optimizer_state_dict(model, optimizer, options=options)
                tensors.append(flat_state(cast(Any, found["state"])) if self.first else {})
            return tuple(tensors)
        if not self.first:
            return ({},) if optimizer is None else ({}, {})
        tensors = [model_tensors(model)]
        if optimizer is not None:
            tensors.append(optimizer_tensors(optimizer, model))
        return tuple(tensors)

    def spread_optimizer(
        self, model: LanguageModel, optimizer: torch.optim.AdamW, tensors: Mapping[str, Tensor], where: str
    ) -> None:
        """Give the optimiser in every process the state that rank 0 has in ``tensors``; every process must call it."""
        if self.strategy == "alone":
            load_optimizer_tensors(optimizer, model, tensors, where)
            return
        begin_state(optimizer)
        self._spread(tensors, optimizer_tensors(optimizer, model), f"{where} does not fit the optimiser")

    def _spread(self, whole: Mapping[str, Tensor], own: Mapping[str, Tensor], where: str) -> None:
        """Copy what rank 0 has in ``whole`` into the tensors of each process, whole ones or shards, one by one."""
        if self.first:
            check_tensors(whole, own, where)
        for name, tensor in own.items():
            if self.first:
                sent = whole[name].to(self.device).contiguous()
            else:
                sent = torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)
            dist.broadcast(sent, src=0)
            _copy(sent, tensor)

    def same(self, value: int) -> int:
        """Return what rank 0 has as ``value``, in every process."""
        if self.size == 1:
            return value
        sent = torch.tensor(value, dtype=torch.int64, device=self.device)
        dist.broadcast(sent, src=0)
        return int(sent)

    def same_path(self, path: Path) -> Path:
        """Return the path that rank 0 has, in every process."""
        if self.size == 1:
            return path
        text = os.fsencode(path)
        sent = torch.frombuffer(bytearray(text), dtype=torch.uint8).clone().to(self.device)
        length = self.same(len(text))
        if not self.first:
            sent = torch.empty(length, dtype=torch.uint8, device=self.device)
        dist.broadcast(sent, src=0)
        return Path(os.fsdecode(bytes(sent.tolist())))

    def wait(self) -> None:
        """Wait until every process is here."""
        if self.size > 1:
            dist.barrier()


ALONE = Ranks(0, 1, "alone", torch.device("cpu"))


def these_processes(parameters: DistributionParameters) -> Ranks:
    """Return the processes of torch.distributed where it is up, else this one alone."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = open_device(parameters.device, local)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Ranks(0, 1, "alone", device)
    return Ranks(dist.get_rank(), dist.get_world_size(), parameters.strategy, device)


def open_device(kind: Device, number: int = 0) -> torch.device:
    """Return a device that is here, ready for deterministic algorithms.

    Raises:
        TrainingError: there is none of this kind.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise TrainingError("device is cuda, and torch finds no such device here; use device: cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS refuses deterministic algorithms
    return torch.device(kind, number)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on a device; a copy to a GPU does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def join(parameters: DistributionParameters, store: Path | None = None) -> None:
    """Join the other processes, as who the environment says: gloo on CPUs, nccl on GPUs.

    They meet at the file ``store``; None: at the server that torchrun names in the environment, on several machines.
    """
    if parameters.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    place: dict[str, Any] = {}
    if store is not None:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        place = {"store": cast(Any, dist).FileStore(str(store), size), "rank": rank, "world_size": size}
    dist.init_process_group("gloo" if parameters.device == "cpu" else "nccl", timeout=_TIMEOUT, **place)


@torch.no_grad()
def _copy(whole: Tensor, tensor: Tensor) -> None:
    """Copy ``whole``, or where ``tensor`` is in shards this process's shard of it."""
    if hasattr(tensor, "full_tensor"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        sharded = cast(DTensor, tensor)
        mine = distribute_tensor(whole, sharded.device_mesh, sharded.placements, src_data_rank=None)  # sends nothing
        sharded.to_local().copy_(mine.to_local())
    else:
        tensor.copy_(whole)


def _nothing() -> None:
    pass
