"""Chat templates in Jinja, as Hugging Face has them: messages to the text that a model reads.

The environment is that of transformers 5 (``trim_blocks``, ``lstrip_blocks``, loop controls, ``tojson`` that keeps
characters as they are, ``raise_exception``, ``strftime_now``), in Jinja's sandbox: a template is a file of somebody
else. A test compares texts and ids with ``apply_chat_template``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from everytoken.generation.errors import GenerationError


class JinjaTemplate:
    """A chat template.

    Args:
        source: the template.
        special: texts of special tokens that it may name, as ``{"bos_token": "<s>"}``.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self.source, self._special = source, dict(special)

    def render(self, messages: Sequence[Mapping[str, Any]], *, begins_reply: bool = True, **more: Any) -> str:
        """Return the text of a chat.

        Args:
            messages: each with ``role`` and ``content``, and what else the template reads.
            begins_reply: whether it ends where the assistant begins to speak.
            more: what else the template may read, as ``tools``.

        Raises:
            GenerationError: the template refuses the chat, or is no template.
        """
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=begins_reply, **self._special, **more
            )
        except (TemplateError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise GenerationError(f"the chat template refuses this chat: {error}") from error

    @cached_property
    def _template(self) -> Template:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        return environment.from_string(self.source)


def jinja_of_marks(marks: Mapping[str, tuple[str, str]], after_turn: str, *, trims: bool = False) -> str:
    """Return the template of which every turn is ``prefix + content + suffix + after_turn``, after the BOS token.

    Args:
        marks: prefix and suffix by role.
        after_turn: follows every turn.
        trims: whether white space around a content goes, and a space follows the assistant's prefix.
    """
    content = "(' ' if message.role == 'assistant' else '') ~ message.content | trim" if trims else "message.content"
    prefixes = {role: prefix for role, (prefix, _) in marks.items()}
    suffixes = {role: suffix + after_turn for role, (_, suffix) in marks.items()}
    return (
        "{{- bos_token -}}\n"
        f"{{%- set prefixes = {_literal(prefixes)} -%}}\n"
        f"{{%- set suffixes = {_literal(suffixes)} -%}}\n"
        "{%- for message in messages -%}\n"
        "{%- if message.role not in prefixes -%}\n"
        "{{- raise_exception('no role ' ~ message.role ~ ', only ' ~ (prefixes | join(', '))) -}}\n"
        "{%- endif -%}\n"
        f"{{{{- prefixes[message.role] ~ ({content}) ~ suffixes[message.role] -}}}}\n"
        "{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}\n"
        "{{- prefixes.assistant -}}\n"
        "{%- endif -%}\n"
    )


def _literal(texts: Mapping[str, str]) -> str:
    """Return a dictionary as Jinja reads it: escapes in its strings are Python's."""
    return json.dumps(dict(texts), ensure_ascii=False)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
