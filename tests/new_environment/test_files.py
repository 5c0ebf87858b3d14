"""An environment that is written passes the checks of every other one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from kedro.config import OmegaConfigLoader

from everytoken import parameters
from everytoken.configuration import CONFIG_LOADER_ARGS, JobConfigLoader, read_plainly
from everytoken.contract import ContractError, contract_lines, require_consistent
from everytoken.corpus import CorpusError
from everytoken.new_environment import SampleFacts, decide, facts_lines, require_new, write_environment
from tests.new_environment.test_decisions import GIVEN

ROOT = Path(__file__).resolve().parents[2]
BASE = ("wikipedia", "chats", "champ", "flan_cot")
MODELS = {name.removesuffix("Parameters").lower(): getattr(parameters, name) for name in parameters.__all__}
JOB = ("ingestion", "annotation", "subsampling", "tokenization", "training", "evaluation", "finetuning", "release")
CASES: dict[str, dict[str, Any]] = {
    "german": {},
    "english": {"languages": {"en": 200}, "classes": {0: 80, 4: 20}},
    "harmless": {"languages": {"en": 200}, "classes": {0: 200}},
    "chats": {"shape": "messages", "languages": {"en": 200}},
    "few": {"files": 3, "estimated_documents": 3, "lengths": (10, 20, 30), "estimated_characters": 60},
    "large": {"estimated_characters": 10**11, "estimated_documents": 10**7, "is_whole": False, "bytes": 10**11},
    "names": {"root": "/texts/of mine: 'a', \"b\" #1 ü", "pattern": "[*]: no.txt", "text_column": "doc: text"},
    "older": {"encoding": "cp1252", "bad": {"not_an_object": 3}, "duplicates": 7, "languages": {"other": 200}},
}


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project") / "conf"
    shutil.copytree(ROOT / "conf" / "base", folder / "base")
    (folder / "local").mkdir()
    for name, changes in CASES.items():
        facts = SampleFacts(**{**GIVEN, **{key: value for key, value in changes.items() if key != "classes"}})
        written = write_environment(folder, name, facts, decide(facts, changes.get("classes")), BASE)
        assert [path.name for path in written] == ["globals.yml", "parameters.yml"]
        assert len(written[1].read_text().splitlines()) <= 60
        assert [*facts_lines(facts)]
    return folder


def groups_of(conf: Path, name: str) -> dict[str, Any]:
    loader = JobConfigLoader(str(conf), env=name, **CONFIG_LOADER_ARGS)
    return {group: MODELS[group].model_validate(loader["parameters"][group]) for group in JOB}


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_valid_and_do_not_contradict_each_other(conf: Path, name: str) -> None:
    groups = groups_of(conf, name)
    run = {group: of_group for group, of_group in groups.items() if group not in ("finetuning", "release")}
    require_consistent(run, frozenset({"compact", "annotated"}))
    assert list(groups["ingestion"].active_sources) == ["chats_text" if name == "chats" else name], "base has chats"
    assert [*contract_lines(run)]
    assert (groups["annotation"].scorer.kind == "none") is (name != "english")
    assert (
        read_plainly(conf, name, "parameters")
        == OmegaConfigLoader(str(conf), env=name, **CONFIG_LOADER_ARGS)["parameters"]
    )
    with pytest.raises(ContractError, match=r"release\.licences\.\w+\.name is \?\?\?"):
        require_consistent(groups, frozenset({"compact", "annotated"}))


def test_what_was_found_is_what_is_written(conf: Path) -> None:
    named = groups_of(conf, "names")["ingestion"].active_sources["names"]
    given = CASES["names"]
    assert (named.upstream.root, named.upstream.pattern) == (given["root"], given["pattern"])
    assert named.renderer.text_column == given["text_column"]
    older = groups_of(conf, "older")["ingestion"]
    assert older.active_sources["older"].encoding == "cp1252" and older.max_bad_share > 0
    assert groups_of(conf, "chats")["ingestion"].active_sources["chats_text"].renderer.shape == "messages"
    few = groups_of(conf, "few")
    assert few["training"].optimisation.held_out is None and few["evaluation"].generation.prompts == ("",)
    english = groups_of(conf, "english")
    assert english["subsampling"].annotation_threshold == 3
    assert english["training"].streams == ("compact", "annotated")
    assert yaml.safe_load((conf / "large/globals.yml").read_text())["model_size"] == "135m"


def test_a_name_that_is_taken_or_none_is_refused(conf: Path) -> None:
    require_new(conf, "other_2")
    for name, message in (
        ("german", "conf/german exists. Choose another"),
        ("Mine", "is no name"),
        ("../x", "is no name"),
    ):
        with pytest.raises(CorpusError, match=message.replace(".", r"\.")):
            require_new(conf, name)
