"""A ledger: its bytes, and that what follows from its records is computed again; no edit keeps the old digest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import pytest

from everytoken.shards import (
    ArtifactStore,
    DamagedStore,
    Inline,
    Store,
    artifact_checksum,
    artifact_ledger_text,
    artifact_root_digest,
    file_sha256,
    plan_artifact,
    read_any_ledger,
    read_ledger,
    value_digest,
)
from everytoken.shards.ledger import (
    LEDGER_FORMAT,
    FileRecord,
    Ledger,
    PartRecord,
    is_store,
    statistics_as,
)
from everytoken.tokens.checks.integrity import verify
from tests.shards.functions import build_folder, count_up, given, sift, total


def record(name: str, **changed: object) -> PartRecord:
    given = {"rows": 2, "bytes": 30, "sha256": "5" * 64, "content_digest": f"c-{name}", "fingerprint": f"f-{name}"}
    given |= {"inputs": ("i", "j"), "statistics": {"ü": 1, "rows_in": 4, "a": {"z": 0.1, "b": None}}}
    return PartRecord(**{**given, "name": name, **changed})  # type: ignore[arg-type]


LEDGER = Ledger(
    "rows",
    {"function": "f", "parameters": {"text": "naïve"}, "version": 1},
    (record("part_00000"), record("part_00001", rows=3, set_aside=FileRecord(1, 9, "6" * 64, "d"))),
)


def test_the_bytes_of_a_ledger(tmp_path: Path) -> None:
    LEDGER.write(tmp_path / "ledger.json")
    expected = f"""{{
 "bytes": 60,
 "checksum": "{LEDGER.checksum}",
 "format": "{LEDGER_FORMAT}",
 "holds": "rows",
 "recipe": {{
  "function": "f",
  "parameters": {{
   "text": "naïve"
  }},
  "version": 1
 }},
 "root_digest": "{LEDGER.root_digest}",
 "rows": 5,
 "parts": [
{{"bytes": 30, "content_digest": "c-part_00000", "fingerprint": "f-part_00000", "inputs": ["i", "j"], \
"name": "part_00000", "rows": 2, "set_aside": null, "sha256": "{"5" * 64}", \
"statistics": {{"a": {{"b": null, "z": 0.1}}, "rows_in": 4, "ü": 1}}, "value": null}},
{{"bytes": 30, "content_digest": "c-part_00001", "fingerprint": "f-part_00001", "inputs": ["i", "j"], \
"name": "part_00001", "rows": 3, "set_aside": {{"bytes": 9, "content_digest": "d", "rows": 1, \
"sha256": "{"6" * 64}"}}, "sha256": "{"5" * 64}", \
"statistics": {{"a": {{"b": null, "z": 0.1}}, "rows_in": 4, "ü": 1}}, "value": null}}
]}}
"""
    assert (tmp_path / "ledger.json").read_text(encoding="utf-8") == expected
    assert Ledger.read(tmp_path / "ledger.json") == LEDGER
    assert is_store(tmp_path)


def test_the_root_digest_is_of_names_and_contents_and_the_checksum_of_all() -> None:
    contents = [["part_00000", "c-part_00000"], ["part_00001", "c-part_00001"]]
    assert LEDGER.root_digest == value_digest(contents)
    renamed = Ledger("rows", LEDGER.recipe, (record("part_00000", fingerprint="other"), LEDGER.parts[1]))
    assert renamed.root_digest == LEDGER.root_digest and renamed.checksum != LEDGER.checksum
    assert Ledger("values", LEDGER.recipe, LEDGER.parts).checksum != LEDGER.checksum


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "part_1"}, "a part has the name 'part_1'"),
        ({"sha256": "", "value": 3}, "the value of part_00000 has another digest than its record"),
        (
            {"set_aside": FileRecord(1, 9, "6" * 64, "d")},
            "part_00000: rows_in is 4, the part and what was set aside",
        ),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    Ledger("rows", LEDGER.recipe, (record(**{"name": "part_00000", **changed}),)).write(tmp_path / "ledger.json")
    with pytest.raises(DamagedStore, match=message):
        read_ledger(tmp_path / "ledger.json")


class Counted(TypedDict):
    rows: int
    words: int
    shortest: NotRequired[int]


def test_statistics_of_another_function_are_refused() -> None:
    assert statistics_as({"rows": 1, "words": 2, "more": 3}, Counted, "here") == {"rows": 1, "words": 2, "more": 3}
    with pytest.raises(DamagedStore, match=r"here: its statistics are no Counted: they lack \['words'\]"):
        statistics_as({"rows": 1}, Counted, "here")


def edit_file(folder: Path, name: str) -> dict[str, Any]:
    """Change a byte of a file, and the record of the file and the checksum of the ledger with it."""
    path = folder / name
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    ledger: dict[str, Any] = json.loads((folder / "ledger.json").read_text())
    ledger["files"][name]["sha256"] = file_sha256(path)
    ledger["checksum"] = artifact_checksum(ledger)
    (folder / "ledger.json").write_text(artifact_ledger_text(ledger))
    return ledger


def test_an_artifact_edited_with_its_record_never_has_the_old_digest(tmp_path: Path) -> None:
    planned = plan_artifact(build_folder, factor=3)
    made = ArtifactStore(tmp_path / "a").save(planned)
    ledger = edit_file(tmp_path / "a", "deep/er/numbers.bin")
    for read in (ArtifactStore(tmp_path / "a").load, ArtifactStore(tmp_path / "a").exists):
        with pytest.raises(DamagedStore, match=r"root digest is .*, expected .* it was edited\. Run the pipeline"):
            read()
    assert [check.name for check in verify(tmp_path / "a", "sizes") if not check.ok] == ["ledger"]
    assert ArtifactStore(tmp_path / "a").save(planned).root_digest == made.root_digest
    assert (tmp_path / "a/deep/er/numbers.bin").read_bytes() == b"\x03" * 1000, "it was made again"
    ledger = edit_file(tmp_path / "a", "name.txt")
    ledger["root_digest"] = artifact_root_digest(ledger["files"], ledger["statistics"])
    ledger["checksum"] = artifact_checksum(ledger)
    (tmp_path / "a/ledger.json").write_text(artifact_ledger_text(ledger))
    assert ArtifactStore(tmp_path / "a").load().root_digest != made.root_digest, "what is made from it sees another one"


def forms() -> list[Callable[[dict[str, Any]], object]]:
    return [
        lambda ledger: ledger["files"].__setitem__("../outside", ledger["files"].pop("name.txt")),
        lambda ledger: ledger["files"]["name.txt"].pop("bytes"),
        lambda ledger: ledger.pop("statistics"),
        lambda ledger: ledger.__setitem__("statistics", []),
        lambda ledger: ledger.pop("measured"),
        lambda ledger: ledger.__setitem__("recipe", "r"),
        lambda ledger: ledger["recipe"].pop("version"),
        lambda ledger: ledger.pop("fingerprint"),
        lambda ledger: ledger.__setitem__("root_digest", 5),
    ]


@pytest.mark.parametrize("edit", forms())
def test_a_ledger_of_another_form_is_refused_by_name(tmp_path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    ArtifactStore(tmp_path / "a").save(plan_artifact(build_folder, factor=3))
    path = tmp_path / "a/ledger.json"
    ledger = json.loads(path.read_text())
    edit(ledger)
    ledger["checksum"] = artifact_checksum(ledger)
    path.write_text(artifact_ledger_text(ledger))
    with pytest.raises(DamagedStore, match=r"ledger\.json is no ledger of an artifact"):
        ArtifactStore(tmp_path / "a").load()


def write_edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the ledger of a store, and compute its checksum again."""
    data = json.loads(path.read_text())
    edit(data)
    data["checksum"] = value_digest([LEDGER_FORMAT, data["holds"], data["recipe"], data["parts"]])
    path.write_text(json.dumps(data))


def summed(data: dict[str, Any]) -> None:
    data["rows"] = sum(part["rows"] for part in data["parts"])


def more_rows(data: dict[str, Any]) -> None:
    data["parts"][1]["rows"] += 1
    summed(data)


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "root digest": lambda data: data.__setitem__("root_digest", "0" * 64),
    "content digest": lambda data: data["parts"][1].__setitem__("content_digest", "0" * 64),
    "rows": lambda data: data["parts"][1].__setitem__("rows", 99),
    "rows and sum": more_rows,
    "statistics": lambda data: data["parts"][1]["statistics"].__setitem__("rows_in", 99),
    "name": lambda data: data["parts"][1].__setitem__("name", "../part_00000"),
    "key": lambda data: data["parts"][1].__setitem__("more", 1),
    "no parts": lambda data: data.pop("parts"),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_store_edited_with_its_checksum_is_refused(tmp_path: Path, what: str) -> None:
    Store(tmp_path / "s").save(given(2).map(sift), Inline())
    path = tmp_path / "s/ledger.json"
    if what == "no parts":
        path.write_text(path.read_text().replace('"parts"', '"part"'))
    else:
        write_edited(path, EDITS[what])
    for read in (Store(tmp_path / "s").load, lambda: read_ledger(path), lambda: read_any_ledger(tmp_path / "s")):
        with pytest.raises(DamagedStore, match=r"ledger\.json"):
            read()


def test_a_value_edited_with_its_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s/ledger.json"
    Store(tmp_path / "rows").save(given(2).map(count_up), Inline())
    Store(tmp_path / "s").save(Store(tmp_path / "rows").load().reduce(total), Inline())
    write_edited(path, lambda data: data["parts"][1].__setitem__("value", 99))
    with pytest.raises(DamagedStore, match="the value of part_00001 has another digest"):
        Store(tmp_path / "s").load()


def test_the_content_of_a_table_is_compared_in_full(tmp_path: Path) -> None:
    """A table edited with its SHA-256: its content digest, which stands in the root digest, is no longer its own."""
    Store(tmp_path / "s").save(given(2).map(count_up), Inline())
    shutil.copyfile(tmp_path / "s/part_00000.parquet", tmp_path / "s/part_00001.parquet")

    def edit(data: dict[str, Any]) -> None:
        first, second = data["parts"]
        second |= {name: first[name] for name in ("sha256", "bytes")}
        data["bytes"] = 2 * first["bytes"]

    write_edited(tmp_path / "s/ledger.json", edit)
    (fault,) = [check.fault for check in verify(tmp_path / "s", "full") if not check.ok]
    assert "part_00001.parquet: expected content" in fault


def test_the_rows_of_a_part_are_those_of_its_file_in_full(tmp_path: Path) -> None:
    Store(tmp_path / "s").save(given(2).map(count_up), Inline())
    write_edited(tmp_path / "s/ledger.json", more_rows)
    (fault,) = [check.fault for check in verify(tmp_path / "s", "full") if not check.ok]
    assert "part_00001.parquet: expected 161 rows, found 160" in fault


@pytest.mark.parametrize(
    "value", [1e-7, 1e22, 0.1, 1 << 70, "é\u2028\x7f\n", [1e16, -0.0], {"\U0001f600": 1, "\uffff": 2}]
)
def test_the_checksum_is_that_of_canonical_json_for_every_value(tmp_path: Path, value: Any) -> None:
    ledger = Ledger("rows", {"function": "f", "version": 1, "parameters": {"x": value}}, ())
    ledger.write(tmp_path / "ledger.json")
    assert read_ledger(tmp_path / "ledger.json")["checksum"] == ledger.checksum
    assert Ledger.read(tmp_path / "ledger.json") == ledger
