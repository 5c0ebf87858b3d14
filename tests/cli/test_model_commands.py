"""The commands for models: what a training would take, texts, and the way to other programs and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from everytoken.cli import cli
from everytoken.training.checkpoints.checkpoint_folder import complete, state_document
from everytoken.training.checkpoints.model import CheckpointConfig, load_model, parameters_sha256, save_model
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import byte_encoder, byte_model

PUBLISHED = "compact=427681689,annotated=102772028,canary=60000"


def run(*arguments: str | Path, expect: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == expect, result.output
    return result


@pytest.mark.parametrize(
    ("env", "parameters", "tokens", "read"),
    [
        ("spp", "2,969,742,336", "1,966,080 a step x 254,313 steps = 499,999,703,040", "46.02 % of an epoch"),
        ("spp_1b7", "1,711,376,384", "1,966,080 a step x 50,863 steps = 100,000,727,040", "9.20 % of an epoch"),
    ],
)
def test_the_published_runs_have_their_published_numbers(
    env: str, parameters: str, tokens: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    lines = run("plan", "--env", env, "--vocab-size", "49152", "--streams", PUBLISHED).output.splitlines()
    assert f"parameters: {parameters}" in lines
    assert any(line.startswith(f"tokens: {tokens}") for line in lines)
    assert sum(line.endswith(read) for line in lines) == 3


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    encoder, model = byte_encoder(folder), byte_model()
    config = CheckpointConfig(
        format="everytoken-checkpoint/1",
        model=LLAMA,
        vocab_size=257,
        seq_length=model.max_seq_len,
        eos_id=encoder.tokenizer.eos_id,
    )
    save_model(folder, model, config)
    return folder


def test_a_checkpoint_goes_to_a_hugging_face_folder_and_back_bit_for_bit(tmp_path: Path, checkpoint: Path) -> None:
    run("export", checkpoint, "--out", tmp_path / "hf")
    assert json.loads((tmp_path / "hf/config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    run("import", tmp_path / "hf", "--out", tmp_path / "back")
    models = [load_model(folder) for folder in (checkpoint, tmp_path / "back")]
    assert parameters_sha256(models[0]) == parameters_sha256(models[1])
    assert "is there already" in run("import", tmp_path / "hf", "--out", tmp_path / "back", expect=1).output


def test_generate_continues_a_prompt_and_repeats_itself_for_a_seed(checkpoint: Path) -> None:
    given = ("generate", checkpoint, "--prompt", "to", "--max-new-tokens", "5", "--seed", "3")
    one = run(*given)
    assert one.stdout.startswith("to") and "[5 tokens, ended by max_new_tokens]" in one.stderr
    assert run(*given).stdout == one.stdout
    assert run(*given[:-1], "4").stdout != one.stdout


def test_generate_opens_what_chat_opens(tmp_path: Path, checkpoint: Path) -> None:
    run("export", checkpoint, "--out", tmp_path / "hf")
    given = ("--prompt", "to\\n", "--prompt", "<|endoftext|>a", "--max-new-tokens", "5", "--threads", "1")
    assert run("generate", tmp_path / "hf", *given).stdout == run("generate", checkpoint, *given).stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", [["generate", "--prompt", "to"], ["chat"]])
def test_a_device_that_is_not_here_is_refused(checkpoint: Path, command: list[str]) -> None:
    result = run(*command, checkpoint, "--device", "cuda", expect=1)
    assert "device is cuda, and torch finds no such device here; use device: cpu" in result.output
    assert "Traceback" not in result.output


def test_a_checkpoint_without_tokenizer_says_so(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert "--tokenizer" in run("generate", checkpoint, "--prompt", "to", expect=2).output


def test_a_changed_byte_is_found_before_a_checkpoint_is_used(tmp_path: Path, checkpoint: Path) -> None:
    complete(checkpoint, state_document(3, {}))
    run("generate", checkpoint, "--prompt", "to", "--max-new-tokens", "1")
    weights = bytearray((checkpoint / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (checkpoint / "model.safetensors").write_bytes(weights)
    for command in (("generate", checkpoint, "--prompt", "to"), ("export", checkpoint, "--out", tmp_path / "hf")):
        assert "model.safetensors: expected SHA-256" in run(*command, expect=1).output
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train", "--params", "training.data.replay=[0,10]"), "must contain a key and a value"),
        (("train", "--processes", "2", "--params", "training=3"), "--params sets training to 3"),
        (("train", "--write-job", "nosuch/job.json"), "there is no folder"),
        (("plan", "--streams", "=5"), "expected NAME=WINDOWS"),
        (("plan", "--env", "nosuch"), "there is no environment 'nosuch'"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code in (1, 2) and said in result.output, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_size_that_does_not_exist_is_named_with_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(Path(__file__).parents[2] / "conf", tmp_path / "conf")
    shutil.copy(Path(__file__).parents[2] / "pyproject.toml", tmp_path)
    (tmp_path / "src/everytoken").mkdir(parents=True)  # Kedro looks for the folder; the package is imported already
    (tmp_path / "conf/local/globals.yml").write_text("model_size: 136m\n")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, ["plan", "--vocab-size", "100"])
    assert "model_size = '136m'" in result.output and "parameters_sizes.yml" in result.output, result.output
