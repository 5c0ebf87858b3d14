"""The clients that people have: the `openai` package, and `local-completions` of lm-eval."""

import json

import pytest

from everytoken.generation import PrefixReader, score
from tests.generation.talking import byte_tokenizer, chat_format
from tests.serving.served import NAME, serving, tiny_model, write_model

pytestmark = pytest.mark.sensitive
MODEL, TOKENIZER, FORMAT = tiny_model(), byte_tokenizer(), chat_format()
MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello"}]
TOKEN = "a token of a test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, "--concurrency", "1", "--queue", "0", token=TOKEN) as started:
        yield started


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.address, api_key=TOKEN, max_retries=0) as made:
        yield made


def test_openai_chats(client):
    asked = {"model": NAME, "messages": MESSAGES, "seed": 5, "max_completion_tokens": 40, "temperature": 0.8}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    (choice,) = whole.choices
    assert whole.usage.prompt_tokens == len(FORMAT.tokens(MESSAGES))
    assert len(choice.logprobs.content) <= whole.usage.completion_tokens <= 40
    assert choice.logprobs.content[0].top_logprobs[0].logprob >= choice.logprobs.content[0].top_logprobs[1].logprob
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == choice.message.content
    assert chunks[-1].usage == whole.usage
    answered = [*MESSAGES, choice.message, {"role": "user", "content": "More"}]  # as people send it back
    again = client.chat.completions.create(model=NAME, messages=answered, seed=1, max_tokens=3)
    assert again.usage.prompt_tokens > whole.usage.prompt_tokens


def test_openai_completes(client):
    asked = {"model": NAME, "prompt": "Hello", "seed": 5, "max_tokens": 20, "extra_body": {"top_k": 5}}
    whole = client.completions.create(**asked, logprobs=2, echo=True)
    (choice,) = whole.choices
    assert choice.text.startswith("Hello")
    assert choice.logprobs.token_logprobs[0] is None
    texts = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert f"Hello{''.join(texts)}" == choice.text


def test_openai_lists_models(client):
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME


def test_openai_knows_the_errors(client, server):
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=NAME, messages=MESSAGES, frequency_penalty=1.0)
    assert refused.value.param == "frequency_penalty"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with client.completions.create(model=NAME, prompt="Hello", max_tokens=90_000, temperature=0, stream=True) as stream:
        next(iter(stream))
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model=NAME, prompt="Hello", max_tokens=1)
    until_free(client)


def until_free(client):
    while client.get("/../health", cast_to=object)["active"]:
        pass


def lm(folder, server, **arguments):
    models = pytest.importorskip("lm_eval.models.openai_completions")
    return models.LocalCompletionsAPI(
        model=NAME,
        base_url=f"{server.address}/completions",
        tokenizer=str(folder),
        tokenizer_backend="huggingface",
        header={"Authorization": f"Bearer {TOKEN}"},
        max_retries=1,
        **arguments,
    )


PAIRS = [("The capital of France is", " Paris"), ("One and one is", " two"), ("", "nothing"), ("x" * 150, "y" * 70)]


def scores(context, continuation):
    """Return the log-probability of a continuation, and whether each token is the most likely one."""
    before = TOKENIZER.encode(context).ids or [TOKENIZER.token_to_id("<|endoftext|>")]
    tokens = before + TOKENIZER.encode(continuation).ids
    scored = [token for block in score(PrefixReader(MODEL), tokens, likely=1) for token in block][len(before) :]
    return sum(token.logprob for token in scored), all(token.id == token.likely[0][0] for token in scored)


def greedy(prompt, count):
    reader, tokens = PrefixReader(MODEL), []
    logits = reader.read_prompt(TOKENIZER.encode(prompt).ids)
    for _ in range(count):
        tokens.append(int(logits.argmax()))
        logits = reader.read_token(tokens[-1])
    return TOKENIZER.decode(tokens)


@pytest.mark.parametrize("batch_size", [1, 3])
def test_lm_eval_gets_the_scores_of_the_model(folder, server, batch_size):
    made = lm(folder, server, batch_size=batch_size)
    instances = pytest.importorskip("lm_eval.api.instance")
    likely = greedy("One and one is", 3)
    asked = [
        instances.Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=at)
        for at, pair in enumerate([*PAIRS, ("One and one is", likely)])
    ]
    found = made.loglikelihood(asked)
    for (context, continuation), (logprob, is_greedy) in zip(PAIRS, found, strict=False):
        expected, expected_greedy = scores(context, continuation)
        assert logprob == pytest.approx(expected, abs=1e-3)
        assert is_greedy == expected_greedy
    if "\ufffd" not in likely:
        assert found[-1][1] is True


def test_lm_eval_runs_a_task(folder, server, tmp_path):
    """Whole: documents of a file, choices, accuracy; and texts that are generated."""
    lm_eval, tasks = pytest.importorskip("lm_eval"), pytest.importorskip("lm_eval.tasks")
    documents = [
        {"question": "A", "choices": ["xyz", "b"], "answer": 0},
        {"question": "The end of", "choices": ["one", "two", "three"], "answer": 2},
    ]
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in documents))
    task = {
        "task": "choices",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}, "cache_dir": str(tmp_path / "cache")},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": " ",
        "metric_list": [{"metric": "acc"}],
    }
    own = tasks.TaskManager(include_defaults=False)
    made = lm_eval.simple_evaluate(lm(folder, server), tasks=[task], task_manager=own, bootstrap_iters=0)
    likely = [
        max(range(len(one["choices"])), key=lambda at, one=one: scores(one["question"], f" {one['choices'][at]}")[0])
        for one in documents
    ]
    expected = sum(at == one["answer"] for at, one in zip(likely, documents, strict=True)) / len(documents)
    assert made["results"]["choices"]["acc,none"] == expected
    assert made["n-samples"]["choices"]["effective"] == 2


def test_lm_eval_generates(folder, server):
    instances = pytest.importorskip("lm_eval.api.instance")
    arguments = ("Hello", {"until": ["\n\n\n"], "max_gen_toks": 30})
    asked = [instances.Instance(request_type="generate_until", doc={}, arguments=arguments, idx=0)]
    assert lm(folder, server).generate_until(asked) == [greedy("Hello", 30)]
