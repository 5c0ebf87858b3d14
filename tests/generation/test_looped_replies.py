"""Replies of a model that loops a block: the same with and without a cache, and how many loops they took."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from everytoken.cli import cli
from everytoken.generation import Conversation, PrefixReader
from everytoken.generation.decoding import decode
from everytoken.seeds import torch_generator
from everytoken.serving import ServingError, open_model
from tests.generation.looping import LOOPS, greedy_with_loops, looping_model, save_looping_checkpoint
from tests.generation.talking import chat_format, generation, said, save_checkpoint, talking_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_looping_checkpoint(tmp_path_factory.mktemp("looping"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("attention", ["gqa", "mla"])
@pytest.mark.parametrize("loops", [1, LOOPS, LOOPS + 2])
def test_greedy_replies_over_turns_are_those_without_a_cache(attention: str, loops: int) -> None:
    model = looping_model(attention)
    model.loops = loops
    chat = Conversation(chat_format(), PrefixReader(model), generation(temperature=0.0))
    for turn in ("Hello", "and a longer message, so that a prompt has more than one block of it"):
        _, reply = said(chat.say(turn))
        prompt = chat_format().tokens(chat.messages[:-1])
        count = len(reply.tokens) + (reply.end is not None)
        expected, mean = greedy_with_loops(model, prompt, count)
        assert [token.id for token in reply.tokens] == expected[: len(reply.tokens)]
        assert reply.loops == pytest.approx(mean)
        assert 1 <= reply.loops <= loops


def test_loops_differ_from_token_to_token_and_a_model_without_loops_has_none() -> None:
    reader = PrefixReader(looping_model())
    drawn = decode(reader, [1, 2, 3], generation(), ends=(), generator=torch_generator(0, "draws"))
    assert len(list(drawn)) == 12
    assert reader.mean_loops(0) not in (1.0, float(LOOPS))
    plain = Conversation(chat_format(), PrefixReader(talking_model()), generation())
    assert said(plain.say("Hi"))[1].loops is None


def test_chat_shows_mean_loops_and_takes_a_number_of_loops(checkpoint: Path) -> None:
    outputs = {}
    for loops in (None, 1, LOOPS):
        arguments = ["chat", str(checkpoint), "--max-new-tokens", "9", "--temperature", "0", "--threads", "1"]
        result = CliRunner().invoke(cli, [*arguments, *([] if loops is None else ["--loops", str(loops)])], input="Hi")
        assert result.exit_code == 0, result.output
        outputs[loops] = result
    assert outputs[None].stdout == outputs[LOOPS].stdout
    assert "1.00 loops a token" in outputs[1].stderr
    assert "loops a token" in outputs[None].stderr and "1.00 loops" not in outputs[None].stderr


def test_generate_shows_mean_loops_and_takes_a_number_of_loops(checkpoint: Path) -> None:
    arguments = ["generate", str(checkpoint), "--prompt", "Once", "--max-new-tokens", "5", "--threads", "1"]
    result = CliRunner().invoke(cli, [*arguments, "--loops", "1"])
    assert result.exit_code == 0, result.output
    assert "1.00 loops a token" in result.stderr and result.stdout.startswith("Once")


def test_loops_are_refused_where_no_block_is_looped_or_none_is_taken(checkpoint: Path, tmp_path: Path) -> None:
    plain = save_checkpoint(tmp_path, 60)
    with pytest.raises(ServingError, match="loops no block"):
        open_model(plain, loops=2)
    result = CliRunner().invoke(cli, ["chat", str(checkpoint), "--loops", "0"])
    assert result.exit_code == 2 and "not in the range x>=1" in result.stderr
