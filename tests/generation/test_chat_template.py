"""Texts and ids of chats, beside those of transformers."""

from __future__ import annotations

import json
import random

import pytest

from everytoken.corpus.rendering.renderers import render_conversation
from everytoken.corpus.rendering.templates import ChatTemplate, ConversationRenderer
from everytoken.generation import (
    ChatFiles,
    ChatFormat,
    GenerationError,
    JinjaTemplate,
    jinja_of_marks,
    read_chat_files,
    trained_chat_files,
)
from everytoken.seeds import python_random
from everytoken.tokens.chat import ChatParameters
from tests.generation.talking import END, EOS, MARKS, byte_tokenizer, chat_format

# With what templates of models use: namespaces, macros, loops with breaks, filters, tools and reasoning.
TOOLS_AND_REASONING = """
{%- set seen = namespace(last=-1, system=false) -%}
{%- macro said(message) -%}
    {{- message.content if message.content is string else '' -}}
{%- endmacro -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {%- set seen.last = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- if messages[0].role == 'tool' -%}
    {{- raise_exception('a chat begins with no answer of a tool') -}}
{%- endif -%}
{%- if tools is defined and tools -%}
    {{- '<|im_start|>system\\n# Tools\\n' -}}
    {%- for tool in tools -%}
        {{- tool | tojson -}}
        {% if not loop.last %}

        {% endif %}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
{%- endif -%}
{% for message in messages %}
    {% if message.role == 'end' %}
        {% break %}
    {% endif %}
    {%- set reasoning = message.reasoning_content | default('') | trim -%}
    {{- '<|im_start|>' ~ message.role ~ '\\n' -}}
    {% if reasoning and loop.index0 > seen.last %}
    <think>
    {{ reasoning }}
    </think>
    {% endif %}
    {{- said(message) -}}
    {%- for call in message.tool_calls or [] -%}
        {{- '\\n<tool_call>' ~ (call.function | tojson(indent=2)) ~ '</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>' }}
{% endfor %}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
WORDS = ["a", "Grüße", "🙂", "<think>", "\n\n", "  x ", END, "日本", '{"k": 1}', "{{ x }}", "'", "\\n"]


def text(draws: random.Random) -> str:
    return "".join(draws.choice(WORDS) for _ in range(draws.randrange(8)))


def tool(draws: random.Random) -> dict[str, object]:
    properties = {"wo": {"type": "string", "description": text(draws)}}
    return {
        "type": "function",
        "function": {"name": "lies", "parameters": {"type": "object", "properties": properties}},
    }


def chat(draws: random.Random) -> tuple[list[dict[str, object]], list[dict[str, object]] | None]:
    messages: list[dict[str, object]] = [{"role": "system", "content": text(draws)}] if draws.random() < 0.5 else []
    for _ in range(draws.randrange(1, 4)):
        messages.append({"role": "user", "content": text(draws)})
        if draws.random() < 0.3:
            call = {"type": "function", "function": {"name": "lies", "arguments": {"wo": text(draws), "n": 1.5}}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "content": text(draws)})
        answer: dict[str, object] = {"role": "assistant", "content": text(draws)}
        if draws.random() < 0.5:
            answer["reasoning_content"] = text(draws)
        messages.append(answer)
    return messages[: draws.randrange(1, len(messages) + 1)], [tool(draws)] if draws.random() < 0.5 else None


@pytest.mark.parametrize("with_tools", [True, False])
def test_200_chats_have_the_text_and_the_ids_of_transformers(with_tools, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = byte_tokenizer()
    source = TOOLS_AND_REASONING if with_tools else jinja_of_marks(MARKS, "\n")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=EOS, eos_token=EOS)
    theirs.chat_template = source
    ours = ChatFormat(tokenizer, JinjaTemplate(source, {"bos_token": EOS, "eos_token": EOS}), frozenset())
    for number in range(200):
        messages, tools = chat(python_random(7, number))
        if not with_tools:
            messages, tools = [{**message, "content": message["content"] or ""} for message in messages], None
        more = {} if tools is None else {"tools": tools}
        expected = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
        assert ours.template.render(messages, **more) == expected
        ids = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=True)["input_ids"]
        assert ours.tokens(messages, **more) == ids
    assert number == 199


THINK = {"prefix": "<think>\n", "suffix": "\n</think>\n\n"}
TOOLS = {"prefix": "# Tools\n<tools>\n", "suffix": "\n</tools>"}


@pytest.mark.parametrize(("reasoning", "tools"), [(THINK, TOOLS), ("leave_out", "leave_out"), (THINK, None)])
def test_200_chats_read_as_they_were_trained(reasoning, tools):
    """The text of a document, that of the template that its model brings, and that of transformers are one."""
    transformers = pytest.importorskip("transformers")
    template = ChatTemplate(**{**CHATML.model_dump(), "reasoning": reasoning, "tools": tools})
    rules = {"empty": "keep", "neighbours": "keep", "opening": "any", "unanswered": "keep"}
    renderer = ConversationRenderer(kind="conversation", shape="messages", rules=rules, template=template)
    files = trained({"chats": SPANS}, {"chats": template}, turn_ends="template")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), bos_token=EOS, eos_token=EOS)
    theirs.chat_template = files.template
    ours, with_tools = JinjaTemplate(files.template, files.special), 0
    for number in range(200):
        messages, given = chat(python_random(11, number))
        given = given if tools else None
        more = {} if given is None else {"tools": given}
        document = render_conversation(None, {"messages": messages, **more}, renderer)
        text = theirs.apply_chat_template(messages, tools=given, add_generation_prompt=False, tokenize=False)
        assert text == EOS + document.text
        assert ours.render(messages, begins_reply=False, **more) == text
        with_tools += "lies" in document.text
    assert with_tools > 50
    if tools is None:
        with pytest.raises(GenerationError, match="the model was trained without tools"):
            ours.render(MESSAGES, tools=[{"name": "f"}])


def test_a_template_may_refuse_a_chat_and_reaches_nothing_else():
    with pytest.raises(GenerationError, match="refuses this chat: a chat begins with no answer of a tool"):
        JinjaTemplate(TOOLS_AND_REASONING, {}).render([{"role": "tool", "content": "x"}])
    with pytest.raises(GenerationError, match="refuses this chat: no role robot, only system, user"):
        chat_format().template.render([{"role": "robot", "content": "x"}])
    for source in ("{{ ''.__class__.__mro__ }}", "{% for x %}", "{{ messages.append(1) }}", "{{ x.y.z }}"):
        with pytest.raises(GenerationError, match="the chat template refuses this chat"):
            JinjaTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_files_go_to_a_folder_and_back(tmp_path):
    files = ChatFiles("{{ messages }}", {"bos_token": "<s>"}, (2, 5), ("\nA:",))
    files.write(tmp_path)
    assert read_chat_files(tmp_path) == files
    assert read_chat_files(tmp_path / "nothing") == ChatFiles()


@pytest.mark.parametrize(
    ("config", "template"),
    [
        ({"chat_template": "a"}, "a"),
        ({"chat_template": [{"name": "tool_use", "template": "b"}, {"name": "default", "template": "c"}]}, "c"),
        ({"chat_template": [{"name": "tool_use", "template": "b"}]}, None),
        ({}, None),
    ],
)
def test_older_folders_have_the_template_in_the_configuration_of_the_tokenizer(config, template, tmp_path):
    tokens = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, **tokens}))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7}')
    assert read_chat_files(tmp_path) == ChatFiles(template, {"bos_token": "<s>", "eos_token": "</s>"}, (7,))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id is 'x'; expected an id, or a list of ids"),
        ("generation_config.json", "{", "holds no JSON"),
        ("tokenizer_config.json", "[]", "holds no JSON object; fetch the model again"),
    ],
)
def test_damaged_files_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(GenerationError, match=f"{name}.*{message}"):
        read_chat_files(tmp_path)


LINES = {"kind": "lines", "speakers": ["A", "B"], "assistant": ["B"]}
AFTER = {"kind": "after", "mark": "\nA:"}
SPANS = {"kind": "spans"}
CHATML = ChatTemplate(
    **{role: {"prefix": prefix, "suffix": suffix} for role, (prefix, suffix) in MARKS.items()},
    after_turn="\n",
    reserved=(),
)
MESSAGES = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": " Hello"},
    {"role": "user", "content": "how"},
]


def trained(sources, templates=None, ids=None, **changes):
    chats = ChatParameters(**{"seed": 0, "sources": sources, "context_tokens": 4, **changes})
    return trained_chat_files(chats, templates or {}, ids or {EOS: 256, END: 258}, EOS)


@pytest.mark.parametrize(
    ("rule", "changes", "rendered", "ends", "stop"),
    [
        (LINES, {}, f"{EOS}A: Hi\nB: Hello{EOS}\nA: how\nB:", (256,), ()),
        (AFTER, {}, f"{EOS}Hi\nA: Hello{EOS}\nhow\nA:", (256,), ()),
        (
            SPANS,
            {"turn_ends": "template"},
            f"{EOS}<|im_start|>user\nHi{END}\n<|im_start|>assistant\n Hello{END}\n<|im_start|>user\nhow{END}\n"
            "<|im_start|>assistant\n",
            (256, 258),
            (),
        ),
    ],
)
def test_one_talks_in_the_form_that_was_trained(rule, changes, rendered, ends, stop):
    files = trained({"chats": rule}, {"chats": CHATML}, **changes)
    assert files.template is not None
    assert JinjaTemplate(files.template, files.special).render(MESSAGES) == rendered
    assert (files.ends, files.stop) == (ends, stop)


def test_an_end_that_is_no_token_is_a_text_that_stops():
    files = trained({"chats": SPANS}, {"chats": CHATML}, {EOS: 0}, turn_ends="template")
    assert (files.ends, files.stop) == ((0,), (END,))


def test_chats_of_several_forms_need_a_name():
    with pytest.raises(GenerationError, match=r"the chats of \['a', 'b'\] have different forms: set finetuning.chats"):
        trained({"a": LINES, "b": AFTER})
    with pytest.raises(GenerationError, match=r"finetuning.chats.template is 'c'; expected one of \['a', 'b'\]"):
        trained({"a": LINES, "b": AFTER}, template="c")
    assert trained({"a": LINES, "b": LINES}) == trained({"a": LINES, "b": AFTER}, template="a")
