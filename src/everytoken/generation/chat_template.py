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
from typing import Any, Literal, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from everytoken.generation.errors import GenerationError


class JinjaTemplate:
    """A chat template.

    Args:
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


def jinja_of_marks(
    marks: Mapping[str, tuple[str, str]],
    after_turn: str,
    *,
    reasoning: tuple[str, str] | None = None,
    tools: tuple[str, str] | Literal["leave_out"] | None = None,
) -> str:
    """Return the template of which every turn is ``prefix + said + suffix + after_turn``, after the BOS token.

    What is said is the text of the content, then calls of tools as canonical JSON, each on a line of its own: what
    `everytoken.corpus.rendering.templates.render_turns` makes of the same messages.

    Args:
        marks: prefix and suffix by role.
        reasoning: marks around the assistant's reasoning, which comes first; None: it is left out.
        tools: marks around definitions of tools, which end the system's turn; None: a chat with tools is refused.
    """
    template = _begin(marks, after_turn) + _TEXT
    if isinstance(tools, tuple):
        template += f"{{%- set tool_marks = {_literal(tools)} -%}}\n" + _DEFINITIONS
    elif tools is None:
        template += _NO_TOOLS
    template += _FOR_EACH
    if reasoning is not None:
        template += f"{{%- set reasoning_marks = {_literal(reasoning)} -%}}\n" + _REASONING
    if isinstance(tools, tuple):
        template += _AT_THE_START
    return template + "{{- prefixes[message.role] ~ ns.said ~ suffixes[message.role] -}}\n" + _END


def jinja_of_lines(marks: Mapping[str, tuple[str, str]]) -> str:
    """Return the template of chats in lines: contents are stripped, and a space follows the assistant's mark."""
    content = "(' ' if message.role == 'assistant' else '') ~ message.content | trim"
    turn = f"{{{{- prefixes[message.role] ~ ({content}) ~ suffixes[message.role] -}}}}\n"
    return _begin(marks, "\n") + _FOR_EACH_LINE + turn + _END


def _begin(marks: Mapping[str, tuple[str, str]], after_turn: str) -> str:
    prefixes = {role: prefix for role, (prefix, _) in marks.items()}
    suffixes = {role: suffix + after_turn for role, (_, suffix) in marks.items()}
    return (
        "{{- bos_token -}}\n"
        f"{{%- set prefixes = {_literal(prefixes)} -%}}\n"
        f"{{%- set suffixes = {_literal(suffixes)} -%}}\n"
    )


_FOR_EACH_LINE = """{%- for message in messages -%}
{%- if message.role not in prefixes -%}
{{- raise_exception('no role ' ~ message.role ~ ', only ' ~ (prefixes | join(', '))) -}}
{%- endif -%}
"""
_END = """{%- endfor -%}
{%- if add_generation_prompt -%}
{{- prefixes.assistant -}}
{%- endif -%}
"""
_TEXT = """{%- macro text_of(content) -%}
{%- if content is string -%}
{{- content -}}
{%- else -%}
{%- for part in content or [] -%}
{%- if part.type != 'text' -%}
{{- raise_exception('a part is ' ~ part.type ~ ', only text is read') -}}
{%- endif -%}
{{- part.text -}}
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(said='', tools='') -%}
"""
_NO_TOOLS = """{%- if tools -%}
{{- raise_exception('the model was trained without tools') -}}
{%- endif -%}
"""
_DEFINITIONS = """{%- if tools -%}
{%- for tool in tools -%}
{%- set ns.tools = ns.tools ~ ('' if loop.first else '\\n') ~ (tool | tojson(separators=(',', ':'), sort_keys=true)) -%}
{%- endfor -%}
{%- set ns.tools = tool_marks[0] ~ ns.tools ~ tool_marks[1] -%}
{%- if not messages or messages[0].role != 'system' -%}
{{- prefixes.system ~ ns.tools ~ suffixes.system -}}
{%- endif -%}
{%- endif -%}
"""
_FOR_EACH = (
    _FOR_EACH_LINE
    + """{%- set ns.said = text_of(message.content) -%}
{%- for calls in (message.tool_calls, message.function_call) -%}
{%- if calls -%}
{%- set json = calls | tojson(separators=(',', ':'), sort_keys=true) -%}
{%- set ns.said = ns.said ~ ('\\n' if ns.said else '') ~ json -%}
{%- endif -%}
{%- endfor -%}
"""
)
_REASONING = """{%- set reasoning = message.reasoning_content or message.reasoning or message.thinking -%}
{%- if reasoning and message.role == 'assistant' -%}
{%- set ns.said = reasoning_marks[0] ~ reasoning ~ reasoning_marks[1] ~ ns.said -%}
{%- endif -%}
"""
_AT_THE_START = """{%- if tools and loop.first and message.role == 'system' -%}
{%- set ns.said = ns.said ~ ('\\n\\n' if ns.said else '') ~ ns.tools -%}
{%- endif -%}
"""


def _literal(value: Mapping[str, str] | Sequence[str]) -> str:
    """Return strings as Jinja reads them: escapes are Python's."""
    return json.dumps(value, ensure_ascii=False)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
