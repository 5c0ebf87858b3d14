"""Names by which stored data knows functions: unique, and independent of where the code is."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everytoken.shards import Artifact, ArtifactStore, Built, Shards, Store, make_engine, plan_artifact, value_digest
from everytoken.shards.artifacts import artifact_checksum, artifact_ledger_text
from everytoken.shards.former_paths import as_described_today, declared_name, former_path
from everytoken.shards.ledger import Ledger
from everytoken.shards.recipe import fingerprint_of, recipe_digest, versioned
from tests.shards import functions

SOURCE = Path(__file__).resolve().parents[2] / "src"


def declared() -> Iterator[str]:
    for path in SOURCE.rglob("*.py"):
        if b"versioned(" not in (text := path.read_bytes()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "versioned":
                name = node.args[0]
                assert isinstance(name, ast.Constant) and isinstance(name.value, str), f"{path}:{node.lineno}"
                yield name.value


def test_no_two_functions_have_one_name() -> None:
    names = Counter(declared())
    assert len(names) > 50
    assert [name for name, count in names.items() if count > 1] == []


def test_names_and_former_paths_are_one_to_one() -> None:
    for name in declared():
        assert declared_name(former_path(name)) == name
    assert former_path("select_split") == "everytoken.corpus.splits.select_split"
    assert former_path("younger") == declared_name("younger") == "younger"


def test_a_recipe_has_the_digest_of_the_path_that_its_function_had() -> None:
    description = {"function": "train", "version": 2, "parameters": {"seed": 7}}
    old = {**description, "function": "everytoken.training.artifacts.train"}
    assert recipe_digest(description) == recipe_digest(old) == value_digest(old)


def double(part: Any, *, factor: int) -> int:
    return int(part.value) * factor


def write(folder: Path, *, text: str) -> Built:
    (folder / "text").write_text(text)
    return Built({"length": len(text)})


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The two functions, in another module and under other names."""
    for name, function in (("twice", double), ("note", write)):
        copy = type(function)(function.__code__, vars(functions), name, None, function.__closure__)
        copy.__kwdefaults__, copy.__module__, copy.__qualname__ = function.__kwdefaults__, functions.__name__, name
        monkeypatch.setattr(functions, name, versioned(function.__name__, 1)(copy), raising=False)
    yield


def test_a_function_that_moved_and_has_another_name_makes_nothing_again(
    tmp_path: Path, moved: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    versioned("double", 1)(double)
    versioned("write", 1)(write)
    monkeypatch.setitem(vars(functions), "Built", Built)
    values, engine = Shards.from_values([1, 2], ["1" * 64, "2" * 64]), make_engine("inline")
    before = Store(tmp_path / "store").save(values.reduce(double, factor=2), engine)
    made: Artifact = ArtifactStore(tmp_path / "artifact").save(plan_artifact(write, text="a"))
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    after = Store(tmp_path / "store").save(values.reduce(functions.twice, factor=2), engine)  # type: ignore[attr-defined]
    again = ArtifactStore(tmp_path / "artifact").save(plan_artifact(functions.note, text="a"))  # type: ignore[attr-defined]

    assert (after, again.ledger) == (before, made.ledger)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == times
    assert before.recipe["function"] == "double" and made.ledger["recipe"]["function"] == "write"


def test_a_ledger_of_version_0_1_0_is_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the path of its function in its recipe, and stays as it is."""
    versioned("double", 1)(double)
    values, engine = Shards.from_values([1, 2], ["1" * 64, "2" * 64]), make_engine("inline")
    path = {"double": "everytoken.corpus.old.double"}
    monkeypatch.setattr("everytoken.shards.former_paths._PATHS", path)
    monkeypatch.setattr("everytoken.shards.former_paths._NAMES", {old: name for name, old in path.items()})
    ledger = Store(tmp_path).save(values.reduce(double, factor=2), engine)
    old = type(ledger)(ledger.holds, {**ledger.recipe, "function": path["double"]}, ledger.parts)
    old.write(tmp_path / "ledger.json")
    content = (tmp_path / "ledger.json").read_bytes()
    assert b"everytoken.corpus.old.double" in content
    assert Store(tmp_path).save(values.reduce(double, factor=2), engine) == ledger
    assert (tmp_path / "ledger.json").read_bytes() == content


def test_what_recorded_a_parameter_that_is_recorded_no_more_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versioned("double", 1)(double)
    versioned("write", 1)(write)
    values, engine = Shards.from_values([1, 2], ["1" * 64, "2" * 64]), make_engine("inline")
    made = Store(tmp_path / "store").save(values.reduce(double, factor=2), engine)
    note = ArtifactStore(tmp_path / "artifact").save(plan_artifact(write, text="a"))
    monkeypatch.setattr(
        "everytoken.shards.former_paths._NO_LONGER_RECORDED", {("double", 1): ("proof",), ("write", 1): ("proof",)}
    )
    as_before = {**made.recipe, "parameters": {"factor": 2, "proof": {"cases": 7}}}
    parts = [replace(part, fingerprint=fingerprint_of(as_before, part.inputs)) for part in made.parts]
    parts[1] = replace(parts[1], fingerprint="f" * 64)  # made otherwise
    Ledger(made.holds, as_before, tuple(parts)).write(tmp_path / "store" / "ledger.json")
    described = {**note.ledger["recipe"], "parameters": {"text": "a", "proof": None}}
    ledger = {**note.ledger, "recipe": described, "fingerprint": fingerprint_of(described, [])}
    text = artifact_ledger_text({**ledger, "checksum": artifact_checksum(ledger)})
    (tmp_path / "artifact" / "ledger.json").write_text(text)

    read = Store(tmp_path / "store").ledger()
    assert read.recipe == made.recipe
    assert [part.fingerprint for part in read.parts] == [made.parts[0].fingerprint, "f" * 64]
    assert Store(tmp_path / "store").save(values.reduce(double, factor=2), engine) == made
    assert (
        ArtifactStore(tmp_path / "artifact").save(plan_artifact(write, text="a")).ledger["fingerprint"]
        == (note.ledger["fingerprint"])
    )
    assert (tmp_path / "artifact" / "ledger.json").read_text() == text, "it was not made again"


def test_only_the_proof_of_an_engine_is_recorded_no_more() -> None:
    parameters = {"rules": 1, "proof": {"engines": {}}}
    old = {"function": "everytoken.tokens.encode.encode_part", "version": 2, "parameters": parameters}
    assert as_described_today(old) == {"function": "encode_part", "version": 2, "parameters": {"rules": 1}}
    for other in ({**old, "version": 3}, {**old, "function": "encode_file"}):
        assert as_described_today(other)["parameters"] == parameters
