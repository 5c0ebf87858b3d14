"""The commands for models: what a training would take, texts, and the way to other programs and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everytoken.cli import cli
from everytoken.training.checkpoint import CheckpointConfig, load_model, parameters_sha256, save_model
from tests.training.tiny import LLAMA, byte_encoder, byte_model

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
    monkeypatch.chdir(Path(__file__).parents[1])
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


def test_a_checkpoint_without_tokenizer_says_so(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    assert "--tokenizer" in run("generate", checkpoint, "--prompt", "to", expect=2).output
