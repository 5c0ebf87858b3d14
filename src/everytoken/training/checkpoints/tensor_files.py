"""Named tensors in a safetensors file: written, read, compared with what is expected, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from everytoken.training.errors import CheckpointError


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], where: str) -> None:
    """Raise ``CheckpointError``, beginning with ``where``, unless names, shapes and types are those expected."""
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} is superfluous" for name in found if name not in expected]
    for name, tensor in expected.items():
        if name in found and (found[name].shape != tensor.shape or found[name].dtype != tensor.dtype):
            wrong.append(f"{name}: expected {_kind(tensor)}, found {_kind(found[name])}")
    if wrong:
        raise CheckpointError(f"{where}: {'; '.join(wrong[:5])}{f'; and {len(wrong) - 5} more' * (len(wrong) > 5)}")


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file: equal tensors give equal bytes, in whatever order. Raises ``OSError`` (a full disk)."""
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
    path.chmod(0o644)  # safetensors gives it to the owner alone


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; raise ``CheckpointError`` when it is missing or damaged."""
    try:
        return load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error}); run the training pipeline again") from error


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 over name, dtype, shape and bytes of every tensor, in order."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
