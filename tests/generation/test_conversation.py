import pytest

from everytoken.generation import Conversation, GenerationError, PrefixReader
from tests.generation.talking import EOS, MARKS, chat_format, generation, greedy_without_cache, said, talking_model

MODEL, FORMAT = talking_model(), chat_format()


def conversation(model=MODEL, **changes):
    return Conversation(FORMAT, PrefixReader(model), generation(**changes))


def test_the_prompt_is_the_text_of_the_marks_after_a_bos():
    messages = [{"role": role, "content": role.upper()} for role in ("system", "user", "assistant", "user")]
    text = "".join(f"{MARKS[one['role']][0]}{one['content']}{MARKS[one['role']][1]}\n" for one in messages)
    assert FORMAT.template.render(messages) == f"{EOS}{text}{MARKS['assistant'][0]}"
    assert FORMAT.tokens(messages) == FORMAT.tokenizer.encode(f"{EOS}{text}{MARKS['assistant'][0]}").ids


def test_replies_over_turns_are_those_of_a_new_reader():
    """Also after an edit: nothing that was kept changes a token."""
    chat = conversation()
    for text in ("a", "bc" * 40, "d"):
        said(chat.say(text))
    again = Conversation(FORMAT, PrefixReader(MODEL), generation(), chat.messages[:-1])
    pieces, reply = said(again._answer())
    assert "".join(pieces) == reply.text == chat.messages[-1]["content"]
    _, edited = said(chat.edit("bc" * 40 + "!", turn=2))
    assert len(chat.messages) == 4
    new = conversation()
    said(new.say("a"))
    assert said(new.say("bc" * 40 + "!"))[1].tokens == edited.tokens


def test_greedy_replies_are_those_without_a_cache():
    chat = conversation(temperature=0.0)
    for text in ("a", "bc" * 30, "d"):
        prompt = FORMAT.tokens([*chat.messages, {"role": "user", "content": text}])
        _, reply = said(chat.say(text))
        expected = greedy_without_cache(MODEL, prompt, 12)
        assert [token.id for token in reply.tokens] == expected[: len(reply.tokens)]
        assert len(reply.tokens) == 12 or expected[len(reply.tokens)] in FORMAT.ends


def test_retry_draws_otherwise_and_say_counts_from_the_start():
    chat = conversation(max_new_tokens=20)
    first = said(chat.say("a"))[1]
    second = said(chat.retry())[1]
    third = said(chat.retry())[1]
    assert len({first.text, second.text, third.text}) == 3
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]
    assert said(chat.edit("a"))[1].tokens == first.tokens


def test_the_oldest_turns_are_left_out_when_the_context_is_full():
    chat = conversation(talking_model(context=230))
    chat.system = "S"
    for text in ("a" * 60, "b" * 60, "c" * 60):
        said(chat.say(text))
    assert chat.left_out == 2  # the first turn
    assert [message["content"][0] for message in chat.messages if message["role"] == "user"] == ["a", "b", "c"]
    kept = [chat.messages[0], *chat.messages[3:-1]]
    assert FORMAT.fitting(chat.messages[:-1], 230, 12) == (FORMAT.tokens(kept), 2)
    assert len(FORMAT.tokens(chat.messages[:-1])) > 230 - 12 >= len(FORMAT.tokens(kept))


def test_a_message_that_does_not_fit_is_refused_and_forgotten():
    chat = conversation()
    with pytest.raises(
        GenerationError, match=r"a prompt of 4\d\d tokens, and the model reads 400 with its reply: shorten"
    ):
        said(chat.say("x" * 400))
    assert chat.messages == []
    with pytest.raises(GenerationError, match="there is nothing to answer: the user has not said anything yet"):
        chat.retry()


def test_what_was_said_before_a_stop_stays():
    chat = conversation(max_new_tokens=50)
    speaking = chat.say("a")
    first = next(speaking)
    speaking.close()
    assert chat.messages == [{"role": "user", "content": "a"}, {"role": "assistant", "content": first}]


def test_the_system_message_is_set_changed_and_taken_away():
    chat = conversation()
    chat.system = "A"
    chat.system = "B"
    said(chat.say("a"))
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    assert chat.system == "B"
    chat.system = None
    assert chat.system is None
    assert len(chat.messages) == 2
