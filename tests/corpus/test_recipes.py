"""The published recipes in conf/: what they say is what the code reads, and nothing is pinned that is no commit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kedro.config import OmegaConfigLoader
from pydantic import ValidationError

from everytoken.corpus import ExpectParameters
from everytoken.corpus.errors import UpstreamError
from everytoken.corpus.ingestion import PlanParameters, shard_order
from everytoken.corpus.ingestion.source import find_files
from everytoken.parameters import IngestionParameters
from everytoken.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[2]
RECIPES = {"spp": 1, "mamba": 7, "mamba_universal": 5, "mythos": 12}
UNPINNED = {("mamba", "arxiv"), ("mamba_universal", "arxiv")}


def ingestion(environment: str) -> dict[str, Any]:
    loader = OmegaConfigLoader(str(ROOT / "conf"), env=environment, **CONFIG_LOADER_ARGS)
    assert loader["globals"]["data"] == f"data/{environment}"
    parameters: dict[str, Any] = loader["parameters"]["ingestion"]
    return parameters


def sources(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: source for name, source in parameters["sources"].items() if source is not None}


@pytest.mark.parametrize("environment", RECIPES)
def test_a_recipe_is_read_as_it_is_written(environment: str) -> None:
    parameters = ingestion(environment)
    assert len(sources(parameters)) == RECIPES[environment]
    read = IngestionParameters.model_validate(parameters)
    assert set(read.active_sources) == set(sources(parameters))
    if read.mixture is not None:
        assert set(read.mixture.weights) == set(read.active_sources)


@pytest.mark.parametrize("environment", RECIPES)
def test_what_is_not_pinned_stops_the_run_and_is_named_in_the_docs(environment: str, tmp_path: Path) -> None:
    parameters = ingestion(environment)
    found = {name: source["upstream"]["revision"] for name, source in sources(parameters).items()}
    assert {(environment, name) for name, revision in found.items() if revision == "???"} == {
        place for place in UNPINNED if place[0] == environment
    }
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name, revision in found.items():
        dataset = parameters["sources"][name]["upstream"]["dataset"]
        pinned = re.fullmatch("[0-9a-f]{40}", revision)
        assert (f"| `{dataset}` | `{revision[:8]}` |" if pinned else f"| `{dataset}` | **look up and pin** |") in text
    active = IngestionParameters.model_validate(parameters).active_sources
    for name in (name for name, revision in found.items() if revision == "???"):
        with pytest.raises(UpstreamError, match=rf"source '{name}': upstream.revision .* its commit is not known"):
            find_files(name, active[name].upstream, tmp_path)


def test_spp_reads_the_first_shards_of_the_published_order() -> None:
    plan = ingestion("spp")["plan"]
    assert plan == {"seed": 42, "offset": 0, "n_shards": 20_000, "expect_shards": 63_911}


@pytest.mark.parametrize("environment", ["mamba", "mamba_universal"])
def test_the_mixtures_aim_at_160_shards_of_50_million_tokens(environment: str) -> None:
    mixture = ingestion(environment)["mixture"]
    assert mixture["target_total_tokens"] == 160 * 50_000_000
    assert sum(mixture["weights"].values()) == pytest.approx(1, abs=1e-12)


def test_wikipedia_is_capped_at_32_gibibytes_of_text() -> None:
    read = IngestionParameters.model_validate(ingestion("mythos")).active_sources
    caps = {name: source.max_text_bytes for name, source in read.items()}
    assert {name: cap for name, cap in caps.items() if cap is not None} == {"wikipedia_en": 32 << 30}


def test_only_some_sources_of_a_recipe_are_read_with_their_weights_over_the_sum() -> None:
    parameters = ingestion("mamba")
    whole = IngestionParameters.model_validate(parameters)
    assert whole.active_mixture == whole.mixture is not None
    names = list(whole.active_sources)
    one = IngestionParameters.model_validate({**parameters, "only": names[2]})
    assert list(one.active_sources) == [names[2]] and one.active_mixture is not None
    assert one.active_mixture.weights == {names[2]: 1.0}
    for written in (f"{names[4]} + {names[0]}", f"{names[4]}|{names[0]}", [names[4], names[0]]):
        two = IngestionParameters.model_validate({**parameters, "only": written})
        assert list(two.active_sources) == [names[0], names[4]], "in the order of the sources"
        assert two.active_mixture is not None and whole.mixture is not None
        weights = [whole.mixture.weights[name] for name in (names[0], names[4])]
        assert list(two.active_mixture.weights.values()) == pytest.approx([weight / sum(weights) for weight in weights])
        assert two.active_mixture.target_total_tokens == whole.mixture.target_total_tokens
    without = IngestionParameters.model_validate({**parameters, "mixture": None, "only": [names[1]]})
    assert (list(without.active_sources), without.active_mixture) == ([names[1]], None)


def test_only_what_there_is_can_be_read() -> None:
    parameters = ingestion("mamba")
    known = sorted(sources(parameters))
    off = {**parameters["sources"], known[0]: None}
    for changed, said in (
        ({"only": ["arxif"]}, rf"only names \['arxif'\], the sources are {re.escape(str(known))}; correct the names"),
        ({"only": known[0], "sources": off, "mixture": None}, rf"only names \['{known[0]}'\], the sources are"),
        ({"only": []}, "at least 1 item"),
        ({"only": ""}, r"only names \[''\], the sources are"),
    ):
        with pytest.raises(ValidationError, match=said):
            IngestionParameters.model_validate({**parameters, **changed})


def test_what_spp_expects_is_what_its_parameters_pin() -> None:
    loader = OmegaConfigLoader(str(ROOT / "conf"), env="spp", **CONFIG_LOADER_ARGS)
    given = loader["parameters"]
    expect = ExpectParameters.model_validate(given["expect"])
    fatal, tokenization, plan = expect.fatal, given["tokenization"], given["ingestion"]["plan"]
    assert fatal is not None and expect.compare is not None and expect.because
    assert fatal.revisions == {name: one["upstream"]["revision"] for name, one in sources(given["ingestion"]).items()}
    assert fatal.shards == plan["expect_shards"]
    assert fatal.first_shards == tuple(shard_order(63_911, PlanParameters.model_validate(plan))[:5])
    assert fatal.longest_document == tokenization["seq_length"] - tokenization["reflection_budget"] - 1
    assert fatal.tokenizer_sha256 == tokenization["tokenizer"]["sha256"]
