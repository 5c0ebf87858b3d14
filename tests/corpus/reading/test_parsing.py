from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.corpus.errors import BadRow
from everytoken.corpus.reading import parsing
from everytoken.corpus.reading.parsing import MAX_DEPTH, parse_record, parse_reference, parse_row, parse_rows

# row, and the reason why it is refused, or None where it is accepted
NASTY: list[tuple[bytes, str | None]] = [
    (b'{"n": 123456789012345678901234567890}', None),
    (b'{"n": 18446744073709551615, "m": 18446744073709551616}', None),
    (b'{"n": -9223372036854775808, "m": -9223372036854775809}', None),
    (b'{"n": [9223372036854775807, [9223372036854775808]]}', None),
    (b'{"n": ' + b"9" * 400 + b"}", None),
    (b'{"n": ' + b"9" * 5000 + b"}", "not_json"),  # more digits than Python converts
    (b'{"n": -0, "m": -0.0, "o": 0.1e1, "p": 1E5, "q": 1e-400}', None),
    (b'{"n": 1e999}', None),
    (b'{"n": 9007199254740993.0, "m": 0.1, "o": 2.2250738585072011e-308, "p": 1.7976931348623157e308}', None),
    (b'{"n": NaN}', "not_finite"),
    (b'{"n": [Infinity]}', "not_finite"),
    (b'{"n": -Infinity}', "not_finite"),
    (b'{"n": 01}', "not_json"),
    (b'{"n": 1.}', "not_json"),
    (b'{"n": .5}', "not_json"),
    (b'{"n": +1}', "not_json"),
    (b'{"n": -}', "not_json"),
    (b'{"n": 0x10}', "not_json"),
    (b'{"n": 1_000}', "not_json"),
    (b'{"n": True}', "not_json"),
    (b'{"a": 1,}', "not_json"),
    (b'{"a": [1,]}', "not_json"),
    (b'{"a": [,1]}', "not_json"),
    (b'{"a": 1 "b": 2}', "not_json"),
    (b'{"a" 1}', "not_json"),
    (b"{'a': 1}", "not_json"),
    (b"{a: 1}", "not_json"),
    (b'{"a": 1} // comment', "not_json"),
    (b'{"a": 1}{"a": 2}', "not_json"),
    (b'{"a": 1}\x00', "not_json"),
    (b'{"a": 1', "not_json"),
    (b'{"a": "1', "not_json"),
    (b'\x0b{"a": 1}', "not_json"),
    (b'\xc2\xa0{"a": 1}', "not_json"),
    (b'\xef\xbb\xbf{"a": 1}', "not_json"),
    (b'{"a": "\xef\xbb\xbf"}', None),
    (b'{"a": "\t"}', "not_json"),
    (b'{"a": "\x00"}', "not_json"),
    (b'{"a": "\x1f"}', "not_json"),
    (b'{"a": "\x7f\xc2\x85\xe2\x80\xa8\xe2\x80\xa9"}', None),
    (b'{"a": "\\u0000\\b\\f\\n\\r\\t\\/\\\\"}', None),
    (b'{"a": "\\x41"}', "not_json"),
    (b'{"a": "\\u12g4"}', "not_json"),
    (b'{"a": "\\u-123"}', "not_json"),
    (b'{"a": "\\U0022"}', "not_json"),
    (b'{"a": "\\ud83d\\ude00"}', None),
    (b'{"a": "\\ud800"}', None),  # half a surrogate pair is valid JSON
    (b'{"a": "\\udc00\\ud800"}', None),
    (b'{"\\ud800": 1}', None),
    (b'{"a": "\\ud800\\ud800\\udc00"}', None),
    (b'{"a": "\xff"}', "not_utf8"),
    (b'{"unused": {"deep": ["\xe2\x82"]}, "text": "t"}', "not_utf8"),
    (b'{"a": "\xed\xa0\x80"}', "not_utf8"),  # a surrogate
    (b'{"a": "\xc0\x80"}', "not_utf8"),  # an overlong NUL
    (b'{"a": "\xf4\x90\x80\x80"}', "not_utf8"),  # beyond U+10FFFF
    (b'{"a\xff": 1}', "not_utf8"),
    (b'{"a": 1, "a": 1}', "duplicate_key"),
    (b'{"a": 1, "\\u0061": 2}', "duplicate_key"),
    (b'{"text": "t", "b": {"c": [1, {"d": 1, "d": 2}]}}', "duplicate_key"),
    (b'{"": 1, "": 2}', "duplicate_key"),
    (b'{"a" : 1, "a"\t: 2}', "duplicate_key"),
    (b'{"a": {}, "a": {"b": {}}}', "duplicate_key"),
    (b'{"a": 1, "a": 2, "t": "\\u0022"}', "duplicate_key"),  # quotes that could stand for the lost ones
    (b'{"a": 1, "a": 2, "t": "\\u0022\\u0022"}', "duplicate_key"),
    (b'{"a": 1, "a": 2, "t": "\\u0022\\u0022\\u0022\\u0022"}', "duplicate_key"),
    (b'{"a": "x", "a": 2, "t": "\\u0022\\u0022\\"\\u0022\\u0022"}', "duplicate_key"),
    (b'{"a": "\\"\\"", "a": 2, "t": "\\u0022\\u0022\\u0022\\u0022"}', "duplicate_key"),
    (b'{"a": 1, "a": 2, "\\u0022\\u0022": 3}', "duplicate_key"),
    (b'{"t": "say \\"a\\": \\\\\\"", "\\"": "\\u0022"}', None),
    (b'{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}', None),
    (b'{"a": ' * (MAX_DEPTH - 1) + b"{}" + b"}" * (MAX_DEPTH - 1), None),
    (b'{"a": ' * MAX_DEPTH + b"{}" + b"}" * MAX_DEPTH, "not_json"),
    (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "not_json"),
    (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, None),
    (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "not_json"),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not_json"),
    (b"[" * 100_000, "not_json"),
]


def outcome(parse: Callable[[bytes], Any], data: bytes) -> tuple[str, str]:
    """Return the value with the types of all its members, or the reason and the message."""
    try:
        return "value", repr(parse(data))
    except BadRow as error:
        return error.reason, error.detail


@pytest.mark.parametrize(("row", "reason"), NASTY, ids=[repr(row[:40]) for row, _ in NASTY])
def test_a_nasty_row_is_read_as_the_reference_reads_it(row: bytes, reason: str | None) -> None:
    assert outcome(parse_record, row) == outcome(parse_reference, row)
    assert outcome(parse_record, row)[0] == (reason or "value")
    if reason is None and b"\\ud" not in row:
        assert repr(parse_record(row)) == repr(json.loads(row))


_KEYS = st.sampled_from(['"a"', '"\\u0061"', '"b"', '""', '"\\""', '"\\u0022"', '"\\\\"', '"é"', '"\\u0022\\u0022"'])
_SPACE = st.sampled_from(["", "", "", " ", "\t", "\r", "\n"])
_STRINGS = st.one_of(
    st.text(max_size=6).map(json.dumps),
    st.lists(
        st.sampled_from(["a", '\\"', "\\u0022", "\\\\", ":", " ", ",", "é", "\\ud800", "\\udc00", "\\n", "\u2028"])
    ).map(lambda pieces: f'"{"".join(pieces)}"'),
)
_NUMBERS = st.one_of(
    st.integers().map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["-0", "1e999", "1E+2", "01", "1.", "NaN", "-Infinity", "9223372036854775808.0", "null", "true"]),
)


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    member = st.tuples(_KEYS, _SPACE, _SPACE, values, _SPACE).map(lambda m: f"{m[0]}{m[1]}:{m[2]}{m[3]}{m[4]}")
    return st.lists(member, max_size=4).map(lambda members: f"{{{','.join(members)}}}")


_VALUES = st.recursive(
    _STRINGS | _NUMBERS,
    lambda values: _objects(values) | st.lists(values, max_size=3).map(lambda items: f"[{','.join(items)}]"),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(text=_objects(_VALUES) | _VALUES, data=st.data())
def test_the_fast_parser_agrees_with_the_reference_on_anything_like_json(text: str, data: st.DataObject) -> None:
    row = bytearray(text.encode("utf-8", "surrogatepass"))
    assert outcome(parse_record, bytes(row)) == outcome(parse_reference, bytes(row))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(row)))
        row[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=1) | st.sampled_from([b'"', b"\\"]))
    assert outcome(parse_record, bytes(row)) == outcome(parse_reference, bytes(row))


@settings(max_examples=300, deadline=None)
@given(row=st.binary(max_size=12) | st.text('{}[]",:\\ue0129.-+tnNI \n', max_size=14).map(str.encode))
def test_the_fast_parser_agrees_with_the_reference_on_any_bytes(row: bytes) -> None:
    assert outcome(parse_record, row) == outcome(parse_reference, row)


def assert_rows_agree_with_the_reference(lines: list[bytes]) -> bool:
    """Return whether the lines were parsed together; if so, each of them is what the reference makes of it."""
    found = parse_rows(b"\n".join(lines))
    if found is None:
        return False
    begins, values = found
    assert begins == [len(b"\n".join([*lines[:at], b""])) for at in range(len(lines))]
    for line, value in zip(lines, values, strict=True):
        assert repr(value) == repr(parse_reference(line))
    return True


@pytest.mark.parametrize(("row", "reason"), NASTY, ids=[repr(row[:40]) for row, _ in NASTY])
def test_rows_with_a_nasty_one_among_them_are_left_to_the_reference(row: bytes, reason: str | None) -> None:
    together = assert_rows_agree_with_the_reference([b'{"a": "\\""}', row, b'{"b": "\\\\"}'])
    assert not together or reason is None
    if not row.startswith(b"["):
        assert_rows_agree_with_the_reference([row])


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(_objects(_VALUES).filter(lambda text: "\n" not in text), min_size=1, max_size=4),
    data=st.data(),
)
def test_rows_parsed_together_are_what_the_reference_makes_of_each(rows: list[str], data: st.DataObject) -> None:
    lines = [text.encode("utf-8", "surrogatepass") for text in rows]
    assert_rows_agree_with_the_reference(lines)
    at = data.draw(st.integers(0, len(lines) - 1))
    cut = data.draw(st.integers(0, len(lines[at])))
    edit = data.draw(st.sampled_from([b'"', b"\\", b'\\"', b",", b":", b"\xff", b"1"]))
    lines[at] = lines[at][:cut] + edit + lines[at][cut + data.draw(st.integers(0, 1)) :]
    assert_rows_agree_with_the_reference(lines)


def test_rows_that_are_like_most_rows_never_reach_the_slow_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(data: bytes) -> Any:
        raise AssertionError(f"the reference was asked about {data!r}")

    monkeypatch.setattr(parsing, "parse_reference", never)
    rows: list[dict[str, Any]] = [
        {"id": "x", "text": 'He said: "Tea?"\nC:\\new "\\"', "metadata": {"score": 0.97, "ids": [1, 2], "nested": {}}},
        {"id": 7, "text": "naïve 😀 \u2028 \x7f", "source": None, "attributes": {"a__b": [[0, 10, 0.5]]}},
    ]
    for row in rows:
        for line in (json.dumps(row), json.dumps(row, ensure_ascii=False), json.dumps(row, separators=(",", ":"))):
            assert parse_record(line.encode()) == row
            assert parse_rows(b"\n".join([line.encode()] * 2)) == ([0, len(line.encode()) + 1], [row] * 2)


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        (b"", "blank_line", "blank"),
        (b" \t\r", "blank_line", "blank"),
        (b"[1]", "not_an_object", "an array, expected a JSON object"),
        (b"null", "not_an_object", "null"),
        (b'"text"', "not_an_object", "a string"),
        (b"17", "not_an_object", "a number"),
        (b"true", "not_an_object", "a boolean"),
    ],
)
def test_a_row_is_an_object(row: bytes, reason: str, detail: str) -> None:
    with pytest.raises(BadRow, match=detail) as caught:
        parse_row(row)
    assert caught.value.reason == reason


def test_orjson_alone_would_lose_what_the_parser_looks_for() -> None:
    assert orjson.loads(b'{"a": 1, "a": 2}') == {"a": 2}
    assert orjson.loads(b"123456789012345678901234567890") != 123456789012345678901234567890


def test_runs_of_backslashes_before_quotes_are_counted_in_any_length() -> None:
    """Rows with them are read together; a key that is lost among them is not."""
    for length in range(9):
        for before in ("", "a", '"', "a" + "\\" * 3 + "b"):
            text = before + "\\" * length
            for value in ({"a": text}, {"a": text + '"'}, {"a": text + '"b'}, {text: [text + '""', text]}):
                line = json.dumps(value).encode()
                assert parse_rows(line) == ([0], [value])
                assert parse_rows(line + b"\n" + line) == ([0, len(line) + 1], [value, value])
            written = json.dumps(text + '"').encode()
            for twice in (b'{"b": 1, "b": 2, "a": %b}', b'{"a": %b, "a": 1}', b'{"a": [], "a": [%b]}'):
                assert parse_rows(twice % written) is None
                with pytest.raises(BadRow, match="more than once"):
                    parse_row(twice % written)


def test_a_key_that_is_given_twice_is_named() -> None:
    with pytest.raises(BadRow, match="has the name 'b' more than once"):
        parse_row(b'{"a": 1, "b": 2, "c": 3, "b": 4}')
