"""A model in a folder: ``config.json`` (what to build) and ``model.safetensors`` (its tensors), no pickle.

These two are all that reading a model needs; a training state has further files beside them
(`everytoken.training.step.optimizer_state`, `everytoken.training.checkpoints.store`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from everytoken.models import LanguageModel, ModelParameters, empty_model
from everytoken.training.checkpoints.sharded import MODEL, is_sharded, read_sharded
from everytoken.training.checkpoints.tensor_files import check_tensors, read_tensors, tensors_sha256, write_tensors
from everytoken.training.errors import CheckpointError

CONFIG_FILE = "config.json"
MODEL_FILE = "model.safetensors"


class CheckpointConfig(BaseModel):
    """What ``config.json`` holds: the model's parameters, and what tokenizer and streams gave it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["everytoken-checkpoint/1"]
    model: ModelParameters = Field(discriminator="family")
    vocab_size: int = Field(gt=0)
    seq_length: int = Field(gt=0)  # predictions of a window; the model reads at most that many tokens
    eos_id: int = Field(ge=0)


def save_model(folder: Path, model: LanguageModel, config: CheckpointConfig) -> None:
    """Write ``config.json`` and ``model.safetensors`` into ``folder``; equal parameters give equal bytes."""
    write_tensors(folder / MODEL_FILE, model_tensors(model))
    write_config(folder, config)


def write_config(folder: Path, config: CheckpointConfig) -> None:
    """Write ``config.json`` into ``folder``."""
    (folder / CONFIG_FILE).write_text(json.dumps(config.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")


def load_config(folder: Path) -> CheckpointConfig:
    """Read ``config.json``; raise ``CheckpointError`` when it is missing or not what this version writes."""
    path = folder / CONFIG_FILE
    try:
        return CheckpointConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {folder} is no checkpoint; run the training pipeline") from error
    except ValidationError as error:
        if b'"architectures"' in path.read_bytes():
            raise CheckpointError(
                f"{path} is of a Hugging Face folder: make a checkpoint of it first, with `everytoken import`"
            ) from error
        raise CheckpointError(f"{path} is not a checkpoint's config: {error}") from error


def load_model(folder: Path) -> LanguageModel:
    """Return the model of a checkpoint folder in eval mode.

    Raises ``CheckpointError`` when a file is missing or damaged, or when tensors are missing, superfluous, or
    of another shape or type than ``config.json`` says.
    """
    config = load_config(folder)
    model = empty_model(config.model, vocab_size=config.vocab_size, max_seq_len=config.seq_length)
    path = folder / MODEL_FILE
    if is_sharded(folder):
        read_sharded(folder, model_tensors(model), MODEL)
    else:
        load_model_tensors(model, read_tensors(path), f"{path} does not hold the tensors of {folder / CONFIG_FILE}")
    return model.eval()


def with_rows(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in which a matrix with fewer rows than expected has them all: new ones are the mean of the others.

    The mean is taken in float64. New tokens then begin as an average token does, and old logits stay what they were.
    """

    def grown(tensor: Tensor, wanted: Tensor) -> Tensor:
        new = wanted.shape[0] - tensor.shape[0]
        if tensor.ndim != 2 or tensor.shape[1:] != wanted.shape[1:] or new < 1:
            return tensor
        return torch.cat([tensor, tensor.double().mean(0, keepdim=True).to(tensor.dtype).expand(new, -1)])

    return {name: grown(tensor, expected.get(name, tensor)) for name, tensor in tensors.items()}


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers in the order of the model, not copied; a tied one has its first name."""
    by_tensor: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        by_tensor.setdefault(id(tensor), (name, tensor.detach()))
    return dict(by_tensor.values())


def load_model_tensors(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy ``tensors``, all that `model_tensors` names and no other, into the model.

    Raises:
        CheckpointError: a name is missing or superfluous, or a shape or type differs; it begins with ``where``.
    """
    own = model_tensors(model)
    check_tensors(tensors, own, where)
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def parameters_sha256(model: nn.Module) -> str:
    """Return the `tensors_sha256` of the parameters and buffers of a model."""
    return tensors_sha256(model_tensors(model))
