import pytest
from pydantic import ValidationError

from everytoken.generation import GenerationParameters
from everytoken.serving.refusals import Refusal
from everytoken.serving.requests import ASKS_NOTHING, PASSED_OVER, ChatRequest, CompletionRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
COMPLETION = {"model": "m", "prompt": "a"}


def field_of(error):
    return ".".join(map(str, error.errors()[0]["loc"]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("n", 2),
        ("best_of", 3),
        ("logit_bias", {"5": 1}),
        ("frequency_penalty", 0.1),
        ("presence_penalty", -1),
        ("store", True),
        ("separate_reasoning", True),
        ("audio", {}),
        ("web_search_options", {}),
        ("suffix", "end"),
    ],
)
@pytest.mark.parametrize(("kind", "valid"), [(ChatRequest, CHAT), (CompletionRequest, COMPLETION)])
def test_what_cannot_be_done_is_refused_by_name(kind, valid, name, value):
    with pytest.raises(Refusal, match=f"{name} is .*, which this server cannot do") as refused:
        kind.model_validate({**valid, name: value})
    assert (refused.value.status, refused.value.param) == (400, name)


def test_fields_that_ask_nothing_change_nothing():
    asks = {name: value for name, values in ASKS_NOTHING.items() for value in (*values, None)}
    asks |= dict.fromkeys(ASKS_NOTHING) | dict.fromkeys(PASSED_OVER, "x")
    for name, values in ASKS_NOTHING.items():
        for value in values:
            assert ChatRequest.model_validate({**CHAT, name: value}) == ChatRequest.model_validate(CHAT)
    assert ChatRequest.model_validate({**CHAT, **asks}) == ChatRequest.model_validate(CHAT)
    nulls = dict.fromkeys(set(ChatRequest.model_fields) - CHAT.keys())
    assert ChatRequest.model_validate({**CHAT, **nulls}) == ChatRequest.model_validate(CHAT)


def test_whether_a_model_thinks_reaches_its_template():
    asked = {"enable_thinking": False}
    assert ChatRequest.model_validate({**CHAT, "chat_template_kwargs": asked}).template_values == asked
    assert ChatRequest.model_validate(CHAT).template_values == {}
    with pytest.raises(ValidationError, match="builtin_tools"):
        ChatRequest.model_validate({**CHAT, "chat_template_kwargs": {**asked, "builtin_tools": []}})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"stop": "\ud800"}, "stop.0"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"what": 1}, "stream": True}, "stream_options.what"),
        ({"max_tokens": True}, "max_tokens"),
        ({"unknown": 1}, "unknown"),
        ({"model": None}, "model"),
    ],
)
def test_a_wrong_value_names_its_field(changes, field):
    for kind, valid in ((ChatRequest, CHAT), (CompletionRequest, COMPLETION)):
        with pytest.raises(ValidationError) as refused:
            kind.model_validate({**valid, **changes})
        assert field_of(refused.value) == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "\udfff"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "messages.0.tool_calls"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_a_wrong_chat_names_its_field(changes, field):
    with pytest.raises(ValidationError) as refused:
        ChatRequest.model_validate({**CHAT, **changes})
    assert field_of(refused.value) == field


@pytest.mark.parametrize("prompt", [[], "", [""], [[]], [1, "a"], [True], "\ud800", {"a": 1}, [[1], "\ud800"], 3])
def test_a_wrong_prompt_is_refused(prompt):
    with pytest.raises(ValidationError) as refused:
        CompletionRequest.model_validate({**COMPLETION, "prompt": prompt})
    assert field_of(refused.value) == "prompt"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([[1], "a"], [[1], "a"]),
    ],
)
def test_a_prompt_is_text_or_ids_or_many(prompt, prompts):
    assert CompletionRequest.model_validate({**COMPLETION, "prompt": prompt}).prompt == prompts


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(changes, field):
    with pytest.raises(Refusal) as refused:
        ChatRequest.model_validate({**CHAT, **changes})
    assert refused.value.param == field


def test_what_a_request_says_is_how_tokens_are_drawn():
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.5, "seed": 3}
    request = ChatRequest.model_validate({**CHAT, **asked, "stop": "b"})
    assert request.parameters(seed=9, max_new_tokens=4, stop=("a",)) == GenerationParameters(
        **asked, max_new_tokens=4, stop=("a", "b")
    )
    assert ChatRequest.model_validate(CHAT).parameters(seed=9, max_new_tokens=4) == GenerationParameters(
        seed=9, max_new_tokens=4, temperature=1.0
    )


def test_a_message_that_was_answered_is_sent_back_as_it_came():
    message = {"role": "assistant", "content": "a", "refusal": None, "tool_calls": None}
    (sent,) = ChatRequest.model_validate({**CHAT, "messages": [message]}).messages
    assert sent.model_dump() == {"role": "assistant", "content": "a"}
