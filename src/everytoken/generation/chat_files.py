"""The files of a model folder that say how one chats with it, as Hugging Face lays them out.

``chat_template.jinja`` (or ``chat_template`` in ``tokenizer_config.json``), the special tokens of
``tokenizer_config.json``, and the ends and stops of ``generation_config.json``. A checkpoint of this project has the
same files, where it chats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everytoken.generation.errors import GenerationError

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
GENERATION_CONFIG_FILE = "generation_config.json"


@dataclass(frozen=True)
class ChatFiles:
    """How one chats with a model.

    Attributes:
        template: Jinja; None: the model has none.
        special: texts of the special tokens that a template may name, as ``{"bos_token": "<s>"}``.
        ends: ids that end a reply.
        stop: texts that end a reply.
    """

    template: str | None = None
    special: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the files into a folder."""
        if self.template is not None:
            (folder / TEMPLATE_FILE).write_text(self.template, encoding="utf-8")
        _write_json(folder / TOKENIZER_CONFIG_FILE, dict(self.special))
        stops = {"stop_strings": list(self.stop)} if self.stop else {}
        _write_json(folder / GENERATION_CONFIG_FILE, {"eos_token_id": list(self.ends), **stops})


def read_chat_files(folder: Path) -> ChatFiles:
    """Read what of these files is in a folder.

    Raises:
        GenerationError: a file is not what it should be.
    """
    tokenizer, generation = (_read_json(folder / name) for name in (TOKENIZER_CONFIG_FILE, GENERATION_CONFIG_FILE))
    special = {name: _text(value) for name, value in tokenizer.items() if name.endswith("_token")}
    return ChatFiles(
        template=_template(folder / TEMPLATE_FILE, tokenizer.get("chat_template")),
        special={name: text for name, text in special.items() if text is not None},
        ends=tuple(_ids(generation.get("eos_token_id"), folder / GENERATION_CONFIG_FILE)),
        stop=tuple(generation.get("stop_strings") or ()),
    )


def _template(path: Path, of_tokenizer: Any) -> str | None:
    """Return the template of the file, or of ``tokenizer_config.json``: one, or the one named ``default``."""
    if path.is_file():
        return path.read_text(encoding="utf-8")
    if isinstance(of_tokenizer, list):
        of_tokenizer = {one["name"]: one["template"] for one in of_tokenizer}.get("default")
    return None if of_tokenizer is None else str(of_tokenizer)


def _text(token: Any) -> str | None:
    """Return a special token's text: a string, or an object with ``content``."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _ids(given: Any, path: Path) -> list[int]:
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if any(not isinstance(number, int) for number in ids):
        raise GenerationError(f"{path}: eos_token_id is {given!r}; expected an id, or a list of ids")
    return ids


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise GenerationError(f"{path} holds no JSON ({error}); fetch the model again") from error
    if not isinstance(content, dict):
        raise GenerationError(f"{path} holds no JSON object; fetch the model again")
    return content


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
