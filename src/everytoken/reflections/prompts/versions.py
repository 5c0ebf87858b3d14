"""Versions of a prompt: which exist, which is the newest, and how the next one is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from everytoken.reflections.errors import ReflectionError
from everytoken.reflections.parameters import PromptFiles, ReflectionParameters
from everytoken.reflections.prompts.files import CHARTER, folder_of_prompts, placeholders_of, prompt_path
from everytoken.reflections.registry import PromptKind
from everytoken.shards import write_text


def prompt_versions(files: PromptFiles, kind: PromptKind, alias: str) -> list[str]:
    """Return the versions that a model has of a kind, by number: v10 is behind v9."""
    names = folder_of_prompts(files, kind, alias).glob(f"{kind}_v*.md")
    numbers = sorted(int(found[1]) for path in names if (found := re.fullmatch(r".*_v([1-9][0-9]*)\.md", path.name)))
    return [f"v{number}" for number in numbers]


def with_version(parameters: ReflectionParameters, kind: PromptKind, version: str) -> ReflectionParameters:
    """Return the parameters with another version of a prompt, and without a record that fixes one."""
    files = parameters.prompts
    versions = files.versions.model_copy(update={kind: version})
    return parameters.model_copy(update={"prompts": files.model_copy(update={"versions": versions}), "frozen": None})


def require_placeholders(text: str, kind: PromptKind) -> None:
    """Check that a prompt can be used for its kind.

    Raises:
        ReflectionError: it is blank, or has not each placeholder of its kind once.
    """
    for name in placeholders_of(kind):
        if (count := text.count(name)) != 1:
            raise ReflectionError(f"the prompt has the placeholder {name} {count} times; a {kind} prompt has it once")
    if not text.strip():
        raise ReflectionError("the prompt is blank")


def write_version(files: PromptFiles, kind: PromptKind, alias: str, version: str, text: str) -> Path:
    """Write a version of a prompt; one that exists with this text is left as it is.

    Raises:
        ReflectionError: a placeholder is missing, or the version exists and says something else.
    """
    require_placeholders(text, kind)
    path = prompt_path(files, kind, alias, version)
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise ReflectionError(f"{path} exists, and is another text: remove it, or keep it and name it in the run")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path


def first_version(template: str, kind: PromptKind, path: Path, values: Mapping[str, str]) -> str:
    """Return the first version of a prompt, from a template.

    Args:
        values: by the names that the template has in braces, besides the placeholders of its kind.

    Raises:
        ReflectionError: the kind has no constitution to be written from, or the template lacks a placeholder.
    """
    if CHARTER not in placeholders_of(kind):
        raise ReflectionError(f"a {kind} prompt has no constitution, so none is made from it: write the file by hand")
    text = template
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    try:
        require_placeholders(text, kind)
    except ReflectionError as error:
        raise ReflectionError(f"{path}: {error}. Correct the template") from None
    return text
