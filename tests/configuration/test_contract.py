"""The contract of every recipe, and what would make a run of it be refused before it begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from tokenizers import Tokenizer
from tokenizers.models import BPE

from everytoken import settings
from everytoken.cli import cli
from everytoken.contract import (
    ContractError,
    contract_lines,
    contradictions,
    data_configuration,
    not_looked_up,
    require_consistent,
)
from everytoken.parameters import FinetuningParameters, ReleaseParameters, TrainingParameters
from everytoken.tokens import TokenizerError
from everytoken.tokens.streams import STREAM_KINDS
from everytoken.tokens.tokenizer import TokenizerIds, require_claims
from tests.configuration.environments import RECIPES, ROOT, groups_of_job, inherited
from tests.warm_kedro import run_kedro

CONTRACTS = Path(__file__).parent / "contracts"


@pytest.fixture(autouse=True, scope="module")
def project() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(settings, "HOOKS", ())
        bootstrap_project(ROOT)
        yield
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


def test_the_contract_of_seed_000_has_its_three_lines_and_the_facts_of_its_schedule() -> None:
    for env, tokenizer in (
        ("mamba", "gpt2 (vocab=50,257, EOS=50,256)"),
        ("mamba_universal", "llama3 (vocab=128,256, EOS=128,009)"),
    ):
        lines = (CONTRACTS / f"{env}.txt").read_text(encoding="utf-8").splitlines()
        assert "corpus       8,000,000,000 tokens" in lines
        assert any(line.startswith(f"tokenizer    {tokenizer}") for line in lines)
        assert "shard size   160 shards of 50,000,000 tokens (uint32)" in lines
        (steps,) = (line for line in lines if line.startswith("training "))
        assert "256,000 steps of 32 windows: 16,777,216,000 predictions (2.10 of each token of the mixture)" in steps
        (rate,) = (line for line in lines if line.startswith("rate "))
        assert rate.endswith("53% of it after half of all steps, 1.5e-05 at the last"), "where the original ends"


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


def counted_with(groups: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The groups with a mixture in tokens, and the tokenizer that another job trains."""
    mixture = {"unit": "tokens", "chars_per_token": None}
    counted = changed(groups, "ingestion", **{f"mixture__{name}": value for name, value in mixture.items()})
    tokenizer = {**other["tokenization"].tokenizer.model_dump(), "vocab_size": 16_384}
    tree = {**groups["tokenization"].model_dump(), "tokenizer": tokenizer}
    return {**counted, "tokenization": type(groups["tokenization"]).model_validate(tree)}


def test_parameters_of_two_pipelines_are_compared() -> None:
    shards, of_shards = groups_of_job("mamba_small")
    chat, of_chat = groups_of_job("mythos_small")
    corpus, of_corpus = groups_of_job("test")
    for groups, streams, message in (
        (changed(shards, "training", streams=("compact",)), of_shards, "this job trains on raw_shards"),
        (changed(shards, "packing", shard_size_tokens=900_000), of_shards, "it fills no shard"),
        (
            changed(shards, "packing", n_shards=17, cross_document_boundary=True),
            of_shards,
            "850,000 in all, and ingestion.mixture.target_total_tokens is 823,000: 27,000 are missing",
        ),
        (counted_with(shards, corpus), of_shards, "of 16,384 tokens is trained on the selected documents: give a tok"),
        (changed(shards, "tokenization", tokenizer__expect_eos_id=50_257), of_shards, "outside its vocabulary"),
        (
            changed(changed(shards, "packing", dtype="uint16"), "tokenization", tokenizer__expect_vocab_size=70_000),
            of_shards,
            "pack as uint32",
        ),
        (changed(chat, "evaluation", generation__max_new_tokens=128), of_chat, "the model reads 128 tokens"),
        (changed(chat, "finetuning", chats__context_tokens=128), of_chat, "repeat fewer"),
        (changed(chat, "subsampling", held_out_share=0), of_chat, "training.optimisation.held_out looks at held-out"),
        (
            changed(changed(chat, "evaluation", generation__prompts=None), "subsampling", held_out_share=0),
            of_chat,
            "give prompts, or hold some out",
        ),
        (changed(chat, "subsampling", held_out_share=0), of_chat, "finetuning.optimisation.held_out to null"),
        (
            changed(corpus, "annotation", scorer={"kind": "none"}),
            of_corpus,
            "annotation_threshold is 3: set it to null",
        ),
        (changed(corpus, "subsampling", annotation_threshold=None), of_corpus, "give the lowest class that is annot"),
        (changed(corpus, "training", streams=("raw_shards",)), of_corpus, "this job trains on annotated"),
    ):
        with pytest.raises(ContractError, match=message):
            require_consistent(groups, streams)
    unscored = changed(corpus, "annotation", scorer={"kind": "none"})
    none = (changed(unscored, "subsampling", annotation_threshold=None), of_corpus)
    for groups, streams in ((shards, of_shards), (chat, of_chat), (corpus, of_corpus), none):
        require_consistent(groups, streams)


def test_a_vocabulary_without_eos_is_reported_before_the_run(tmp_path: Path) -> None:
    groups, streams = groups_of_job("test")
    trained = groups["tokenization"].tokenizer.special_tokens
    with pytest.raises(ContractError, match=r"eos_token is '</s>', and .*special_tokens are .*: add it to them"):
        require_consistent(changed(groups, "tokenization", eos_token="</s>"), streams)
    require_consistent(
        changed(groups, "tokenization", eos_token="</s>", tokenizer__special_tokens=(*trained, "</s>")), streams
    )

    path = tmp_path / "tokenizer.json"
    tokenizer = Tokenizer(BPE(dict.fromkeys("ab", 0) | {"b": 1}, []))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(path))
    tree = groups["tokenization"].model_dump()

    def given(eos: str, path: Path = path, **more: Any) -> dict[str, Any]:
        chosen = {"kind": "file", "path": str(path), "sha256": "0" * 64, **more}
        model = type(groups["tokenization"]).model_validate({**tree, "eos_token": eos, "tokenizer": chosen})
        return {**groups, "tokenization": model}

    with pytest.raises(ContractError, match=r"no token '</s>'. Take one of its special tokens, \['<|end|>'\], or give"):
        require_consistent(given("</s>"), streams)
    require_consistent(given("<|end|>"), streams)
    require_consistent(given("</s>", add_tokens=("</s>",)), streams)
    require_consistent(given("</s>", tmp_path / "gone.json"), streams)  # no file: its node says so


def test_bounds_of_a_score_that_no_scorer_gives_stop_before_the_run() -> None:
    groups, streams = groups_of_job("test")
    with pytest.raises(ContractError, match=r"score_bounds names 'quality', and annotation.second_scores has \[\]"):
        require_consistent(changed(groups, "subsampling", score_bounds={"quality": {"at_least": 1.0}}), streams)


def test_strata_of_languages_that_nothing_identifies_stop_before_the_run() -> None:
    groups, streams = groups_of_job("test")
    by_language = changed(groups, "subsampling", strata={"key": "language"})
    with pytest.raises(ContractError, match=r"strata\.key is language, and ingestion\.languages is null"):
        require_consistent(by_language, streams)
    given = {"kind": "langid", "version": "0.4.0", "max_characters": 9, "min_letters": 1, "min_confidence": 0.5}
    require_consistent(changed(by_language, "ingestion", languages=given), streams)


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


def test_a_licence_that_is_not_looked_up_is_called_one() -> None:
    values = dict.fromkeys(("name", "spdx", "url", "attribution"), "???")
    release = ReleaseParameters.model_validate(
        {"pretty_name": "x", "languages": ["fr"], "memory": 65536, "licences": {"mine": values}}
    )
    told = [*not_looked_up({"release": release})]
    assert len(told) == 4 and all("look the licence up where the text is from" in line for line in told)
    assert told[0].startswith("release.licences.mine.name is ???: ")


def test_plan_prints_the_contract_and_refuses_what_a_run_would() -> None:
    shown = CliRunner().invoke(cli, ["plan", "--env", "mamba_small"])
    assert shown.exit_code == 0, shown.output
    for line in (CONTRACTS / "mamba_small.txt").read_text(encoding="utf-8").splitlines():
        assert line in shown.output
    refused = CliRunner().invoke(cli, ["plan", "--env", "mamba_small", "--params", "training.streams=compact"])
    assert refused.exit_code == 1
    assert "a run would be refused:\n- training.streams names compact" in refused.output


def test_a_run_begins_with_its_contract_and_a_refused_one_reads_no_data(tmp_path: Path) -> None:
    command = ["run", "--env", "mamba_small", "--params", "packing.shard_size_tokens=900000"]
    done = run_kedro(command, folder=ROOT, environment=os.environ, timeout=600)
    assert done.returncode != 0
    assert "it fills no shard" in done.stdout
    assert "Stage 1 of" not in done.stdout


def test_without_held_out_documents_the_evaluation_is_left_out_with_a_line() -> None:
    groups, _ = groups_of_job("spp")
    assert "evaluation" not in groups
    assert "held out     nothing: there is no evaluation" in list(contract_lines(groups))
    groups, _ = groups_of_job("mythos_small")
    assert isinstance(groups["finetuning"], FinetuningParameters) and "evaluation" in groups
    assert isinstance(groups["training"], TrainingParameters)


def test_the_marks_of_mythos_are_tokens_in_every_step() -> None:
    groups, _ = groups_of_job("mythos")
    marks = ["<|im_start|>", "<|im_end|>"]
    assert groups["tokenization"].tokenizer.special_tokens == ("<|endoftext|>", *marks)
    assert groups["tokenization"].special_tokens_in_text == "control", "of documents"
    chats = groups["finetuning"].chats
    assert (list(chats.marks), chats.turn_ends) == (marks, "template"), "of turns"
    renderer = groups["ingestion"].active_sources["gsm8k"].renderer
    assert list(renderer.template.reserved) == marks, "turns that spell one are set aside"
    assert renderer.template.assistant.suffix == marks[1]
    kept = groups["training"].checkpoints
    assert kept.milestone_steps and kept.milestone_steps % kept.every_steps == 0


def test_the_configuration_of_raw_shards_has_hashes_of_what_made_them() -> None:
    groups, _ = groups_of_job("mamba")
    ids = TokenizerIds(sha256="ab" * 32, vocab_size=50_257, eos_id=50_256)

    def configuration(**changes: Any) -> dict[str, Any]:
        given = {**groups, **changes}
        return data_configuration(given["ingestion"], given["tokenization"], given["packing"], ids, "cd" * 32)

    one = configuration()
    assert one["_tokenizer_family"] == one["pipeline"]["tokenizer"]["name"] == "gpt2"
    tokenizer, sharding = one["pipeline"]["tokenizer"], one["pipeline"]["sharding"]
    assert (tokenizer["vocab_size"], tokenizer["eos_token_id"], tokenizer["pad_token_id"]) == (50_257, 50_256, 50_256)
    assert sharding == {
        "shard_size_tokens": 50_000_000,
        "dtype": "uint32",
        "target_total_tokens": 8_000_000_000,
        "cross_document_boundary_ok": False,
    }
    assert one["_raw_shards"] == "cd" * 32 and one["_generator"].startswith("everytoken ")
    smaller = configuration(**changed(groups, "packing", shard_size_tokens=1_000_000))
    assert (smaller["_mixture_hash"], smaller["_config_hash"] == one["_config_hash"]) == (one["_mixture_hash"], False)
    alone = configuration(**changed(groups, "ingestion", only=("openmath",)))
    assert (alone["_config_hash"], alone["_mixture_hash"] == one["_mixture_hash"]) == (one["_config_hash"], False)


def test_what_is_said_of_a_tokenizer_is_compared_with_its_file() -> None:
    found = TokenizerIds(sha256="ab" * 32, vocab_size=50_257, eos_id=50_256)
    require_claims(found, vocab_size=None, eos_id=None)
    require_claims(found, vocab_size=50_257, eos_id=50_256)
    with pytest.raises(TokenizerError, match=r"expect_vocab_size is 50,000, and the file abab.* has 50,257"):
        require_claims(found, vocab_size=50_000, eos_id=None)
    with pytest.raises(TokenizerError, match=r"expect_eos_id is 0, and the file abab.* has 50,256"):
        require_claims(found, vocab_size=50_257, eos_id=0)


def test_published_reflections_take_the_place_of_a_generator() -> None:
    def made(name: str, **runtime: object) -> set[str]:
        with KedroSession.create(project_path=ROOT, env="test", runtime_params=runtime) as session:
            session.load_context()
            return {node.name.rpartition(".")[2] for node in pipelines[name].nodes}

    splicing = {"splice_reflections", "say_reflected_stream_is_made", "index_reflections", "report_reflections"}
    splicing |= {"show_reflections"}
    upstream = {"kind": "path", "root": "/nowhere"}
    published = {"upstream": upstream, "generator": "a-model", "memory": 1}
    matching = {"find_published_reflections", "match_reflections", "take_columns"}
    assert made("reflection") == splicing | {"generate_reflections", "merge_reflections"}
    assert made("reflection", reflection={"published": published}) == splicing | matching
    assert made("reflection") == splicing | {"generate_reflections", "merge_reflections"}


def test_a_pipeline_by_name_is_its_part_of_the_job_and_the_next_context_forgets_it() -> None:
    def trained_on(env: str) -> set[str]:
        with KedroSession.create(project_path=ROOT, env=env) as session:
            session.load_context()
            (node,) = [node for node in pipelines["training"].nodes if node.name == "training.train_model"]
            return {name for name in node.inputs if "stream" in name or "shards" in name}

    reflected = {kind.input for kind in STREAM_KINDS.values() if kind.base is not None}
    windows = {"compact_stream", "annotated_stream", "canary_stream_when_made", *reflected}
    assert trained_on("test") == windows
    assert trained_on("mamba_small") == {"raw_shards"}
    assert trained_on("mythos_small") == {"compact_stream"}
    assert trained_on("test") == windows
