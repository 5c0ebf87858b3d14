"""Checkpoints to and from other programs: folders of Hugging Face ``LlamaForCausalLM``, GGUF files of llama.cpp.

A checkpoint here is any folder with ``config.json`` and ``model.safetensors``, also one of those that a run keeps while
it trains. Both functions write a new folder, whole or not at all, and return what there is to say about it.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor

from everytoken.generation import ChatFiles, read_chat_files
from everytoken.models import GgufFile, LlamaFacts, LlamaParameters, read_facts, read_model, write_hugging_face
from everytoken.shards import atomic_folder
from everytoken.tokens.tokenizer import TOKENIZER_FILE
from everytoken.training.checkpoints.model import (
    MODEL_FILE,
    CheckpointConfig,
    load_config,
    parameters_sha256,
    save_model,
    write_config,
)
from everytoken.training.checkpoints.sharded import is_sharded, write_whole_model
from everytoken.training.checkpoints.verify import require_intact
from everytoken.training.errors import CheckpointError, TrainingError


def export_checkpoint(
    checkpoint: Path, out: Path, *, tokenizer: Path | None, chat: ChatFiles | None = None
) -> list[str]:
    """Write a checkpoint as a Hugging Face folder, in float32, the bits as they are; return lines to print.

    Args:
        checkpoint: folder with config.json and model.safetensors; its tensors are mapped, not read whole.
        out: the folder to write; must not be there.
        tokenizer: the ``tokenizer.json`` that the model was trained with; None for that in ``checkpoint``.
        chat: how one chats with it; None for what ``checkpoint`` says.

    Raises:
        TrainingError: ``out`` is there, the tokenizer does not go with the model, or it is not of a Llama.
        CheckpointError: the checkpoint is incomplete, or not what was written.
    """
    _require_new(out)
    require_intact(checkpoint)
    config = load_config(checkpoint)
    if is_sharded(checkpoint):
        raise CheckpointError(
            f"{checkpoint} has its tensors in shards: `everytoken import {checkpoint} --out FOLDER` makes a checkpoint "
            "with a single file of it; export that one"
        )
    if not isinstance(config.model, LlamaParameters):
        raise TrainingError(
            f"{checkpoint} is of the family {config.model.family}, for which neither Hugging Face nor GGUF has an "
            "architecture; llama can be exported. Use this one with everytoken chat, generate or serve"
        )
    facts = LlamaFacts(config.model, config.vocab_size, config.seq_length, config.eos_id)
    tokenizer = tokenizer or checkpoint / TOKENIZER_FILE
    content = _read(tokenizer)
    eos_token = _opened(content, tokenizer, config.vocab_size).id_to_token(config.eos_id)
    if eos_token is None:
        raise TrainingError(f"{tokenizer} has no token with the id {config.eos_id}, the model's EOS")
    path, chat = checkpoint / MODEL_FILE, chat or read_chat_files(checkpoint)
    try:
        with safe_open(path, framework="pt") as tensors:

            def read(name: str) -> Tensor:
                tensor: Tensor = tensors.get_tensor(name)
                return tensor

            write_hugging_face(
                out,
                facts,
                read,
                tokenizer=content,
                eos_token=eos_token,
                special_tokens=chat.special,
                chat_template=chat.template,
                generation={"eos_token_id": list(chat.ends), "stop_strings": list(chat.stop)},
            )
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot export {path} to {out}: {error}") from error
    return [
        f"{out}: LlamaForCausalLM, {config.vocab_size:,} tokens, context {config.seq_length:,}, float32",
        f"EOS, BOS and padding: {eos_token} ({config.eos_id}); documents begin after one, so put it before a prompt",
        "open it with transformers: AutoModelForCausalLM.from_pretrained, AutoTokenizer.from_pretrained",
    ]


def import_checkpoint(source: Path, out: Path, *, tokenizer: Path | None, eos_token: str | None) -> list[str]:
    """Write a checkpoint, with ``tokenizer.json`` beside it, from a Hugging Face folder or a GGUF file.

    A run's checkpoint in shards becomes one with a single file, of any family; a tokenizer it has only if one is given.

    Args:
        source: a folder of a ``LlamaForCausalLM`` with safetensors, a GGUF file (needs the extra ``gguf``), or a
            checkpoint in shards.
        out: the folder to write; must not be there.
        tokenizer: the ``tokenizer.json`` of the model; None for that of ``source``.
        eos_token: the token that ends a document or a chat's turn; None for the one that ``source`` names.

    Raises:
        ModelsError: the model cannot be had exactly; the message names the key.
        TrainingError: ``out`` is there, there is no tokenizer, or not one EOS.
    """
    _require_new(out)
    if is_sharded(source):
        if eos_token is not None:
            raise TrainingError(f"{source} says its own end-of-document token: leave out --eos")
        return _in_one_file(source, out, tokenizer)
    if source.is_file():
        file = GgufFile(source)
        facts, content = file.facts, _read(tokenizer) if tokenizer else file.tokenizer_json()
        eos_id = _eos_id(content, tokenizer or source, facts, eos_token)
        chat = ChatFiles(file.chat_template(), file.special_tokens(), ends=(eos_id,))
        model = file.model()
    else:
        facts, path, chat = read_facts(source), tokenizer or source / TOKENIZER_FILE, read_chat_files(source)
        content = _read(path)
        eos_id = _eos_id(content, path, facts, eos_token)
        model = read_model(source, facts)
    config = CheckpointConfig(
        format="everytoken-checkpoint/1",
        model=facts.parameters,
        vocab_size=facts.vocab_size,
        seq_length=facts.max_seq_len,
        eos_id=eos_id,
    )
    with atomic_folder(out) as folder:
        (folder / TOKENIZER_FILE).write_bytes(content)
        if chat.template is not None:
            chat.write(folder)
        save_model(folder, model, config)
    return [
        f"{out}: {model.parameter_count():,} parameters, {facts.vocab_size:,} tokens, context {facts.max_seq_len:,}",
        *(["it has a chat template: talk with it by `everytoken chat`"] if chat.template is not None else []),
        f"EOS id {eos_id}; SHA-256 of the parameters {parameters_sha256(model)}",
    ]


def _in_one_file(source: Path, out: Path, tokenizer: Path | None) -> list[str]:
    require_intact(source)
    config = load_config(source)
    with atomic_folder(out) as folder:
        if tokenizer is not None:
            content = _read(tokenizer)
            _opened(content, tokenizer, config.vocab_size)
            (folder / TOKENIZER_FILE).write_bytes(content)
        write_whole_model(source, folder / MODEL_FILE)
        write_config(folder, config)
    return [f"{out}: {MODEL_FILE} of the shards of {source}, {(out / MODEL_FILE).stat().st_size:,} bytes"]


def _eos_id(content: bytes, where: Path, facts: LlamaFacts, eos_token: str | None) -> int:
    """Return the id of ``eos_token``, or the one id that the model's source names, after a check of the tokenizer."""
    tokenizer = _opened(content, where, facts.vocab_size)
    if eos_token is None:
        if facts.eos_id is None:
            raise TrainingError(
                f"the model of {where} does not name one EOS; say which token ends a document or a turn"
            )
        return facts.eos_id
    eos_id = tokenizer.token_to_id(eos_token)
    if eos_id is None:
        raise TrainingError(f"{where} has no token {eos_token!r}")
    return int(eos_id)


def _opened(content: bytes, where: Path, vocab_size: int) -> Tokenizer:
    """Return a tokenizer whose every id has a row in a model of ``vocab_size``."""
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise TrainingError(f"{where} holds no tokenizer that the tokenizers library can read: {error}") from error
    needed = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    if needed > vocab_size:
        raise TrainingError(
            f"{where} has ids up to {needed - 1:,}, the model has {vocab_size:,} rows. Give the tokenizer that the "
            "model was trained with"
        )
    return tokenizer


def _read(tokenizer: Path) -> bytes:
    try:
        return tokenizer.read_bytes()
    except OSError as error:
        raise TrainingError(
            f"cannot read the tokenizer {tokenizer}: {error}. A model is of no use without the tokenizer that it was "
            "trained with"
        ) from error


def _require_new(out: Path) -> None:
    if out.exists():
        raise TrainingError(f"{out} is there already; name a folder that is not, or remove it")
