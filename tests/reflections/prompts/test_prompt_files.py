"""Prompts, constitution and styles: what is missing or broken is an error that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everytoken.reflections import PromptFiles, PromptMissing, ReflectionError
from everytoken.reflections.prompts import constitution_sections, draw_style, parse_styles, read_prompt
from everytoken.reflections.prompts.constitution import require_sections
from everytoken.reflections.prompts.files import filled, read_text_file
from everytoken.reflections.registry import PromptKind
from tests.reflections.environment_parameters import parameters
from tests.shared_assets import shared_folder

ROOT = Path(__file__).resolve().parents[3]
VECTORS = json.loads((ROOT / "tests/vectors/replies.json").read_text())
OURS = ROOT / "conf/base/reflections"
STYLES = {"podcast", "textbook", "teacher_script", "ted_talk", "parent_child", "friends", "youtube_kids"}


def prompt_files(folder: Path, **versions: str) -> PromptFiles:
    found = parameters().prompts.model_dump()
    return PromptFiles.model_validate({**found, "folder": str(folder), "versions": {**found["versions"], **versions}})


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for alias, version in (("one", "v1"), ("one", "v10"), ("one", "v2"), ("two", "v1")):
        (tmp_path / alias).mkdir(exist_ok=True)
        (tmp_path / alias / f"reflection_{version}.md").write_text(f"{alias} {{charter}} {{writing_guidelines}}")
    return tmp_path


def test_a_missing_final_prompt_names_file_alias_and_the_aliases_that_there_are(folder: Path) -> None:
    there = files_of(folder)
    with pytest.raises(PromptMissing) as error:
        read_prompt(prompt_files(folder), "reflection", "three")
    assert str(error.value).startswith("there is no final prompt reflection_v1.md for the alias 'three'; aliases with")
    assert "are one, two: set generator.alias" in str(error.value) and f"write {folder}/three/reflection_v1.md" in str(
        error.value
    )
    with pytest.raises(PromptMissing, match="of the kind preflection are none"):
        read_prompt(prompt_files(folder), "preflection", "one")
    assert files_of(folder) == there, "nothing is created in its place"


def test_a_missing_version_names_the_parameter_and_the_versions_that_there_are(folder: Path) -> None:
    there = files_of(folder)
    with pytest.raises(PromptMissing) as error:
        read_prompt(prompt_files(folder, reflection="v3"), "reflection", "one")
    assert str(error.value).startswith(f"there is no prompt file {folder}/one/reflection_v3.md. prompts.versions.refl")
    assert "are v1, v2, v10: name one" in str(error.value) and "alias" not in str(error.value)
    assert files_of(folder) == there


def test_a_missing_shared_prompt_names_no_alias(folder: Path) -> None:
    with pytest.raises(PromptMissing, match=r"summary, which all models share: write .*/shared/summary_v1\.md"):
        read_prompt(prompt_files(folder), "summary", "one")


def test_a_prompt_is_chosen_by_alias_and_version(folder: Path) -> None:
    assert read_prompt(prompt_files(folder, reflection="v10"), "reflection", "one").path.name == "reflection_v10.md"
    assert read_prompt(prompt_files(folder), "reflection", "two").text.startswith("two")
    (folder / "shared").mkdir()
    (folder / "shared/summary_v1.md").write_text("sum {up}")
    assert read_prompt(prompt_files(folder), "summary", "no matter which").text == "sum {up}"


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("reflection", "{charter}", r"lacks the placeholder \{writing_guidelines\}"),
        ("refusal_reflection", "{writing_guidelines}", r"lacks the placeholder \{charter\}"),
        ("preflection", "{writing_guidelines}", r"lacks the placeholder \{charter\}"),
        ("summary", " \n", "is blank"),
        ("summary", b"\xff", "cannot read"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_named(tmp_path: Path, kind: PromptKind, text: Any, message: str) -> None:
    for own in ("mine", "shared"):
        (tmp_path / own).mkdir()
        (tmp_path / own / f"{kind}_v1.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ReflectionError, match=message) as error:
        read_prompt(prompt_files(tmp_path), kind, "mine")
    assert f"{kind}_v1.md" in str(error.value)


def test_placeholders_are_replaced_as_plain_text_and_nothing_else_is() -> None:
    prompt = "{charter}|{writing_guidelines}|{other}|{ charter }|{{charter}}"
    found = filled(prompt, "reflection", r"C \1 {writing_guidelines}", "G {charter}")
    assert found == r"C \1 {writing_guidelines}|G {charter}|{other}|{ charter }|{C \1 {writing_guidelines}}"
    assert filled(prompt, "preflection", "C", "G") == "C|{writing_guidelines}|{other}|{ charter }|{C}"
    assert filled(prompt, "summary", "C", "G") == prompt


@pytest.mark.parametrize("case", VECTORS["constitution_sections"], ids=lambda case: case["file"][:20])
def test_sections_are_those_of_headings(case: dict[str, Any]) -> None:
    assert constitution_sections(case["file"]) == case.get("ours", case["ids"])


def test_a_constitution_without_sections_or_with_one_twice_is_refused() -> None:
    path = Path("charter.md")
    assert require_sections("### 1.1 A\r\n### 1.10\n### 2.1\tB", path) == {"1.1", "1.10", "2.1"}
    with pytest.raises(ReflectionError, match=r"charter\.md has no section"):
        require_sections("## 1.1 A", path)
    with pytest.raises(ReflectionError, match=r"two sections 1\.1"):
        require_sections("### 1.1 A\n### 1.1 B", path)


@pytest.mark.parametrize("case", VECTORS["style_files"], ids=lambda case: case["file"][:30])
def test_styles_are_those_of_the_reference_run(case: dict[str, Any]) -> None:
    if "ok" in case:
        assert parse_styles(case["file"], Path("styles.md")) == case["ok"]
    else:
        with pytest.raises(ReflectionError, match=r"styles\.md"):
            parse_styles(case["file"], Path("styles.md"))


def test_a_style_without_text_is_refused() -> None:
    with pytest.raises(ReflectionError, match=r"the style 'b' of .* has no text"):
        parse_styles("<!-- TEMPLATE: a -->x<!-- TEMPLATE: b --> \n", Path("styles.md"))


@pytest.mark.parametrize("all_of_them", [False, True])
def test_documents_get_the_styles_of_the_reference_run(all_of_them: bool) -> None:
    vectors = VECTORS
    if all_of_them:
        vectors = json.loads((shared_folder("vectors") / "reflections.json").read_text())
    for case in vectors["styles"]:
        for names in (sorted(STYLES), sorted(STYLES, reverse=True)):
            assert draw_style(names, case["seed"], case["doc_id"]) == case["style"]


@pytest.mark.parametrize("env", ["local", "spp"])
def test_the_project_has_every_prompt_that_its_environments_name(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = parameters(env)
    kinds: tuple[PromptKind, ...] = (
        "reflection",
        "refusal_reflection",
        "preflection",
        "summary",
        "rephrasing_safelm",
    )
    for kind in kinds:
        read_prompt(found.prompts, kind, found.generator.alias)
    styles = read_prompt(found.prompts, "rephrasing_safelm", found.generator.alias)
    assert set(parse_styles(styles.text, styles.path)) == STYLES
    charter = read_text_file(Path(found.prompts.constitution))
    sections = require_sections(charter.text, charter.path)
    assert len(sections) == 13 and {section.split(".")[0] for section in sections} == {"1", "2", "3", "4"}
    read_text_file(Path(found.prompts.guidelines))
