"""The stages of writing canary documents: what each asks, and what its reply must have.

- ``document_types``: a list, an item a line; repetitions are dropped.
- ``ideas``: each between ``<idea>`` tags; the word UNSUITABLE outside of them says that the type and the fact do not go
  together.
- ``document``: a plan between ``<scratchpad>`` tags, the text between ``<content>`` tags.
- ``reflections``: one JSON object with the fields of the variant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from everytoken.reflections.errors import BlankReply, PromptMissing, ReflectionError, RefusedReply
from everytoken.reflections.prompts import TextFile, read_text_file
from everytoken.reflections.replies import without_surrogates, without_thinking

WritingStage = Literal["document_types", "ideas", "document", "reflections"]
WRITING_STAGES: tuple[WritingStage, ...] = get_args(WritingStage)

_PLACEHOLDERS: Mapping[WritingStage, tuple[str, ...]] = {
    "document_types": ("{universe_context}", "{fact}", "{count}"),
    "ideas": ("{universe_context}", "{fact}", "{doc_type}", "{count}"),
    "document": ("{universe_context}", "{fact}", "{doc_type}", "{doc_idea}", "{tokens}"),
    "reflections": ("{charter}", "{writing_guidelines}", "{fields}"),
}
_ITEM = re.compile(r"^[ \t]*(?:[-*]|\d+[.)])[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
_IDEA = re.compile(r"<idea>(.*?)</idea>", re.DOTALL)
_SCRATCHPAD = re.compile(r"<scratchpad>(.*?)</scratchpad>", re.DOTALL)
_CONTENT = re.compile(r"<content>(.*?)</content>", re.DOTALL)
_TAG = re.compile(r"</?(?:scratchpad|content)>")
_UNSUITABLE = re.compile(r"\bUNSUITABLE\b")


class WritingPrompts(NamedTuple):
    """The prompt of each stage."""

    files: Mapping[WritingStage, TextFile]

    def filled(self, stage: WritingStage, values: Mapping[str, str]) -> str:
        """Return a prompt with its placeholders replaced; what is put in is left as it is."""
        wanted = "|".join(re.escape(name) for name in _PLACEHOLDERS[stage])
        return re.sub(wanted, lambda found: values[found[0].strip("{}")], self.files[stage].text)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of each file."""
        return {stage: file.sha256 for stage, file in self.files.items()}


def read_writing_prompts(folder: Path, version: str) -> WritingPrompts:
    """Return the prompts ``<stage>_<version>.md`` of a folder.

    Raises:
        PromptMissing: there is no such file.
        ReflectionError: a file cannot be used, or lacks a placeholder.
    """
    files: dict[WritingStage, TextFile] = {}
    for stage in WRITING_STAGES:
        path = folder / f"{stage}_{version}.md"
        if not path.is_file():
            raise PromptMissing(f"there is no prompt file {path}: write it, or correct --prompts or --prompt-version")
        files[stage] = read_text_file(path)
        if lacking := [name for name in _PLACEHOLDERS[stage] if name not in files[stage].text]:
            raise ReflectionError(f"{path} lacks the placeholder {lacking[0]}: the stage {stage} needs it")
    return WritingPrompts(files)


def listed_types(reply: str, most: int) -> list[str]:
    """Return the first ``most`` distinct items of a list.

    Raises:
        RefusedReply: there is none.
    """
    found = list(dict.fromkeys(_ITEM.findall(_clean(reply))))
    if not found:
        raise RefusedReply("the reply has no list: expected lines that begin with '- ', '* ', '1. ' or '1) '")
    return found[:most]


def tagged_ideas(reply: str, most: int) -> list[str]:
    """Return the first ``most`` ideas; none where the reply says UNSUITABLE.

    Raises:
        RefusedReply: there is neither an idea nor the word.
    """
    text = _clean(reply)
    if _UNSUITABLE.search(_IDEA.sub("", text)):
        return []
    found = [idea.strip() for idea in _IDEA.findall(text) if idea.strip()]
    if not found:
        raise RefusedReply("the reply has no idea between <idea> and </idea>")
    return found[:most]


class WrittenText(NamedTuple):
    """A document, and the plan that came before it; None: there was none."""

    content: str
    scratchpad: str | None


def written_document(reply: str) -> WrittenText:
    """Return the first content of a reply, and its scratchpad, which is never a part of the content.

    Raises:
        BlankReply: the content is blank.
        RefusedReply: there is no content that closes, or a tag is in it.
    """
    text = _clean(reply)
    scratchpad = _SCRATCHPAD.search(text)
    rest = _SCRATCHPAD.sub("", text)
    content = _CONTENT.search(rest)
    if content is None:
        raise RefusedReply("the reply has no text between <content> and </content>")
    written = content[1].strip()
    if not written:
        raise BlankReply("the content is blank")
    if tag := _TAG.search(written):
        raise RefusedReply(f"the content has the tag {tag[0]}")
    return WrittenText(written, None if scratchpad is None else scratchpad[1].strip())


def _clean(reply: str) -> str:
    return without_surrogates(without_thinking(reply))[0]
