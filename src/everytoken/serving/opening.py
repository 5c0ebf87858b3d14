"""Open a model: from a checkpoint, a Hugging Face folder or a GGUF file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer

from everytoken.generation import ChatFiles, OpenedModel, read_chat_files
from everytoken.models import GgufFile, read_facts, read_model
from everytoken.serving.errors import ServingError
from everytoken.training.checkpoints import load_config, load_model, require_intact
from everytoken.training.step import open_device

_TOKENIZER_FILE = "tokenizer.json"
_MADE_TOKENIZER = Path("05_model_input/tokenizer/tokenizer.json")
_MADE_CHAT_FORMAT = Path("06_models/chat_format.json")


def open_model(
    path: Path,
    *,
    tokenizer: Path | None = None,
    template: Path | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    loops: int | None = None,
) -> OpenedModel:
    """Open a model.

    Args:
        path: a checkpoint folder, the folder of a Hugging Face ``LlamaForCausalLM``, or a GGUF file.
        tokenizer: its ``tokenizer.json``; None for the one next to the model, or in the data folder around it.
        template: a chat template in Jinja; None for the one next to the model, or of the finetuning in the data folder.
        loops: how often a looped block is run at most; None: as often as it was built for.

    Raises:
        ServingError: there is no model, or no tokenizer, or ``loops`` are given and the model loops no block.
        TrainingError: the device is not here.
        CheckpointError: a file is damaged.
        ModelsError: a foreign model cannot be had exactly.
    """
    opened = _open_gguf(path, tokenizer) if path.is_file() else _open_folder(path, tokenizer)
    if template is not None:
        opened = replace(opened, chat=replace(opened.chat, template=template.read_text(encoding="utf-8")))
    if opened.tokenizer.get_vocab_size() > opened.model.vocab_size:
        raise ServingError(
            f"the tokenizer has {opened.tokenizer.get_vocab_size():,} tokens, the model {opened.model.vocab_size:,}; "
            "give the tokenizer that the model was trained with (--tokenizer)"
        )
    if loops is not None:
        if opened.model.loops is None:
            raise ServingError(f"{path} loops no block, so it takes no number of loops: leave --loops out")
        opened.model.loops = loops
    opened.tokenizer.no_truncation()
    opened.tokenizer.no_padding()
    opened.model.to(open_device(device))
    return opened


def tokenizer_of(checkpoint: Path, given: Path | None = None) -> Path:
    """Return the tokenizer file of a checkpoint: given, next to it, or in the data folder around it.

    Raises:
        ServingError: there is none.
    """
    if not (checkpoint / "config.json").is_file():
        raise ServingError(f"{checkpoint} is no model: it has no config.json. Give a checkpoint folder")
    places = [checkpoint / _TOKENIZER_FILE, *_around(checkpoint, _MADE_TOKENIZER)]
    for path in (given, *places):
        if path is not None and path.is_file():
            return path
    raise ServingError(f"there is no tokenizer.json in {checkpoint}, nor in the data folder around it: --tokenizer")


def chat_files_of(checkpoint: Path) -> ChatFiles:
    """Return how one chats with the model of a folder: what is next to it, or of the finetuning in the data folder."""
    own = read_chat_files(checkpoint)
    if own.template is None:
        for path in _around(checkpoint, _MADE_CHAT_FORMAT):
            if path.is_file():
                return _made_chat_files(path)
    return own


def _made_chat_files(path: Path) -> ChatFiles:
    made = json.loads(path.read_bytes())
    if made["template"] is None:
        raise ServingError(f"{path}: {made['reason']}")
    return ChatFiles(made["template"], made["special"], tuple(made["ends"]), tuple(made["stop"]))


def _around(checkpoint: Path, below: Path) -> list[Path]:
    return [parent / below for parent in checkpoint.resolve().parents]


def _open_gguf(path: Path, tokenizer: Path | None) -> OpenedModel:
    file = GgufFile(path)
    content = file.tokenizer_json() if tokenizer is None else tokenizer.read_bytes()
    if file.facts.eos_id is None:
        raise ServingError(f"{path} does not name its EOS: import it with --eos")
    chat = ChatFiles(file.chat_template(), file.special_tokens(), (file.facts.eos_id,))
    return OpenedModel(path.name, file.model(), Tokenizer.from_buffer(content), chat, file.facts.eos_id)


def _open_folder(path: Path, tokenizer: Path | None) -> OpenedModel:
    if "architectures" in _config(path):
        facts, chat = read_facts(path), read_chat_files(path)
        eos_id, model = facts.eos_id if facts.eos_id is not None else next(iter(chat.ends), None), None
        if eos_id is None:
            raise ServingError(f"{path} does not name its EOS: import it with --eos")
        model = read_model(path, facts)
    else:
        require_intact(path)
        eos_id, chat, model = load_config(path).eos_id, chat_files_of(path), load_model(path)
    return OpenedModel(path.name, model, Tokenizer.from_file(str(tokenizer_of(path, tokenizer))), chat, eos_id)


def _config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ServingError(
            f"{path} is no model: cannot read its config.json ({error}). Give a checkpoint folder, a Hugging Face "
            "folder or a GGUF file"
        ) from error
    return config
