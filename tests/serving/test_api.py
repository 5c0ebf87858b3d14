"""Both APIs over HTTP: replies, streams, log-probabilities, refusals."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from everytoken.generation import PrefixReader, speak
from tests.generation.talking import byte_tokenizer, chat_format, generation, said
from tests.serving.served import NAME, serving, tiny_model, write_model

pytestmark = pytest.mark.sensitive
MODEL, TOKENIZER, FORMAT = tiny_model(), byte_tokenizer(), chat_format()
MESSAGES = [{"role": "user", "content": "Hello"}]
CHAT = {"messages": MESSAGES, "max_tokens": 12, "seed": 5}
COMPLETION = {"prompt": "Hello", "max_tokens": 12, "seed": 5}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(write_model(tmp_path_factory.mktemp("model")), "--max-body-bytes", "400000") as started:
        yield started


def expected(prompt, ends=FORMAT.ends, **changes):
    """Return the reply of the model itself."""
    speaking = speak(PrefixReader(MODEL), TOKENIZER, prompt, generation(**changes), ends=ends, likely=2)
    return said(speaking)[1]


def logprobs_without_cache(tokens):
    with torch.no_grad():
        return torch.log_softmax(MODEL(torch.tensor([tokens]))[0].double(), 1)


def test_a_chat_is_answered_as_by_the_model(server):
    found = server.answer("chat/completions", **CHAT)
    reply = expected(FORMAT.tokens(MESSAGES))
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": reply.text},
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert found["usage"] == {"prompt_tokens": reply.prompt_tokens, "completion_tokens": 12, "total_tokens": 37}
    assert (found["model"], found["object"], found["seed"]) == (NAME, "chat.completion", 5)


def test_a_prompt_is_continued_as_by_the_model(server):
    ids = TOKENIZER.encode("Hello").ids
    text = server.answer("completions", **COMPLETION)["choices"][0]["text"]
    assert (
        text
        == expected(ids).text
        == server.answer("completions", **{**COMPLETION, "prompt": ids})["choices"][0]["text"]
    )


def test_prompts_of_one_request_are_continued_as_alone(server):
    prompts = ["Hello", TOKENIZER.encode("other").ids, "Hello"]
    together = server.answer("completions", **{**COMPLETION, "prompt": prompts})
    alone = [server.answer("completions", **{**COMPLETION, "prompt": one}) for one in prompts]
    assert [one["index"] for one in together["choices"]] == [0, 1, 2]
    assert [{**one, "index": 0} for one in together["choices"]] == [one["choices"][0] for one in alone]
    assert together["usage"]["total_tokens"] == sum(one["usage"]["total_tokens"] for one in alone)


@pytest.mark.parametrize("changes", [{}, {"stop": ["\x14", "z"]}, {"temperature": 0}, {"max_tokens": 300}, {"seed": 8}])
def test_a_stream_of_a_chat_is_its_reply(server, changes):
    asked = {**CHAT, "logprobs": True, "top_logprobs": 2, **changes}
    whole = server.answer("chat/completions", **asked)
    first, *chunks, last = server.events("chat/completions", **asked, stream_options={"include_usage": True})
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choices = [chunk["choices"][0] for chunk in chunks]
    (choice,) = whole["choices"]
    assert "".join(one["delta"].get("content", "") for one in choices) == choice["message"]["content"]
    assert [token for one in choices for token in one["logprobs"]["content"]] == choice["logprobs"]["content"]
    assert [one["finish_reason"] for one in choices] == [None] * (len(choices) - 1) + [choice["finish_reason"]]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("changes", [{}, {"echo": True}, {"echo": True, "prompt": ["a", "bc"]}, {"stop": "\x14"}])
def test_a_stream_of_completions_is_its_reply(server, changes):
    asked = {**COMPLETION, "logprobs": 1, **changes}
    whole = server.answer("completions", **asked)
    chunks = [chunk["choices"][0] for chunk in server.events("completions", **asked)]
    for choice in whole["choices"]:
        own = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(one["text"] for one in own) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for one in own for value in one["logprobs"][name]] == values
        assert own[-1]["finish_reason"] == choice["finish_reason"]


def test_logprobs_of_a_chat_are_those_of_the_model(server):
    prompt = FORMAT.tokens(MESSAGES)
    found = server.answer("chat/completions", **CHAT, temperature=0.3, logprobs=True, top_logprobs=3)
    tokens = found["choices"][0]["logprobs"]["content"]
    ids = [token["bytes"][0] for token in tokens]
    drawn = [token.id for token in expected(prompt, temperature=0.3).tokens]
    assert ids == [ord(bytes_of(number)) for number in drawn]
    for row, number, token in zip(
        logprobs_without_cache([*prompt, *drawn])[len(prompt) - 1 :], drawn, tokens, strict=False
    ):
        assert token["logprob"] == pytest.approx(float(row[number]), abs=1e-4)
        likely = [one["logprob"] for one in token["top_logprobs"]]
        assert likely == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
    assert (
        server.answer("chat/completions", **CHAT, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        == []
    )


def bytes_of(number):
    """Return the byte of a token of the tokenizer of bytes."""
    from everytoken.serving.token_texts import TokenTexts

    return TokenTexts(TOKENIZER).bytes(number)


def test_echo_scores_the_prompt(server):
    """As lm-eval asks: ids, `echo`, one log-probability a token, one new token."""
    ids = TOKENIZER.encode("What is this? " * 20).ids
    asked = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    (choice,) = server.answer("completions", **asked)["choices"]
    found, rows = choice["logprobs"], logprobs_without_cache(ids)
    assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    assert len(found["token_logprobs"]) == len(ids) + 1
    assert found["token_logprobs"][1:-1] == pytest.approx(
        [float(rows[i, ids[i + 1]]) for i in range(len(ids) - 1)], abs=1e-4
    )
    best = [max(likely.values()) for likely in found["top_logprobs"][1:]]
    assert best == pytest.approx(rows.max(1).values.tolist(), abs=1e-4)
    assert choice["text"].startswith("What is this? " * 20)
    assert found["text_offset"] == list(range(len(ids) + 1))
    (scored,) = server.answer("completions", **{**asked, "max_tokens": 0})["choices"]
    assert (scored["text"], scored["finish_reason"]) == ("What is this? " * 20, "length")
    assert scored["logprobs"]["token_logprobs"] == found["token_logprobs"][:-1]


def test_the_token_that_ends_a_text_is_counted_and_scored(server):
    """Else a client that takes the last token off would lose one of the prompt."""
    prompt = TOKENIZER.encode("Hello").ids
    seed = next(seed for seed in range(2000) if not expected(prompt, seed=seed, max_new_tokens=1).tokens)
    found = server.answer("completions", prompt="Hello", max_tokens=1, seed=seed, echo=True, logprobs=1)
    (choice,) = found["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Hello", "stop")
    assert len(choice["logprobs"]["tokens"]) == len(prompt) + 1
    assert choice["logprobs"]["tokens"][-1] in ("<|endoftext|>", "<|im_end|>")
    assert found["usage"]["completion_tokens"] == 1


def test_a_text_that_stops_is_no_part_of_the_reply(server):
    text = server.answer("completions", **{**COMPLETION, "max_tokens": 60})["choices"][0]["text"]
    stop = text[20:22]
    for given in (stop, ["never said", stop]):
        (choice,) = server.answer("completions", **{**COMPLETION, "max_tokens": 60, "stop": given})["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")


def test_the_seed_decides_the_reply_and_is_told(server):
    texts = {}
    for seed in (1, 2, None, None):
        found = server.answer("completions", **{**COMPLETION, "seed": seed})
        texts[found["seed"]] = found["choices"][0]["text"]
    assert len(set(texts.values())) == 4
    for seed, text in texts.items():
        assert server.answer("completions", **{**COMPLETION, "seed": seed})["choices"][0]["text"] == text


def test_a_reply_is_the_same_alone_and_with_others(server):
    """Bits of log-probabilities too, and whichever slot has read whatever before."""

    def ask(number):
        asked = {"messages": [{"role": "user", "content": "x" * (40 * number)}], "max_tokens": 40, "seed": number}
        return server.answer("chat/completions", **asked, logprobs=True)["choices"]

    alone = [ask(number) for number in range(1, 5)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            assert list(threads.map(ask, range(1, 5))) == alone


@pytest.mark.parametrize(
    ("path", "content", "status", "param", "message"),
    [
        ("chat/completions", {**CHAT, "model": "other"}, 404, "model", "no model 'other' here, only 'tiny'"),
        ("chat/completions", {**CHAT, "tools": [{}]}, 400, "tools", "cannot do"),
        ("chat/completions", {**CHAT, "what": 1}, 400, "what", "no field that this server knows"),
        ("chat/completions", {**CHAT, "\ud800": 1}, 400, "\\ud800", "no field"),
        ("chat/completions", {**CHAT, "temperature": "hot"}, 400, "temperature", "valid number"),
        ("chat/completions", {"messages": [{"role": "user", "content": 1}]}, 400, "messages[0].content", "string"),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "content": None}]},
            400,
            "messages[0].content",
            "it is null, which OpenAI's API allows for an assistant's message with tool_calls alone",
        ),
        ("chat/completions", {"messages": [{"role": "pope", "content": ""}]}, 400, "messages", "no role pope"),
        ("completions", {}, 400, "prompt", "Field required"),
        ("completions", {**COMPLETION, "prompt": [1, 259]}, 400, "prompt", "259 is no token id: expected 0 to 258"),
    ],
)
def test_a_refusal_names_the_field(server, path, content, status, param, message):
    for stream in (False, True):
        found, error = server.refusal(path, **content, stream=stream)
        assert (found, error["param"], error["type"]) == (status, param, "invalid_request_error")
        assert message in error["message"]


def test_a_body_that_is_no_json_is_refused(server):
    status, _, found = server.ask("POST", "/v1/completions", raw='{"model": ')
    assert (status, found["error"]["param"]) == (400, None)
    assert "no JSON" in found["error"]["message"]
    status, _, found = server.ask("POST", "/v1/completions", raw="{}", headers={"Content-Type": "text/plain"})
    assert status == 400 and "application/json" in found["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[1]", b'"a"', b"3", b"NaN", b"\xff", b"a=b", b"[" * 3000, b'{"a": 1}{', b"\x00", b"{'a': 1}"],
)
def test_a_body_that_is_no_object_is_refused_in_words(server, body):
    for path in ("/v1/completions", "/v1/chat/completions"):
        status, _, found = server.ask("POST", path, raw=body)
        assert (status, found["error"]["type"]) == (400, "invalid_request_error")
        assert "JSON" in found["error"]["message"], found


def test_a_body_that_is_too_large_is_refused(server):
    body = json.dumps({"model": NAME, "prompt": "x" * 400_000})
    status, _, found = server.ask("POST", "/v1/completions", raw=body)
    assert status == 413 and "at most 400,000 bytes" in found["error"]["message"]
    pieces = (body[start : start + 1000].encode() for start in range(0, len(body), 1000))  # of no length that is told
    status, _, found = server.ask("POST", "/v1/completions", raw=pieces)
    assert status == 413 and "at most 400,000 bytes" in found["error"]["message"]


def test_a_prompt_beyond_the_context_is_refused(server):
    asked = {
        "completions": {"prompt": "x" * 100_001},
        "chat/completions": {"messages": [{"role": "user", "content": "x" * 99_990}]},
    }
    for (path, content), param in zip(asked.items(), ("prompt", "messages"), strict=True):
        status, error = server.refusal(path, **content)
        assert (status, error["param"], error["code"]) == (400, param, "context_length_exceeded")
        assert "expected 1 to 100,000, the model's context" in error["message"]


def test_models_are_listed(server):
    _, _, listed = server.ask("GET", "/v1/models")
    assert [model["id"] for model in listed["data"]] == [NAME]
    assert server.ask("GET", f"/v1/models/{NAME}")[2] == listed["data"][0]
    status, _, found = server.ask("GET", "/v1/models/other")
    assert (status, found["error"]["code"]) == (404, "model_not_found")


def test_another_name_of_the_host_is_refused(server):
    """As a web page would ask that lets its name point to loopback."""
    for host, expected_status in (("evil.example", 403), ("", 403), ("localhost:1", 200), ("[::1]:80", 200)):
        assert server.ask("GET", "/v1/models", headers={"Host": host})[0] == expected_status
