"""The bytes of a ledger: sorted keys, text as it is, a line for each part, no date and no host."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import pytest

from everytoken.shards.digests import value_digest
from everytoken.shards.errors import DamagedStore
from everytoken.shards.ledger import (
    LEDGER_FORMAT,
    FileRecord,
    Ledger,
    PartRecord,
    is_store,
    read_ledger,
    statistics_as,
)


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


def test_statistics_of_another_function_are_refused() -> None:
    assert statistics_as({"rows": 1, "words": 2, "more": 3}, Counted, "here") == {"rows": 1, "words": 2, "more": 3}
    with pytest.raises(DamagedStore, match=r"here: its statistics are no Counted: they lack \['words'\]"):
        statistics_as({"rows": 1}, Counted, "here")
