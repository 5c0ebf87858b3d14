"""A checkpoint is a folder: ``config.json`` (what to build), ``model.safetensors`` (its tensors), no pickle.

A training state (optimiser, step) would be further files beside them; these two are all that reading a model
needs.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from everytoken.models.families import empty_model
from everytoken.models.language_model import LanguageModel
from everytoken.models.parameters import ModelParameters
from everytoken.training.errors import CheckpointError

CONFIG_FILE = "config.json"
MODEL_FILE = "model.safetensors"


class CheckpointConfig(BaseModel):
    """What ``config.json`` holds: the model's parameters, and what tokenizer and streams gave it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["everytoken-checkpoint/1"]
    model: ModelParameters
    vocab_size: int = Field(gt=0)
    seq_length: int = Field(gt=0)  # predictions of a window; the model reads at most that many tokens
    eos_id: int = Field(ge=0)


def save_model(folder: Path, model: LanguageModel, config: CheckpointConfig) -> None:
    """Write ``config.json`` and ``model.safetensors`` into ``folder``; equal parameters give equal bytes."""
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / MODEL_FILE)
    (folder / MODEL_FILE).chmod(0o644)  # safetensors gives it to the owner alone
    (folder / CONFIG_FILE).write_text(json.dumps(config.model_dump(mode="json"), indent=2) + "\n", encoding="utf-8")


def load_config(folder: Path) -> CheckpointConfig:
    """Read ``config.json``; raise ``CheckpointError`` when it is missing or not what this version writes."""
    path = folder / CONFIG_FILE
    try:
        return CheckpointConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {folder} is no checkpoint; run the training pipeline") from error
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a checkpoint's config: {error}") from error


def load_model(folder: Path) -> LanguageModel:
    """Return the model of a checkpoint folder in eval mode.

    Raises ``CheckpointError`` when a file is missing or damaged, or when tensors are missing, superfluous, or
    of another shape than ``config.json`` says.
    """
    config = load_config(folder)
    model = empty_model(config.model, vocab_size=config.vocab_size, max_seq_len=config.seq_length)
    path = folder / MODEL_FILE
    try:
        tensors = load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise CheckpointError(f"{path} is missing or damaged ({error}); run the training pipeline again") from error
    try:
        model.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not hold the tensors of {folder / CONFIG_FILE}: {error}") from error
    return model.eval()


def parameters_sha256(model: LanguageModel) -> str:
    """Return SHA-256 over name, dtype, shape and bytes of every tensor, in the order of the model."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
