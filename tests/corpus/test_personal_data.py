"""Personal data: what counts as which kind, what stands in its place, and that a document is read again so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.address import Address
from everytoken.corpus.ingestion import Source, find_files
from everytoken.corpus.personal_data import PERSONAL_DATA_KINDS, find_personal_data, masked_spans, masked_text
from everytoken.corpus.selection.report import personal_data_by_source, personal_data_line, read_counts, selection_table
from everytoken.provenance.lookup.upstream_text import read_documents_at
from tests.corpus.ingestion.test_ingest import read_rows_of, values_of, write_lines
from tests.corpus.part_tables import collect_all
from tests.corpus.rendering.test_chat_keys import renderer

MAIL, ACCOUNT, NUMBER = "ada.lovelace+math@mail.example.org", "DE89 3704 0044 0532 0130 00", "+49 (0)30 901820-11"


def kinds_in(text: str) -> list[tuple[str, str]]:
    return [(kind, text[first:end]) for kind, first, end in find_personal_data(text, PERSONAL_DATA_KINDS)]


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("email", MAIL),
        ("email", "x@y.de"),
        ("iban", ACCOUNT),
        ("iban", "GB82WEST12345698765432"),
        ("iban", "NO93 8601 1117 947"),
        ("ip", "192.168.0.255"),
        ("ip", "2001:db8::ff00:42:8329"),
        ("ip", "fe80:0:0:0:1:2:3:4"),
        ("phone", NUMBER),
        ("phone", "+1 415-555-2671"),
        ("phone", "0044 20 7946 0958"),
        ("phone", "(212) 555-0142"),
        ("phone", "212-555-0142"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "See {}.", "({})", "é{} AND MORE", "a, {}, b"])
def test_each_kind_is_found_alone_and_amid_text(kind: str, written: str, around: str) -> None:
    assert kinds_in(around.format(written)) == [(kind, written)]


@pytest.mark.parametrize(
    "text",
    [
        "me @ home, or user@host",
        "DE88 3704 0044 0532 0130 00",
        "AB12 IS NOT AN ACCOUNT OF ANYONE HERE",
        "256.1.1.1 and 1.2.3 and 1.2.3.4.5",
        "std::vector<int> a::b at 12:30:45, 1:2:3:4",
        "in 1998-2004, 3.14159265358979, 1 000 000 000",
        "+1 23 456",
        "order 12125550142123",
        "٠١٢٣٤٥٦٧٨٩ +٤٩٣٠٩٠١٨٢٠",
    ],
)
def test_what_only_resembles_them_is_not_found(text: str) -> None:
    assert kinds_in(text) == []


@pytest.mark.parametrize("piece", ["a", "1", "1.", "+1", "a@", "a@b.", "DE89 ", "a:", "::1", "00 ", "(2", "[email]"])
def test_long_texts_of_one_piece_take_linear_time(piece: str) -> None:
    """Two of the last are found in the length of a few of them only; a quadratic search would not end here."""
    assert len(find_personal_data(piece * 200_000, PERSONAL_DATA_KINDS)) <= 200_000


TEXTS = st.lists(st.sampled_from([MAIL, ACCOUNT, NUMBER, "10.0.0.1", " ", "x", "日", "😀", "\n", ". "])).map(" ".join)


@given(TEXTS, st.data())
def test_masking_leaves_the_rest_and_moves_ranges_with_it(text: str, data: st.DataObject) -> None:
    found = find_personal_data(text, PERSONAL_DATA_KINDS)
    masked = masked_text(text, found)
    assert kinds_in(masked) == []
    left = set(range(len(text))) - {i for one in found for i in range(one.first, one.end)}
    outside = sorted({i for i in range(len(text) + 1) if not any(one.first < i < one.end for one in found)})
    first, end = sorted((data.draw(st.sampled_from(outside)), data.draw(st.sampled_from(outside))))
    inside = [one for one in found if first <= one.first and one.end <= end]
    shifted = [one._replace(first=one.first - first, end=one.end - first) for one in inside]
    ((new_first, new_end),) = masked_spans([(first, end)], found)
    assert masked[new_first:new_end] == masked_text(text[first:end], shifted)
    assert len(masked) == len(left) + sum(len(f"[{one.kind}]") for one in found)


def test_a_range_that_ends_inside_of_a_masked_piece_ends_before_what_stands_for_it() -> None:
    text = f"a {MAIL} b"
    found = find_personal_data(text, ["email"])
    assert masked_text(text, found) == "a [email] b"
    assert masked_spans([(0, 5), (5, len(text))], found) == ((0, 2), (2, 11))


ROWS = [{"text": f"Write to {MAIL}, or call {NUMBER}.", "id": "1"}, {"text": "Nothing of anyone.", "id": "2"}]


def read(folder: Path, **rule: Any) -> tuple[list[str], list[dict[str, Any]], dict[str, Any]]:
    (value,) = values_of(folder, personal_data=rule)
    kept, aside, statistics = collect_all(read_rows_of(value))
    return kept.column("text").to_pylist(), aside.to_pylist(), statistics


def test_a_rule_counts_masks_or_drops(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *ROWS)
    counts = {"documents": 1, "email": 1, "iban": 0, "ip": 0, "phone": 1}
    texts, aside, statistics = read(tmp_path, rule="count")
    assert (texts, aside, statistics["personal_data"]) == ([row["text"] for row in ROWS], [], counts)
    texts, aside, statistics = read(tmp_path, rule="mask")
    assert texts == ["Write to [email], or call [phone].", "Nothing of anyone."]
    assert (aside, statistics["personal_data"]) == ([], counts)
    texts, aside, statistics = read(tmp_path, rule="drop")
    assert (texts, statistics["personal_data"]) == (["Nothing of anyone."], counts)
    assert statistics["set_aside"] == {"personal_data": 1} and aside[0]["id"] == "1"
    assert MAIL not in str(aside), "what is set aside for it is not kept"
    assert read(tmp_path, rule="mask", kinds=["phone"])[0][0] == f"Write to {MAIL}, or call [phone]."


def test_the_answers_of_a_chat_keep_their_ranges(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": f"I am {MAIL}"}, {"role": "assistant", "content": "Noted: +1 415-555-2671."}]
    write_lines(tmp_path / "a.jsonl", {"messages": turns, "id": "1"})
    (value,) = values_of(tmp_path, personal_data={"rule": "mask"}, renderer=renderer("messages"))
    kept, aside, _ = collect_all(read_rows_of(value))
    (row,) = kept.to_pylist()
    (span,) = row["assistant_spans"]
    first, end = span.values() if isinstance(span, dict) else span
    assert aside.num_rows == 0 and row["text"][first:end].startswith("Noted: [phone].")


def test_a_document_is_read_again_as_it_was_masked(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *ROWS)
    source = Source.model_validate(
        {"upstream": {"kind": "path", "root": str(tmp_path)}, "personal_data": {"rule": "mask"}}
    )
    files = find_files("s", source.upstream, tmp_path / "fetched")
    found = read_documents_at({"s": source}, {"s": files}, [Address("s", 0, 0)])
    assert found[Address("s", 0, 0)].text == "Write to [email], or call [phone]."


def test_the_report_has_it_by_source(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", *ROWS)
    statistics = read(tmp_path, rule="count")[2]
    other = {"rows_in": 1, "kept": 1, "set_aside": {}, "by_source": {"t": {}}, "length_histogram": {}}
    by_source = personal_data_by_source([statistics, statistics, other])
    (source,) = statistics["by_source"]
    assert by_source == {source: {"documents": 2, "email": 2, "iban": 0, "ip": 0, "phone": 2}}
    assert personal_data_line(by_source[source]) == ("personal data in 2 documents: 2 email, 0 iban, 0 ip, 2 phone")
    table = {
        row["source"]: row
        for row in selection_table(read_counts([statistics, statistics, other]), {}, None, None, by_source)
    }
    assert table["all sources"]["personal_documents"] == 2
    assert table["t"]["personal_email"] == 0 and table[source]["personal_phone"] == 2
