"""Prompt files, chosen by alias, kind and version. What is missing is an error: nothing is created in its place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from everytoken.reflections.errors import PromptMissing, ReflectionError
from everytoken.reflections.parameters import PromptFiles
from everytoken.reflections.registry import PromptKind

CHARTER, GUIDELINES, CANARIES = "{charter}", "{writing_guidelines}", "{canaries}"

_SHARED = "shared"
_PLACEHOLDERS: Mapping[PromptKind, tuple[str, ...]] = {
    "reflection": (CHARTER, GUIDELINES),
    "refusal_reflection": (CHARTER, GUIDELINES),
    "preflection": (CHARTER,),
    "summary": (),
    "rephrasing_safelm": (),
    "sft": (CHARTER, CANARIES),
}
_OF_NO_MODEL = {"summary", "rephrasing_safelm"}


class TextFile(NamedTuple):
    """A file of text that messages are made of."""

    path: Path
    text: str
    sha256: str


def read_text_file(path: Path) -> TextFile:
    """Return a file as it is, line ends too.

    Raises:
        ReflectionError: it cannot be read, is no UTF-8, or is blank.
    """
    try:
        content = path.read_bytes()
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ReflectionError(f"cannot read {path}: {error}. Correct the path in reflection.prompts") from error
    if not text.strip():
        raise ReflectionError(f"{path} is blank: write it, or name another file in reflection.prompts")
    return TextFile(path, text, hashlib.sha256(content).hexdigest())


def read_prompt(files: PromptFiles, kind: PromptKind, alias: str) -> TextFile:
    """Return the prompt of a kind for a model. Prompts of summaries and rephrasing are shared by all models.

    Raises:
        PromptMissing: the model has no prompt of the kind, or not in the version that the parameters name.
        ReflectionError: the file cannot be used, or lacks a placeholder of its kind.
    """
    return read_version(prompt_path(files, kind, alias, getattr(files.versions, kind)), kind)


def read_version(path: Path, kind: PromptKind) -> TextFile:
    """Return a file of a kind of prompts; see `read_prompt`."""
    if not path.is_file():
        raise PromptMissing(_what_is_missing(path, kind, path.parent.name))
    found = read_text_file(path)
    if lacking := [name for name in _PLACEHOLDERS[kind] if name not in found.text]:
        raise ReflectionError(f"{path} lacks the placeholder {lacking[0]}: a prompt of the kind {kind} needs it")
    return found


def placeholders_of(kind: PromptKind) -> tuple[str, ...]:
    """Return the placeholders that a prompt of a kind needs."""
    return _PLACEHOLDERS[kind]


def folder_of_prompts(files: PromptFiles, kind: PromptKind, alias: str) -> Path:
    """Return the folder of the prompts of a kind for a model."""
    return Path(files.folder) / (_SHARED if kind in _OF_NO_MODEL else alias)


def prompt_path(files: PromptFiles, kind: PromptKind, alias: str, version: str) -> Path:
    """Return the file of a version."""
    return folder_of_prompts(files, kind, alias) / f"{kind}_{version}.md"


def filled(prompt: str, kind: PromptKind, charter: str, guidelines: str = "", canaries: str = "") -> str:
    """Return a prompt with its placeholders replaced; nothing else in braces is touched, in what is put in neither."""
    values = {CHARTER: charter, GUIDELINES: guidelines, CANARIES: canaries}
    wanted = "|".join(re.escape(name) for name in _PLACEHOLDERS[kind])
    return re.sub(wanted, lambda found: values[found[0]], prompt) if wanted else prompt


def _what_is_missing(path: Path, kind: str, own: str) -> str:
    versions = sorted(path.parent.glob(f"{kind}_v*.md"), key=_number)
    if versions:
        return (
            f"there is no prompt file {path}. prompts.versions.{kind} names it; the versions in {path.parent} are "
            f"{', '.join(file.stem.removeprefix(f'{kind}_') for file in versions)}: name one of them, or write the file"
        )
    if own == _SHARED:
        return f"there is no final prompt of the kind {kind}, which all models share: write {path}"
    aliases = sorted({file.parent.name for file in path.parent.parent.glob(f"*/{kind}_v*.md")} - {_SHARED})
    return (
        f"there is no final prompt {path.name} for the alias {own!r}; aliases with one of the kind {kind} are "
        f"{', '.join(aliases) or 'none'}: set generator.alias to one of them, or write {path}"
    )


def _number(file: Path) -> tuple[int, str]:
    number = file.stem.rpartition("_v")[2]
    return (int(number) if number.isdecimal() else 0, file.name)
