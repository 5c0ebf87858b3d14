from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.corpus.reading.archives import DamagedFile
from everytoken.corpus.reading.records import (
    HEAD_BYTES,
    Oversized,
    count_lines,
    iterate_elements,
    iterate_runs,
    text_blocks,
)

BLOCK_SIZES = st.integers(1, 9)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('"\\{}[]:, é\n', max_size=9),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text('"\\{}[]:,a', max_size=3), values, max_size=3)
    ),
    max_leaves=6,
)


def blocks_of(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def lines(data: bytes, size: int = 5, limit: int = 1_000, skip: int = 0) -> list[tuple[int, bytes | Oversized]]:
    """Return all lines with their offsets, those of a run one by one."""
    start, blocks = text_blocks(blocks_of(data, size))
    found: list[tuple[int, bytes | Oversized]] = []
    for offset, run in iterate_runs(blocks, start, limit, skip):
        if isinstance(run, Oversized):
            found.append((offset, run))
            continue
        assert len(run) <= limit
        for line in run.split(b"\n"):
            found.append((offset, line))
            offset += len(line) + 1
    return found


def elements(data: bytes, records: str | None = None, size: int = 5, limit: int = 1_000) -> list[Any]:
    start, blocks = text_blocks(blocks_of(data, size))
    return list(iterate_elements(blocks, start, limit, records, json.loads))


@given(
    text=st.text("ab\n\r\u2028\u2029\x85\x0b\x0c\x1c é", max_size=30).map(str.encode),
    bom=st.booleans(),
    size=BLOCK_SIZES,
    limit=st.integers(1, 12),
    skip=st.integers(0, 5),
)
def test_lines_end_at_newlines_only_and_know_their_offset(
    text: bytes, bom: bool, size: int, limit: int, skip: int
) -> None:
    data = b"\xef\xbb\xbf" * bom + text
    expected = text.removesuffix(b"\n").split(b"\n") if text else []
    found = lines(data, size, limit, skip)
    assert len(found) == max(0, len(expected) - skip)
    for (offset, line), whole in zip(found, expected[skip:], strict=True):
        assert data[offset : offset + len(whole)] == whole
        assert data[offset + len(whole) :][:1] in (b"", b"\n")
        assert line == (whole if len(whole) <= limit else Oversized(len(whole), whole[:HEAD_BYTES]))
    assert count_lines(text_blocks(blocks_of(data, size))[1]) == len(expected)


@given(
    values=st.lists(JSON, max_size=4),
    size=BLOCK_SIZES,
    indent=st.sampled_from([None, 1]),
    limit=st.integers(1, 40),
    ascii_only=st.booleans(),
)
def test_elements_of_an_array_are_cut_as_they_stand(
    values: list[Any], size: int, indent: int | None, limit: int, ascii_only: bool
) -> None:
    data = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    found = elements(data, size=size, limit=limit)
    assert len(found) == len(values)
    for (offset, key, record), value in zip(found, values, strict=True):
        assert key is None
        if isinstance(record, Oversized):
            assert record.size > limit
            record = data[offset : offset + record.size]
        else:
            assert data[offset : offset + len(record)] == record
            assert len(record) <= limit
        assert json.loads(record) == value


@given(value=st.dictionaries(st.text('"\\{}[]:,a', max_size=3), JSON, max_size=4), size=BLOCK_SIZES, data=st.data())
def test_elements_of_an_object_come_with_their_keys_wherever_the_object_stands(
    value: dict[str, Any], size: int, data: st.DataObject
) -> None:
    others = data.draw(st.dictionaries(st.sampled_from(["a", "b", "", '"']), JSON, max_size=3))
    names = data.draw(st.permutations([*others, "records"]))
    whole = json.dumps({name: value if name == "records" else others[name] for name in names}).encode()
    found = [(json.loads(key), json.loads(record)) for _, key, record in elements(whole, "records", size)]
    assert found == list(value.items())
    assert [
        (json.loads(key), json.loads(record)) for _, key, record in elements(json.dumps(value).encode(), None, size)
    ] == found


@given(values=st.lists(JSON, min_size=1, max_size=3), size=BLOCK_SIZES, data=st.data())
def test_an_array_cut_anywhere_is_an_error(values: list[Any], size: int, data: st.DataObject) -> None:
    whole = json.dumps({"a": values, "b": 1}).encode()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(DamagedFile, match=r"at byte \d+"):
        elements(cut, "a", size)


@pytest.mark.parametrize(
    ("data", "records", "reason"),
    [
        (b"", None, "at byte 0: expected an array or object of records, found 'the end of the file'"),
        (b"  7", None, "at byte 2: expected an array or object of records, found b'7'"),
        (b'[{"a": 1},]', None, "at byte 10: expected a value"),
        (b'[,{"a": 1}]', None, "at byte 1: expected a value"),
        (b'{"a": {},}', None, "at byte 9: expected a key in quotes"),
        (b'{"a": , "b": 1}', None, "at byte 6: expected a value"),
        (b'{"a" {}}', None, "at byte 5: expected ':'"),
        (b"{a: {}}", None, "at byte 1: expected a key in quotes"),
        (b'[{"a": 1} {"a": 2}]', None, r"at byte 10: expected ',' or '\]'"),
        (b'[{"a": [1}, {"b": 2}]', None, "at byte 9: expected the bracket that fits"),
        (b'[{"a": 1}}', None, r"at byte 9: expected ',' or '\]', found b'}'"),
        (b'[{"a": 1}', None, r"at byte 9: expected ',' or '\]', found 'the end of the file'"),
        (b'[{"a": "1', None, "the value that begins at byte 1 has no end when the text ends at byte 9"),
        (b'[{"a": 1}] x', None, "at byte 11: expected the end of the file"),
        (b'{"a": {}}\n{"a": {}}', None, "at byte 10: expected the end of the file.*set format to jsonl"),
        (b'[{"a": 1}]', "records", "at byte 0: expected an object with the key 'records' at the top"),
        (b'{"b": 1, "a": 2}', "records", r"no key 'records' at the top, found the keys \['a', 'b'\]"),
        (b'{"records": 5}', "records", "at byte 12: expected an array or object of records"),
        (b'{"records": [], "\\u0072ecords": []}', "records", "the key 'records' is there more than once"),
        (b"[" * 500_000, None, "the value that begins at byte 1 has no end"),
        (b"[" * 3_000_000, None, "the value that begins at byte 1 is nested without bounds"),
        (
            b'{"' + b"k" * (2 << 20) + b'": 1}',
            None,
            "the key at byte 1 has 2,097,154 bytes, expected at most 1,048,576",
        ),
    ],
)
def test_broken_structure_is_named_by_its_byte(data: bytes, records: str | None, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        elements(data, records, size=7 if len(data) < 100 else 1 << 17)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ('{"text": "a"}'.encode("utf-16"), "UTF-16"),
        ('{"text": "a"}'.encode("utf-16-le"), "UTF-16"),
        ('{"text": "a"}'.encode("utf-16-be"), "UTF-16"),
        ('{"text": "a"}'.encode("utf-32"), "UTF-32"),
        ('{"text": "a"}'.encode("utf-32-le"), "UTF-32"),
        ('{"text": "a"}'.encode("utf-32-be"), "UTF-32"),
        (b"\x1f\x8b\x08" + bytes(30), "gzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(30), "Zstandard"),
        (b"PAR1" + bytes(30), "parquet"),
        (b"ARROW1\0\0" + bytes(30), "an arrow file"),
        (b"PK\x03\x04" + bytes(30), "a zip archive"),
    ],
)
def test_what_is_no_utf8_text_is_named(data: bytes, name: str) -> None:
    with pytest.raises(DamagedFile, match=name):
        lines(data, 3)


def test_the_memory_of_a_record_that_is_too_large_is_its_head() -> None:
    head = b'{"text": "'
    blocks = iter([head, *[b"x" * (1 << 20)] * 200, b'"}, {}]'])
    ((_, _, record), (_, _, last)) = iterate_elements(iter([b"[", *blocks]), 0, 1 << 20, None, json.loads)
    assert isinstance(record, Oversized)
    assert record.size == len(head) + (200 << 20) + 2
    assert (record.head, last) == ((head + b"x" * HEAD_BYTES)[:HEAD_BYTES], b"{}")


@pytest.mark.parametrize("limit", [1, 100, HEAD_BYTES + 1])
@pytest.mark.parametrize("record", [b'{"text":"' + b"x" * 9_000 + b'"}', b'"' + b"y" * 9_000 + b'"', b"1" * 9_000])
def test_the_head_of_a_record_that_is_too_large_depends_on_the_record_alone(record: bytes, limit: int) -> None:
    for before in (0, 1, 2_000, 4_090, 4_096):
        for size in (7, 1_000, 4_096, 1 << 17):
            data = b"[" + b" " * before + record + b"]"
            ((_, _, found),) = iterate_elements(blocks_of(data, size), 0, limit, None, json.loads)
            assert found == Oversized(len(record), record[:HEAD_BYTES])
            assert lines(b"\n" * before + record, size, limit)[-1] == (before, found)


@given(text=st.text('{}[]",:\\1 a', max_size=14) | JSON.map(json.dumps), size=BLOCK_SIZES, data=st.data())
def test_what_is_no_json_as_a_whole_has_no_reading_without_an_error(text: str, size: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + data.draw(st.sampled_from(["", "", '"', "\\", "[", "]", "{", "}", ",", ":", "1"])) + text[at:]
    try:
        found = elements(text.encode(), size=size)
        records = [(json.loads(key or b"null"), json.loads(record)) for _, key, record in found]
    except (DamagedFile, ValueError):
        records = None
    try:
        pairs = json.loads(text, object_pairs_hook=list)
        whole = json.loads(text)
    except ValueError:
        pairs = whole = None
    if not isinstance(whole, list | dict):
        assert records is None
    elif isinstance(whole, list):
        assert records == [(None, value) for value in whole]
    else:
        assert records is not None
        assert [key for key, _ in records] == [key for key, _ in pairs]
        assert dict(records) == whole
