"""The contract of every recipe, and what would make a run of it be refused before it begins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kedro.framework.startup import bootstrap_project

from everytoken import settings
from everytoken.cli import cli
from everytoken.contract import ContractError, contract_lines, contradictions, not_looked_up, require_consistent
from everytoken.parameters import FinetuningParameters, TrainingParameters
from tests.configuration.environments import RECIPES, ROOT, groups_of_job, inherited

CONTRACTS = Path(__file__).parent / "contracts"


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(settings, "HOOKS", ())
    bootstrap_project(ROOT)
    yield
    monkeypatch.undo()
    bootstrap_project(ROOT)


@pytest.mark.parametrize("env", RECIPES)
def test_the_contract_of_a_recipe_is_the_golden_one(env: str) -> None:
    groups, streams = groups_of_job(env)
    found = [*contract_lines(groups), *(f"to look up   {line}" for line in not_looked_up(groups))]
    assert found == (CONTRACTS / f"{env}.txt").read_text(encoding="utf-8").splitlines()
    assert list(contradictions(groups, streams)) == []


@pytest.mark.parametrize("env", RECIPES)
def test_a_recipe_inherits_only_what_it_lists(env: str) -> None:
    lines = (ROOT / "conf" / env / "inherited.txt").read_text(encoding="utf-8").splitlines()
    listed = [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]
    assert sorted(listed) == listed and len(set(listed)) == len(listed)
    assert sorted(inherited(env)) == listed


def test_the_contract_of_seed_000_has_its_three_lines() -> None:
    for env, tokenizer in (
        ("mamba", "gpt2 (vocab=50,257, EOS=50,256)"),
        ("mamba_universal", "llama3 (vocab=128,256, EOS=128,009)"),
    ):
        lines = (CONTRACTS / f"{env}.txt").read_text(encoding="utf-8").splitlines()
        assert "corpus       8,000,000,000 tokens" in lines
        assert any(line.startswith(f"tokenizer    {tokenizer}") for line in lines)
        assert "shard size   160 shards of 50,000,000 tokens (uint32)" in lines


def changed(groups: dict[str, Any], name: str, **updates: Any) -> dict[str, Any]:
    """The groups with leaves of one of them changed, given by paths with __ between names."""
    model = groups[name]
    tree = model.model_dump()
    for path, value in updates.items():
        *above, last = path.split("__")
        branch = tree
        for key in above:
            branch = branch[key]
        branch[last] = value
    return {**groups, name: type(model).model_validate(tree)}


def test_parameters_of_two_pipelines_are_compared() -> None:
    shards, of_shards = groups_of_job("mamba_small")
    chat, of_chat = groups_of_job("mythos_small")
    corpus, of_corpus = groups_of_job("test")
    for groups, streams, message in (
        (changed(shards, "training", streams=("compact",)), of_shards, "this job trains on raw_shards"),
        (changed(shards, "packing", shard_size_tokens=900_000), of_shards, "it fills no shard"),
        (changed(shards, "tokenization", tokenizer__expect_eos_id=50_257), of_shards, "outside its vocabulary"),
        (
            changed(changed(shards, "packing", dtype="uint16"), "tokenization", tokenizer__expect_vocab_size=70_000),
            of_shards,
            "pack as uint32",
        ),
        (changed(chat, "evaluation", generation__max_new_tokens=128), of_chat, "the model reads 128 tokens"),
        (changed(chat, "finetuning", chats__context_tokens=128), of_chat, "repeat fewer"),
        (changed(chat, "subsampling", held_out_share=0), of_chat, "training.optimisation.held_out looks at held-out"),
        (changed(chat, "subsampling", held_out_share=0), of_chat, "finetuning.optimisation.held_out to null"),
        (changed(corpus, "training", streams=("raw_shards",)), of_corpus, "this job trains on annotated"),
    ):
        with pytest.raises(ContractError, match=message):
            require_consistent(groups, streams)
    for groups, streams in ((shards, of_shards), (chat, of_chat), (corpus, of_corpus)):
        require_consistent(groups, streams)


def test_a_mixture_must_hold_what_is_drawn_of_it() -> None:
    shards, _ = groups_of_job("mamba_small")
    corpus, streams = groups_of_job("test")
    mixture = shards["ingestion"].mixture.model_dump()
    tree = {**shards["ingestion"].model_dump(), "mixture": {**mixture, "target_total_tokens": 50_000}}
    groups = {**corpus, "ingestion": type(shards["ingestion"]).model_validate(tree)}
    with pytest.raises(ContractError, match="draw fewer, or mix more"):
        require_consistent(groups, streams)


def test_what_is_not_looked_up_stops_a_run_before_it_begins() -> None:
    groups, streams = groups_of_job("mamba")
    with pytest.raises(ContractError, match=r"ingestion\.sources\.arxiv\.upstream\.revision is \?\?\?"):
        require_consistent(groups, streams)


def test_plan_prints_the_contract_and_refuses_what_a_run_would() -> None:
    shown = CliRunner().invoke(cli, ["plan", "--env", "mamba_small"])
    assert shown.exit_code == 0, shown.output
    for line in (CONTRACTS / "mamba_small.txt").read_text(encoding="utf-8").splitlines():
        assert line in shown.output
    refused = CliRunner().invoke(cli, ["plan", "--env", "mamba_small", "--params", "training.streams=compact"])
    assert refused.exit_code == 1
    assert "a run would be refused:\n- training.streams names compact" in refused.output


def test_a_run_begins_with_its_contract_and_a_refused_one_reads_no_data(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "kedro",
        "run",
        "--env",
        "mamba_small",
        "--params",
        "packing.shard_size_tokens=900000",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "it fills no shard" in done.stdout + done.stderr
    assert "Running node" not in done.stdout + done.stderr


def test_without_held_out_documents_the_evaluation_is_left_out_with_a_line() -> None:
    groups, _ = groups_of_job("spp")
    assert "evaluation" not in groups
    assert "held out     nothing: there is no evaluation" in list(contract_lines(groups))
    groups, _ = groups_of_job("mythos_small")
    assert isinstance(groups["finetuning"], FinetuningParameters) and "evaluation" in groups
    assert isinstance(groups["training"], TrainingParameters)
