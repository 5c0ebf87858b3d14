"""What keys of chats mean: weights and masks, labels, reasoning, tools, history; and samples of real files."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest

from everytoken.corpus.errors import BAD_ROW_REASONS, BadRow
from everytoken.corpus.rendering.chats import SHAPES, read_chat
from everytoken.corpus.rendering.meanings import Shape, without_keys
from everytoken.corpus.rendering.renderers import render_conversation
from everytoken.corpus.rendering.templates import CHAT_REASONS, ChatRules, apply_rules
from everytoken.corpus.rendering.trees import cut_tree, gather_tree
from everytoken.corpus.rendering.turns import Turn
from tests.corpus.rendering.test_chat_keys import BASE, RENDERS, renderer
from tests.shared_assets import shared_folder

SAMPLES = "chats_and_files"


def chat(*answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a record in which a user asks before each answer."""
    pairs = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": "!", **keys}] for keys in answers]
    return {"messages": [message for pair in pairs for message in pair], **more}


def trained(record: dict[str, Any]) -> list[bool]:
    return [turn.trained for turn in read_chat(record, "messages") if turn.role == "assistant"]


def refusal(record: dict[str, Any], shape: Shape = "messages") -> str:
    with pytest.raises(BadRow) as caught:
        read_chat(record, shape)
    assert caught.value.reason in CHAT_REASONS and caught.value.reason not in BAD_ROW_REASONS
    return str(caught.value)


# --- what is trained


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (chat({}, {}), [True, True]),
        (chat({"weight": 0}, {"weight": 1.0}), [False, True]),
        (chat({"train": False}, {"training": True, "weight": None}), [False, True]),
        (chat({"loss_weight": 0.0, "train": False}, {}), [False, True]),
        (chat({"loss": False}, {"loss_scale": 1}), [False, True]),
        (chat({}, {}, loss_mask=[0, 1]), [False, True]),
        (chat({}, {}, loss_mask=[0, 1, 0, 0]), [True, False]),
        (chat({"weight": 0}, {}, loss_mask=[1, 1]), [False, True]),
        (chat({}, {"weight": 1}, weight=0), [False, False]),
    ],
)
def test_weights_say_which_turns_are_trained(record: dict[str, Any], expected: list[bool]) -> None:
    assert trained(record) == expected


def test_what_is_not_trained_is_in_the_text_and_in_no_span() -> None:
    record = chat({"content": "It is 5.", "weight": 0}, {"content": "It is 4."})
    document = render_conversation(None, record, renderer("messages"))
    assert "It is 5." in document.text
    assert [document.text[start:end] for start, end in document.assistant_spans or ()] == ["It is 4.</>"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (chat({"weight": 0.5}), "'weight' of messages[1] is 0.5, expected 0 or 1"),
    (chat({"train": "no"}), "'train' of messages[1] is no, expected 0 or 1"),
    (chat({"weight": 0, "train": True}), "'train' of messages[1] is True, and another key there says the opposite"),
    (chat({}, loss_mask=[0, 1, 1]), "'loss_mask' of the record has 3 entries, and the chat 1 turns"),
    (chat({}, loss_mask=[1, 1]), "trains another role than the assistant"),
    (chat({}, loss_mask=[0.5]), "has an entry that is neither 0 nor 1"),
    (chat({}, loss=2.31), "'loss' of the record is 2.31"),
    (chat({}, label=1), "'label' of the record is int, expected true or false"),
    (chat({}, label=False), "chat_not_wanted: 'label' of the record is false"),
    (chat({}, kto_tag=False), "chat_not_wanted: 'kto_tag' of the record is false"),
    (chat({}, images=["1.jpg"]), "'images' of the record carries meaning that shape messages does not read"),
    (chat({"image": b"x"}), "'image' of messages[1] carries meaning"),
    (chat({}, history=[["a", "b"]]), "'history' of the record carries meaning"),
    (chat({"thinking": True}), "'thinking' of messages[1] is bool, expected a string"),
    (chat({"thinking": "a", "reasoning": "b"}), "'thinking' of messages[1] differs from another key"),
    (chat({}, tools="none"), "'tools' of the record is no JSON with distinct keys"),
    (chat({}, tools='[{"name": "f", "name": "g"}]'), "is no JSON with distinct keys"),
    (chat({}, tools="[" * 100_000), "is no JSON with distinct keys"),
    (chat({}, tools=["f"]), "'tools' of the record is list, expected a list of objects"),
    (chat({}, tools=[{"name": "f"}], functions=[{"name": "f"}]), "'tools' of the record is given with 'functions'"),
    (chat({"tools": [{"name": "f"}]}), "'tools' of messages[1] is of role assistant, expected system"),
    (chat({}, chosen=[{"role": "assistant", "content": "x"}]), "'chosen' of the record is list"),
    ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "trains role user"),
    ({"messages": [{"role": "user", "content": "x", "reasoning": "y"}]}, "is of role user, expected assistant"),
]


@pytest.mark.parametrize(("record", "detail"), REFUSED)
def test_what_cannot_be_honoured_is_named_with_its_place(record: dict[str, Any], detail: str) -> None:
    assert detail in refusal(record)


def test_ignoring_the_key_that_a_refusal_names_reads_the_chat() -> None:
    """The remedy of the message is tried."""
    for keys in ({"images": ["1.jpg"]}, {"loss": 2.31}, {"label": 3}, {"tools": "none"}, {"history": [["a", "b"]]}):
        ((name, _),) = keys.items()
        record = chat({}, **keys)
        assert f"'{name}' of the record" in refusal(record)
        assert "Name it in the renderer's ignore" in refusal(record)
        assert read_chat(without_keys(record, "messages", [name]), "messages") == read_chat(chat({}), "messages")


SYSTEM = {"role": "system", "content": "", "tools": [{"name": "g"}]}
THINKING = {"type": "thinking", "text": "b"}
LABELS = ("label", "kto_tag")
MORE: list[tuple[Shape, dict[str, Any]]] = [
    ("alpaca", {"instruction": "a", "output": "b", "history": [["a"]]}),
    ("alpaca", {"instruction": "a", "output": "b", "chosen": "c", "rejected": "d"}),
    (
        "messages",
        {"messages": [{"role": "assistant", "reasoning": "a", "content": [THINKING]}]},
    ),
    (
        "messages",
        chat({}, tools=[{"name": "f"}], messages=[SYSTEM]),
    ),
]


@pytest.mark.parametrize(
    ("shape", "record"),
    [
        *(("messages", record) for record, _ in REFUSED if record.get("label", record.get("kto_tag")) is not False),
        *MORE,
    ],
)
def test_a_chat_is_read_when_each_refusal_is_answered_as_it_says(shape: Shape, record: dict[str, Any]) -> None:
    ignored: list[str] = []
    for _ in range(3):
        try:
            document = render_conversation(None, record, renderer(shape, ignore=ignored))
        except BadRow as error:
            found = re.search(
                r"'(\w+)' of .*\. Name it in the renderer's ignore to read the chat without it$", str(error)
            )
            assert found, error
            ignored.append(found[1])
    assert ignored and document.text


def test_turns_and_templates_are_changed_as_a_refusal_says() -> None:
    tools = [{"role": "system", "content": "a"}, {"role": "system", "content": "b", "tools": [{"name": "f"}]}]
    weights = [{"role": "assistant", "content": "a", "weight": 0}, {"role": "assistant", "content": "b"}]
    for messages in (tools, weights):
        record = {"messages": messages}
        merging = {"empty": "keep", "neighbours": "merge", "opening": "any", "unanswered": "keep"}
        with pytest.raises(BadRow, match=r"Set rules.neighbours to keep$"):
            render_conversation(None, record, renderer("messages", rules=merging))
        assert render_conversation(None, record, renderer("messages", rules=merging | {"neighbours": "keep"})).text
    for what, record in (("reasoning", chat({"thinking": "x"})), ("tools", chat({}, tools=[{"name": "f"}]))):
        without = {key: value for key, value in RENDERS.items() if key != what}
        with pytest.raises(BadRow, match=rf"Set template.{what} to its marks, or to leave_out$"):
            render_conversation(None, record, renderer("messages", template=without))
        for rule in (RENDERS[what], "leave_out"):
            assert render_conversation(None, record, renderer("messages", template={**without, what: rule})).text


def test_parts_are_put_in_the_order_that_a_refusal_names() -> None:
    parts = [{"type": kind, "text": kind} for kind in ("thinking", "text", "tool_call")]
    for order in ([1, 0, 2], [2, 1], [0, 2, 1], [2, 0]):
        record = {"messages": [{"role": "assistant", "content": [parts[at] for at in order]}]}
        assert refusal(record).endswith("Put them in this order in the file: reasoning, text, calls of tools")
        assert read_chat(
            {"messages": [{"role": "assistant", "content": [parts[at] for at in sorted(order)]}]}, "messages"
        )


# --- reasoning, tools, what was said before


def test_typed_parts_are_reasoning_text_and_calls_in_this_order() -> None:
    parts = [
        {"type": "reasoning", "value": "Think."},
        {"type": "text", "value": "Look."},
        {"type": "tool_call", "value": '{"name": "f"}'},
    ]
    (turn,) = read_chat({"messages": [{"role": "assistant", "content": parts}]}, "messages")
    assert turn == Turn("assistant", 'Look.\n{"name": "f"}', "Think.")
    assert "Put them in this order in the file: reasoning, text" in refusal(
        {"messages": [{"role": "assistant", "content": parts[::-1]}]}
    )
    anthropic = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Think."}, {"type": "text", "text": "A"}],
    }
    assert read_chat({"messages": [anthropic]}, "messages") == [Turn("assistant", "A", "Think.")]


def test_tools_are_of_the_system_turn_that_is_there_or_of_a_new_one() -> None:
    tools = [{"name": "f", "é": 1.0}]
    written = ('{"name":"f","é":1.0}',)
    assert read_chat(chat({}, tools=tools), "messages")[0] == Turn("system", "", tools=written)
    assert read_chat(chat({}, tools=json.dumps(tools), system="Be."), "messages")[0] == Turn(
        "system", "Be.", tools=written
    )
    own = {"messages": [{"role": "system", "content": "Be.", "functions": tools}, *chat({})["messages"]]}
    assert read_chat(own, "messages")[0] == Turn("system", "Be.", tools=written)
    assert "with tools of its system turn" in refusal({**own, "tools": tools})


def test_history_and_reasoning_of_a_pair_become_turns() -> None:
    record = {"instruction": "c", "output": "d", "history": [["a", "b"]], "system": "s", "reasoning": "r"}
    said = [(turn.role, turn.content, turn.reasoning) for turn in read_chat(record, "alpaca")]
    expected = [
        ("system", "s", ""),
        ("user", "a", ""),
        ("assistant", "b", ""),
        ("user", "c", ""),
        ("assistant", "d", "r"),
    ]
    assert said == expected
    assert "has an item 0 that is no pair of texts" in refusal({**record, "history": [["a"]]}, "alpaca")


def test_of_a_preference_only_the_chosen_answer_is_trained() -> None:
    human, answer = {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}
    record = {"conversations": [human, answer, human], "chosen": answer, "rejected": {"from": "gpt", "value": "No"}}
    turns = read_chat(record, "sharegpt")
    assert [(turn.content, turn.trained) for turn in turns if turn.role == "assistant"] == [
        ("Hello", False),
        ("Hello", True),
    ]
    alpaca = {"instruction": "Hi", "chosen": "Hello", "rejected": "No"}
    assert read_chat(alpaca, "alpaca")[-1] == Turn("assistant", "Hello")
    assert "'chosen' of the record is given with 'output'" in refusal({**alpaca, "output": "x"}, "alpaca")


def test_a_prompt_before_a_completion_or_a_choice_is_read_and_not_trained() -> None:
    prompt = chat({})["messages"]
    last = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}]
    for record, shape in (
        ({"prompt": [*prompt, last[0]], "completion": last[1:]}, "prompt_completion"),
        ({"prompt": [*prompt, last[0]], "chosen": last[1:]}, "chosen"),
        ({"prompt": [*prompt, last[0]], "chosen": "yes"}, "chosen"),
    ):
        answers = [turn for turn in read_chat(record, shape) if turn.role == "assistant"]
        assert [(turn.content, turn.trained) for turn in answers] == [("!", False), ("yes", True)]
    whole = {"prompt": prompt[:1], "chosen": prompt}
    assert len(read_chat(whole, "chosen")) == len(prompt), "the prompt is not said twice"


def test_a_transcript_is_cut_at_its_speakers() -> None:
    text = "\n\nHuman: Hi\n\nthere \n\nAssistant: Hello\n\nHuman:\n\nAssistant: Human: no"
    said = [(turn.role, turn.content) for turn in read_chat({"chosen": text}, "transcript")]
    assert said == [("user", "Hi\n\nthere "), ("assistant", "Hello"), ("user", ""), ("assistant", "Human: no")]
    for broken in ("Hi\n\nHuman: x", ""):
        with pytest.raises(BadRow, match="does not begin with 'Human:'"):
            read_chat({"chosen": broken}, "transcript")


def test_bare_strings_alternate() -> None:
    assert [turn.role for turn in read_chat({"data": ["a", "b", "c"]}, "strings")] == ["user", "assistant", "user"]
    with pytest.raises(BadRow, match=r"data\[1\] is null, expected a string"):
        read_chat({"data": ["a", None]}, "strings")


def test_merging_keeps_what_each_turn_means() -> None:
    rules = ChatRules(empty="keep", neighbours="merge", opening="any", unanswered="keep")
    first = Turn("assistant", "a", "r", trained=False)
    assert apply_rules([first, Turn("assistant", "b", trained=False)], rules) == [first._replace(content="a\n\nb")]
    for second in (Turn("assistant", "b"), Turn("assistant", "b", "later", trained=False)):
        with pytest.raises(BadRow, match=r"chat_not_honoured.*Set rules.neighbours to keep"):
            apply_rules([first, second], rules)


def test_a_turn_of_only_reasoning_or_tools_is_not_empty() -> None:
    rules = ChatRules(empty="drop", neighbours="keep", opening="any", unanswered="keep")
    turns = [Turn("system", "", tools=("{}",)), Turn("assistant", "", "r")]
    assert apply_rules([*turns, Turn("user", "")], rules) == turns


# --- trees in each form


def test_roots_and_flat_messages_are_the_same_tree() -> None:
    tree = BASE["oasst_tree"]
    root = {**tree["prompt"], "message_tree_id": "t"}
    answer = root["replies"][0]
    flat = [{**answer, "parent_id": "a"}, {**root, "parent_id": None}]
    flat = [{key: value for key, value in message.items() if key != "replies"} for message in flat]
    for record in (root, {"messages": flat}):
        document = render_conversation(None, record, renderer("oasst_tree"))
        assert document == render_conversation(None, tree, renderer("oasst_tree"))
        assert [row["message_tree_id"] for row in cut_tree(None, record)] == ["t"]


@pytest.mark.parametrize(
    ("parents", "detail"),
    [
        ({"a": None, "b": "c"}, "'parent_id' is 'c', which is no message"),
        ({"a": None, "b": None}, "2 messages have no 'parent_id'"),
        ({"a": None, "b": "c", "c": "b"}, "their own ancestors"),
    ],
)
def test_flat_messages_that_are_no_tree_are_refused(parents: dict[str, str | None], detail: str) -> None:
    messages = [{"message_id": name, "parent_id": parent} for name, parent in parents.items()]
    with pytest.raises(BadRow, match=detail):
        gather_tree({"messages": messages})


@pytest.mark.parametrize("shape", get_args(Shape))
def test_a_missing_key_is_never_called_null(shape: Shape) -> None:
    with pytest.raises(BadRow) as caught:
        SHAPES[shape].turns({"nothing": 1})
    assert "null" not in caught.value.detail
    assert "has no '" in caught.value.detail


# --- real files


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("chat_weight.jsonl", "messages", ["It is 4.</>"]),
        ("chat_axolotl_train.jsonl", "messages", ["4</>"]),
        ("chat_lf_loss_mask.jsonl", "sharegpt", ["4</>"]),
        ("chat_reasoning.jsonl", "messages", ["(Let me add two and two.)4</>"]),
        ("chat_alpaca_history.jsonl", "alpaca", ["20 degrees Celsius.</>", "68 degrees.</>"]),
        ("chat_kto.jsonl", "messages", "chat_not_wanted"),
        ("chat_img.jsonl", "messages", "chat_not_honoured"),
        ("hh_chosen_string.jsonl", "transcript", ["Hello</>"]),
        ("lf_dpo_sharegpt.json", "sharegpt", ["Hello</>"]),
        ("lf_v1_typed_value.jsonl", "messages", ["Hello!</>"]),
        ("trl_prompt_completion_messages.jsonl", "prompt_completion", ["Hello!</>"]),
    ],
)
def test_samples_of_public_formats_are_read_as_their_authors_meant(name: str, shape: str, expected: Any) -> None:
    record = json.loads((shared_folder("samples") / SAMPLES / name).read_text(encoding="utf-8"))
    record = record[0] if isinstance(record, list) else record
    try:
        document = render_conversation(None, record, renderer(shape, template=RENDERS))
        assert [document.text[start:end] for start, end in document.assistant_spans or ()] == expected
    except BadRow as error:
        assert error.reason == expected


def test_the_sample_with_tools_renders_definitions_and_calls() -> None:
    record = json.loads((shared_folder("samples") / SAMPLES / "chat_tools.jsonl").read_text(encoding="utf-8"))
    text = render_conversation(None, record, renderer("messages")).text
    assert text.startswith('<system>[{"function":{"name":"get_weather","parameters":{}},"type":"function"}]</>\n<user>')
    assert '<assistant>[{"function":{"arguments":"{\\"city\\":\\"Paris\\"}","name":"get_weather"}' in text
