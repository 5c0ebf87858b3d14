"""The chat template of a model that was finetuned here: that of the chats which it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from everytoken.corpus.rendering import ChatTemplate, Role, RoleMarks
from everytoken.generation.chat_files import ChatFiles
from everytoken.generation.chat_template import jinja_of_lines, jinja_of_marks
from everytoken.generation.errors import GenerationError
from everytoken.shards import canonical_json
from everytoken.tokens.chat import ChatParameters, ChatRule, SpansAfter, SpansOfLines, SpansOfTurns

_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


def trained_chat_files(
    chats: ChatParameters, templates: Mapping[str, ChatTemplate], ids: Mapping[str, int], eos_token: str
) -> ChatFiles:
    """Return how one chats with a model that was trained on these chats.

    Args:
        chats: their sources, and ``template``, the one whose form the model talks in.
        templates: by source, where a source renders turns.
        ids: of the tokenizer, by token.

    Raises:
        GenerationError: the sources have several forms and none is named, or the one that is named is no chat.
    """
    source = _chosen(chats, templates)
    rule = chats.rules[source]
    eos = eos_token if chats.turn_ends == "eos" else ""
    if isinstance(rule, SpansOfTurns):
        template = templates[source]
        marks: dict[str, tuple[str, str]] = {
            role: (template.marks(role).prefix, template.marks(role).suffix) for role in _ROLES
        }
        reasoning = _inner(template.reasoning)
        jinja = jinja_of_marks(
            _ending(marks, eos),
            template.after_turn,
            reasoning=None if reasoning == "leave_out" else reasoning,
            tools=_inner(template.tools),
        )
        end = template.assistant.suffix
    else:
        jinja, end = jinja_of_lines(_ending(_marks(rule), eos)), ""
    is_token = end in ids
    return ChatFiles(
        template=jinja,
        special={"bos_token": eos_token, "eos_token": eos_token},
        ends=(ids[eos_token], *([ids[end]] if is_token else [])),
        stop=() if is_token or not end.strip() else (end,),
    )


def _chosen(chats: ChatParameters, templates: Mapping[str, ChatTemplate]) -> str:
    """Return the source whose form is talked in."""
    if chats.template is not None:
        if chats.template not in chats.rules:
            raise GenerationError(
                f"finetuning.chats.template is {chats.template!r}; expected one of {sorted(chats.rules)}, the sources "
                "of chats"
            )
        return chats.template
    forms = {canonical_json([rule.model_dump(), _plain(templates.get(name))]): name for name, rule in _rules(chats)}
    if len(forms) > 1:
        raise GenerationError(
            f"the chats of {sorted(forms.values())} have different forms: set finetuning.chats.template to the source "
            "in whose form one talks with the model"
        )
    return next(iter(forms.values()))


def _rules(chats: ChatParameters) -> list[tuple[str, ChatRule]]:
    return sorted(chats.rules.items(), reverse=True)


def _plain(template: ChatTemplate | None) -> object:
    return None if template is None else template.model_dump(mode="json")


def _marks(rule: SpansOfLines | SpansAfter) -> dict[str, tuple[str, str]]:
    """Return prefix and suffix of the two who speak in chats without roles."""
    if isinstance(rule, SpansAfter):
        return {"user": ("", ""), "assistant": (rule.mark.lstrip("\n"), "")}
    others = [speaker for speaker in rule.speakers if speaker not in rule.assistant]
    return {"user": (f"{others[0]}: ", ""), "assistant": (f"{rule.assistant[0]}:", "")}


def _inner(
    rule: RoleMarks | Literal["leave_out"] | None,
) -> tuple[str, str] | Literal["leave_out"] | None:
    """Return the marks of a rule, or the rule."""
    return (rule.prefix, rule.suffix) if isinstance(rule, RoleMarks) else rule


def _ending(marks: Mapping[str, tuple[str, str]], eos: str) -> dict[str, tuple[str, str]]:
    """Return marks in which the assistant's turn ends with EOS."""
    prefix, suffix = marks["assistant"]
    return {**marks, "assistant": (prefix, suffix + eos)}
