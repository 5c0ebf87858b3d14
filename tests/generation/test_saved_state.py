"""The recurrent state of a conversation in a file: resumed to the same bits, and refused where it is another's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from everytoken.cli import cli
from everytoken.generation import (
    ChatFiles,
    GenerationError,
    PrefixReader,
    jinja_of_marks,
    load_state,
    save_state,
)
from everytoken.models import LanguageModel
from everytoken.training.checkpoints import parameters_sha256
from everytoken.training.checkpoints.model import CheckpointConfig, save_model
from tests.generation.talking import EOS, MARKS, byte_tokenizer, save_checkpoint, talking_model
from tests.generation.test_recurrent_replies import recurrent_model
from tests.models.mamba3.shapes import LITE, MAMBA3

PROMPT = [number * 7 % 250 for number in range(200)]  # three whole blocks of 64, and 8 tokens


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def saved(path: Path, model: LanguageModel) -> str:
    reader = PrefixReader(model)
    reader.read_prompt(PROMPT)
    sha256 = parameters_sha256(model)
    assert save_state(path, reader, PROMPT, sha256) == 192
    return sha256


@pytest.mark.parametrize("parameters", [MAMBA3, MAMBA3.model_copy(update={"rank": 2}), LITE])
def test_a_state_that_was_loaded_goes_on_to_the_same_bits(parameters, tmp_path: Path) -> None:
    model, path = recurrent_model(parameters), tmp_path / "state.safetensors"
    sha256 = saved(path, model)
    longer = [*PROMPT, *range(100)]
    reader = PrefixReader(model)
    assert load_state(path, reader, longer, sha256) == 192 == reader.shared(longer)
    resumed, whole = reader.read_prompt(longer), PrefixReader(model).read_prompt(longer)
    assert torch.equal(resumed, whole)
    size = path.stat().st_size
    reader.read_prompt([*longer, *PROMPT * 20])
    save_state(path, reader, [*longer, *PROMPT * 20], sha256)
    grown = path.stat().st_size - size
    assert 0 <= grown - 8 * (4288 - 192) <= 16, "only the ids grow, and digits in the header"


def test_what_does_not_belong_to_the_conversation_is_refused(tmp_path: Path) -> None:
    model, path = recurrent_model(), tmp_path / "state.safetensors"
    sha256 = saved(path, model)
    reader = PrefixReader(model)
    before = reader.read_prompt([1, 2, 3])
    tensors, metadata = load_file(path), {"format": "everytoken-state/1", "model_sha256": sha256}
    for prompt, sha, message in (
        (PROMPT, "0" * 64, "is the state of another model: open that one, or delete .*, and the conversation is"),
        ([5, *PROMPT[1:]], sha256, "has read another text than the conversation: delete"),
        (PROMPT[:100], sha256, "has read another text than the conversation: delete"),
    ):
        with pytest.raises(GenerationError, match=message):
            load_state(path, reader, prompt, sha)
    damaged = tmp_path / "damaged.safetensors"
    for changed, told in (
        ({name: one for name, one in tensors.items() if name != "1.keys"}, metadata),
        ({**tensors, "0.phases": tensors["0.phases"].float()}, metadata),
        ({**tensors, "tokens": tensors["tokens"][:64]}, {**metadata, "format": "x"}),
        ({name: one for name, one in tensors.items() if name != "tokens"}, metadata),
        (tensors, None),
    ):
        save_file(changed, damaged, told)
        with pytest.raises(GenerationError, match=r"is no state that /save wrote|has other tensors than a state"):
            load_state(damaged, reader, PROMPT, sha256)
    damaged.write_bytes(path.read_bytes()[:500])
    with pytest.raises(GenerationError, match="is no saved state"):
        load_state(damaged, reader, PROMPT, sha256)
    assert torch.equal(reader.read_prompt([1, 2, 3]), before)


def test_nothing_is_written_where_there_is_no_state(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    of_keys, short, other = (PrefixReader(model) for model in (talking_model(), *[recurrent_model()] * 2))
    of_keys.read_prompt(PROMPT)
    short.read_prompt(PROMPT[:60])
    other.read_prompt(PROMPT)
    for reader, prompt in ((of_keys, PROMPT), (short, PROMPT[:60]), (other, [5, *PROMPT])):
        path.write_bytes(b"of an earlier conversation")
        assert save_state(path, reader, prompt, "0" * 64) == 0
        assert not path.exists()


def talk(checkpoint: Path, *lines: str, expect: int = 0) -> tuple[str, str]:
    options = ["--max-new-tokens", "12", "--temperature", "1", "--seed", "5", "--threads", "1"]
    given = "".join(f"{line}\n" for line in lines)
    result = CliRunner().invoke(cli, ["chat", str(checkpoint), *options], input=given)
    assert result.exit_code == expect, result.output
    return result.stdout, result.stderr


def test_a_chat_is_saved_with_its_state_and_resumed(tmp_path: Path) -> None:
    config = CheckpointConfig(format="everytoken-checkpoint/1", model=MAMBA3, vocab_size=259, seq_length=64, eos_id=256)
    model = tmp_path / "model"
    model.mkdir()
    save_model(model, recurrent_model(), config)
    byte_tokenizer().save(str(model / "tokenizer.json"))
    ChatFiles(jinja_of_marks(MARKS, "\n"), {"bos_token": EOS, "eos_token": EOS}, (256, 258)).write(model)
    file, state, words = tmp_path / "chat.json", tmp_path / "chat.json.state.safetensors", "so it goes on " * 10
    whole, _ = talk(model, words, "and")
    first, told = talk(model, words, f"/save {file}")
    assert told == f"[{file}: 2 messages, and the state after 128 tokens]\n" and state.is_file()
    second, told = talk(model, f"/load {file}", "and")
    assert first + second == whole and told.endswith("and the state after 128 tokens]\n")

    other = tmp_path / "other"
    other.mkdir()
    save_checkpoint(other, 400)
    assert "is the state of another model: open that one, or delete" in talk(other, f"/load {file}", expect=1)[1]
    content = json.loads(file.read_text())
    content["messages"][0]["content"] = words[1:]
    file.write_text(json.dumps(content))
    assert "has read another text than the conversation" in talk(model, f"/load {file}", expect=1)[1]
    state.write_bytes(state.read_bytes() + b" ")
    assert "is not the file that was saved with the conv" in talk(model, f"/load {file}", expect=1)[1]
    state.unlink()
    assert "is missing: the conversation will be read again]" in talk(model, f"/load {file}", "and")[1]
