"""The recurrent state of a conversation in a file, so that a conversation is resumed without reading it again.

A safetensors file: ``tokens`` (int64), the ids that were read, and the tensors of the state after them. Its metadata
has the SHA-256 of the model's parameters. A state is used only with the model that made it, and only where the
conversation begins with the ids that it has read. Elsewhere the model would answer to what nobody said.

A cache of keys and values is not saved: it grows with the text, and is computed again from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from everytoken.generation.errors import GenerationError
from everytoken.generation.prefix import PREFIX_BLOCK, PrefixReader
from everytoken.models.mamba3 import RecurrentState
from everytoken.shards import atomic_file

_FORMAT = "everytoken-state/1"
_TOKENS = "tokens"


def save_state(path: Path, reader: PrefixReader, prompt: Sequence[int], model_sha256: str) -> int:
    """Write what a recurrent model has read of a prompt; return how many tokens that is.

    Where it is none, as of a short prompt or another family, no file is left at ``path``.

    Raises:
        OSError: the file cannot be written.
    """
    tokens, state = reader.kept()
    if not tokens or not isinstance(state, RecurrentState) or list(prompt[: len(tokens)]) != tokens:
        path.unlink(missing_ok=True)
        return 0
    tensors = {_TOKENS: torch.tensor(tokens), **state.named_tensors()}
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary:
        try:
            save_file(whole, temporary, metadata={"format": _FORMAT, "model_sha256": model_sha256})
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}") from error
        temporary.chmod(0o644)  # safetensors gives it to the owner alone
    return len(tokens)


def load_state(path: Path, reader: PrefixReader, prompt: Sequence[int], model_sha256: str) -> int:
    """Let a reader resume from a file that `save_state` wrote; return how many tokens it need not read.

    Raises:
        GenerationError: the file is damaged, or it is of another model or of another text. The reader is unchanged.
    """
    remedy = f"delete {path}, and the conversation is read again"
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise GenerationError(f"{path} is no saved state ({error}): {remedy}") from error
    if metadata.get("format") != _FORMAT or _TOKENS not in tensors:
        raise GenerationError(f"{path} is no state that /save wrote: {remedy}")
    if metadata.get("model_sha256") != model_sha256:
        raise GenerationError(f"{path} is the state of another model: open that one, or {remedy}")
    tokens: list[int] = tensors.pop(_TOKENS).tolist()
    if len(tokens) % PREFIX_BLOCK or tokens != list(prompt[: len(tokens)]):
        raise GenerationError(f"{path} has read another text than the conversation: {remedy}")
    if {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} != _expected(reader):
        raise GenerationError(f"{path} has other tensors than a state of this model: {remedy}")
    device = reader.model.output_weight().device
    on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
    reader.resume(tokens, RecurrentState.of_tensors(on_device, len(reader.model.layers()), len(tokens)))
    return len(tokens)


def _expected(reader: PrefixReader) -> Mapping[str, tuple[torch.dtype, torch.Size]]:
    """Return types and shapes of the tensors of a state of this model, by name: the same after any token."""
    state = reader.model.new_cache()
    if not isinstance(state, RecurrentState):
        return {}
    with torch.inference_mode():
        reader.model.hidden_states(
            torch.zeros(1, 1, dtype=torch.int64, device=reader.model.output_weight().device), state
        )
    return {name: (tensor.dtype, tensor.shape) for name, tensor in state.named_tensors().items()}
