"""A record that fixes generator and prompt: a run that names it is refused when anything differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everytoken.reflections import ReflectionError, freeze_prompt
from everytoken.reflections.development import Candidate, versioned_builder
from everytoken.reflections.ranks import GenerationPlan, submit
from everytoken.shards import Artifact
from tests.reflections.development.scripted_judge import ALIAS, development_plan, prompt, write_prompts
from tests.reflections.fault_server import FaultServer, fault_server
from tests.reflections.generated import annotated_stream, texts

pytestmark = pytest.mark.sensitive

Built = tuple[Artifact, Artifact]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return annotated_stream(tmp_path_factory.mktemp("built"), texts(12))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with fault_server() as running:
        yield running


def naming(plan: GenerationPlan, record: Path) -> GenerationPlan:
    return replace(plan, parameters=plan.parameters.model_copy(update={"frozen": str(record)}))


def test_a_run_that_names_the_record_is_made_when_all_is_as_frozen(
    tmp_path: Path, built: Built, server: FaultServer
) -> None:
    plan = development_plan(built, server, write_prompts(tmp_path / "prompts", "plain"))
    record = tmp_path / "frozen.json"
    said = freeze_prompt(record, versioned_builder(plan))
    assert json.loads(record.read_text()) == said and said["generator"] == ALIAS and said["version"] == "v1"
    assert len(said["prompt_sha256"]) == len(said["constitution_sha256"]) == len(said["guidelines_sha256"]) == 64
    assert str(tmp_path) not in record.read_text()
    assert freeze_prompt(record, versioned_builder(plan)) == said
    assert submit(naming(plan, record), tmp_path / "run", at_once=0)
    assert Candidate.open(naming(plan, record), "v1", tmp_path).version == "v1", "what is frozen can still be compared"


def test_a_run_is_refused_when_anything_differs(tmp_path: Path, built: Built, server: FaultServer) -> None:
    prompts = write_prompts(tmp_path / "prompts", "plain", "careful")
    plan = development_plan(built, server, prompts)
    record = tmp_path / "frozen.json"
    freeze_prompt(record, versioned_builder(plan, "v1"))
    charter, guidelines = tmp_path / "charter.md", tmp_path / "guidelines.md"
    charter.write_text(Path(plan.parameters.prompts.constitution).read_text() + "\n### 9.9 Sleep well\n")
    guidelines.write_text("Be brief.\n")
    changes: tuple[tuple[str, dict[str, Any]], ...] = (
        ("constitution_sha256", {"files": {"constitution": str(charter)}}),
        ("guidelines_sha256", {"files": {"guidelines": str(guidelines)}}),
        ("sampling", {"generator": {"sampling": {"temperature": 0.2}}}),
        ("model", {"generator": {"model": "faulty-2"}}),
        ("include_reflection_3p", {"include_reflection_3p": False}),
    )
    for named, changed in changes:
        other = development_plan(built, server, prompts, **changed)
        with pytest.raises(ReflectionError, match=rf"(?s)fixes generator and prompt.*  {named}: .*, now "):
            submit(naming(other, record), tmp_path / "run", at_once=0)
    (prompts / ALIAS / "reflection_v1.md").write_text(prompt("rude"))
    with pytest.raises(ReflectionError, match="prompt_sha256"):
        submit(naming(plan, record), tmp_path / "run", at_once=0)
    with pytest.raises(ReflectionError, match="fixes generator and prompt"):
        freeze_prompt(record, versioned_builder(plan))
    with pytest.raises(ReflectionError, match="cannot read the record"):
        submit(naming(plan, tmp_path / "absent.json"), tmp_path / "run", at_once=0)
    assert not (tmp_path / "run").exists() and not server.bodies
