"""The tensors of a training state in shards: each process of FSDP2 writes its own, and no process holds them all.

``shard-00002-of-00004.safetensors`` has what the second of four processes holds of each tensor: ``model/<name>`` of the
model and ``optimizer/<name>`` of AdamW. The files are those of torch's distributed checkpoint in its safetensors form
(`torch.distributed.checkpoint.HuggingFaceStorageWriter`): they say at which offsets a shard lies. Nothing is pickled.

Any number of processes reads them, whole or in shards of its own, each only what it needs. `write_whole_model` makes
the single file of them.
"""

from __future__ import annotations

import json
import mmap
import shutil
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everytoken.training.checkpoints.tensor_files import check_tensors
from everytoken.training.errors import CheckpointError

MODEL, OPTIMIZER = "model/", "optimizer/"

_PATTERN = "shard-*-of-*.safetensors"
_TYPES = {  # of safetensors' header, in the order in which it sorts them
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.bool: "BOOL",
}


def is_sharded(folder: Path) -> bool:
    """Return whether a checkpoint has its tensors in shards."""
    return next(folder.glob(_PATTERN), None) is not None


def write_shard(folder: Path, rank: int, size: int, tensors: Mapping[str, Tensor]) -> None:
    """Write what this process holds of the tensors; equal tensors give equal bytes.

    Args:
        rank: of this process among ``size``; rank 0 writes what is not in shards.
        tensors: by their names with `MODEL` or `OPTIMIZER` before them; with FSDP2 they are ``DTensor``.

    Raises:
        OSError: the disk is full, for example.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    own = {name: tensor for name, tensor in sorted(tensors.items()) if _holds(tensor, rank)}
    apart = folder / f"rank-{rank}"
    with _quiet():
        save(own, storage_writer=HuggingFaceStorageWriter(str(apart), save_distributed=True), no_dist=True)
    (written,) = apart.iterdir()
    written.chmod(0o644)
    written.rename(folder / f"shard-{rank + 1:05}-of-{size:05}.safetensors")
    shutil.rmtree(apart)


def read_sharded(folder: Path, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Fill tensors, whole ones or shards of any cut, with what a checkpoint in shards holds of them.

    Args:
        tensors: all that the checkpoint has under ``prefix``, by their names without it.

    Raises:
        CheckpointError: a name is missing or superfluous, or a shape or type differs; nothing is changed then.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    reader = HuggingFaceStorageReader(str(folder))
    check_tensors(_described(reader, prefix), tensors, f"the shards of {folder}")
    with _quiet():
        wanted: dict[str, Any] = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
        load(wanted, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)


def write_whole_model(folder: Path, path: Path) -> None:
    """Write ``model.safetensors`` of a checkpoint in shards: the bytes that a process with the whole model writes.

    The new file is mapped, and each shard is copied to its place: memory is that of one tensor of a shard.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    described = _described(HuggingFaceStorageReader(str(folder)), MODEL)
    order = list(_TYPES)
    names = sorted(described, key=lambda name: (order.index(described[name].dtype), name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        begin, end = end, end + described[name].nbytes
        shape = list(described[name].shape)
        header[name] = {"dtype": _TYPES[described[name].dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("w+b") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        first = file.tell()
        file.truncate(first + end)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0)
        places = {}
        for name in names:
            one, offset = described[name], first + header[name]["data_offsets"][0]
            flat = torch.frombuffer(mapped, dtype=one.dtype, count=one.numel(), offset=offset)
            places[name] = flat.view(one.shape)
        read_sharded(folder, places, MODEL)
        mapped.flush()


def _holds(tensor: Tensor, rank: int) -> bool:
    """Return whether a process has anything to write of a tensor: small ones may leave it without a row."""
    return bool(tensor.to_local().numel()) if hasattr(tensor, "to_local") else rank == 0


def _described(reader: Any, prefix: str) -> dict[str, Tensor]:
    """Return tensors without values in the place of those that the shards hold."""
    try:
        found = reader.read_metadata().state_dict_metadata
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"the shards of {reader.path} cannot be read: {error}") from error
    return {
        name.removeprefix(prefix): torch.empty(one.size, dtype=one.properties.dtype, device="meta")
        for name, one in found.items()
        if name.startswith(prefix)
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide that torch takes one process for all: each writes its own file, and reads what it needs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint")
        yield
