"""The bytes of a ledger: sorted keys, text as it is, a line for each part, no date and no host."""

from __future__ import annotations

from pathlib import Path

from everytoken.shards.digests import value_digest
from everytoken.shards.ledger import LEDGER_FORMAT, Ledger, PartRecord, SetAsideRecord, is_store


def record(name: str, **changed: object) -> PartRecord:
    given = {"rows": 2, "bytes": 30, "sha256": "5" * 64, "content_digest": f"c-{name}", "fingerprint": f"f-{name}"}
    given |= {"inputs": ("i", "j"), "statistics": {"ü": 1, "rows_in": 4, "a": {"z": 0.1, "b": None}}}
    return PartRecord(**{**given, "name": name, **changed})  # type: ignore[arg-type]


LEDGER = Ledger(
    "rows",
    {"function": "f", "parameters": {"text": "naïve"}, "version": 1},
    (record("part_00000"), record("part_00001", rows=3, set_aside=SetAsideRecord(1, 9, "6" * 64, "d"))),
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
