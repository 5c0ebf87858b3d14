"""Replies of a model with a recurrent state: the same with and without it, in constant memory, past any window."""

from __future__ import annotations

import pytest
import torch

from everytoken.generation import Conversation, PrefixReader
from everytoken.models import LanguageModel, build_model
from tests.generation.talking import chat_format, generation, greedy_without_cache, said
from tests.models.mamba3.shapes import LITE, MAMBA3


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def recurrent_model(parameters=MAMBA3, window: int = 64) -> LanguageModel:
    model = build_model(parameters, vocab_size=259, max_seq_len=window, seed=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6)
    return model


@pytest.mark.parametrize("parameters", [MAMBA3, MAMBA3.model_copy(update={"rank": 2}), LITE])
def test_greedy_replies_over_turns_are_those_without_a_state(parameters) -> None:
    model = recurrent_model(parameters)
    chat = Conversation(chat_format(), PrefixReader(model), generation(temperature=0.0))
    for turn in (
        "Hello",
        "and a longer message, so that a prompt has more than one block of it, and more than a window",
    ):
        _, reply = said(chat.say(turn))
        prompt = chat_format().tokens(chat.messages[:-1])
        expected = greedy_without_cache(model, prompt, len(reply.tokens))
        assert [token.id for token in reply.tokens] == expected
    assert len(prompt) > model.max_seq_len


def test_a_state_takes_the_same_bytes_however_much_was_read() -> None:
    reader = PrefixReader(recurrent_model())
    sizes = set()
    for count in (65, 640, 10_000):
        reader.read_prompt([count % 200] * count)
        sizes.add(reader.bytes)
    assert len(sizes) == 1 and reader.room > 10**9
