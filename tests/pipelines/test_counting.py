"""A job whose budgets are tokens of its own tokenizer: exact for each source, released, and refused in a circle."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from everytoken.contract import ContractError
from everytoken.parameters import TokenizationParameters
from everytoken.pipelines.counting.nodes import take_counting_tokenizer
from everytoken.shards import Store, file_sha256
from tests.test_run import Project, made
from tests.tokens.corpora import EOS, small_tokenizer

PREFIX = "tokenization:\n  seq_length: 64\n  reflection_budget: 4\n  shuffle_block: 200\n  engine: tokenizers\n"
MIXTURE = (
    "{weights: {wikipedia: 0.7, flan_cot: 0.3}, target_total_tokens: 120000, unit: tokens, "
    "allow_repeat: {flan_cot: 2}, tolerance: 0.05, documents_per_part: 100}"
)


def project_with_a_mixture(tmp_path: Path) -> Project:
    project = Project(tmp_path / "project")
    parameters = project.folder / "conf/test/parameters_ingestion.yml"
    parameters.write_text(f"{parameters.read_text()}  mixture: {MIXTURE}\n")
    return project


@pytest.mark.slow
def test_a_job_spends_its_budgets_in_its_own_tokens_and_is_released(tmp_path: Path) -> None:
    project = project_with_a_mixture(tmp_path)
    texts = ["the cat sat on the mat", "naïve café", "日本語 the", "a man, a plan, a canal: the cat", "the the the"]
    tokenizer = small_tokenizer(tmp_path / "small", texts).path("tokenizer.json")
    (project.folder / "conf/test/parameters_tokenization.yml").write_text(
        f"{PREFIX}  tokenizer: {{kind: file, path: {tokenizer}, sha256: {file_sha256(tokenizer)}}}\n"
        f'  eos_token: "{EOS}"\n'
    )
    run = ("run", "--env", "test", "--params", "ingestion.plan.n_shards=null", "--pipelines")
    output = project.kedro(*run, "ingestion,annotation,subsampling,tokenization,provenance")
    assert "counting_tokenizer" in made(output)
    data = project.folder / "data/test"
    rows = json.loads((data / "02_intermediate/selection/ledger.json").read_text())["statistics"]["mixture"]
    documents, counts = (
        Store(data / "02_intermediate" / name).load() for name in ("upstream_documents", "token_counts")
    )
    sizes = {}
    for part, counted in zip(documents, counts, strict=True):
        addresses = part.table(["source", "shard_index", "row"]).to_pylist()
        for address, tokens in zip(addresses, counted.table()["tokens"].to_pylist(), strict=True):
            sizes[tuple(address.values())] = tokens
    taken: dict[str, list[int]] = {"wikipedia": [], "flan_cot": []}
    for path in sorted((data / "02_intermediate/documents").glob("part_?????.parquet")):
        for address in pq.read_table(path, columns=["source", "shard_index", "row"]).to_pylist():
            taken[address["source"]].append(sizes[tuple(address.values())])
    for row in rows:
        own = taken[row["source"]]
        assert row["uses"] == len(own) and row["tokens"] == sum(own)
        assert sum(own[:-1]) < row["budget_tokens"] <= sum(own)
    assert [row["budget_tokens"] for row in rows] == [84_000, 36_000]
    assert "mixture_estimate" not in json.loads((data / "08_reporting/tokenization_metrics.json").read_text())
    assert made(project.kedro(*run, "ingestion")) == []
    project.kedro(*run, "release")
    recipe = json.loads((data / "08_reporting/release/recipe.json").read_text())
    assert recipe["parameters"]["ingestion"]["mixture"]["unit"] == "tokens"


def test_a_tokenizer_that_the_job_trains_is_refused_before_the_first_node(tmp_path: Path) -> None:
    output = project_with_a_mixture(tmp_path).kedro("run", "--env", "test", expect=1)
    assert "tokenization.tokenizer of 700 tokens is trained on the selected documents" in output
    assert "Stage 1 of" not in output


def test_no_trained_tokenizer_counts(tmp_path: Path) -> None:
    parameters = TokenizationParameters.model_validate(
        {
            "seed": 1,
            "tokenizer": {"kind": "train", "vocab_size": 1_234, "min_frequency": 2, "special_tokens": [EOS]},
            "fetched": str(tmp_path),
            "eos_token": EOS,
            "seq_length": 64,
            "reflection_budget": 0,
            "max_lossy_share": 0,
            "certificate": {"seed": 1, "cases": 1, "documents": 0, "recheck_share": 0},
            "shuffle_memory": 1,
        }
    )
    with pytest.raises(ContractError, match="of 1,234 tokens is trained on documents that are selected by their tok"):
        take_counting_tokenizer(parameters)
