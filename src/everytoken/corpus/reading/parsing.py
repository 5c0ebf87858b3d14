r"""The bytes of one JSON record become a value, or a reason why not.

The *reference* is Python's ``json`` on strictly decoded UTF-8: no NaN or Infinity, no object that names a key twice at
any depth, integers exact, at most `MAX_DEPTH` objects and lists in each other. It takes most of the time of reading,
so orjson reads first and counts only where it must agree; every other row is the reference's to judge and to word.

orjson accepts only what the reference accepts (RFC 8259, strict UTF-8 in every string; it also refuses lone surrogates
and numbers beyond a float, which the reference keeps), with three exceptions, each of which is looked for:

- integers beyond 64 bits become floats: any float of ``2**63`` or more is left to the reference;
- nesting to 1,024: depth is counted;
- a key given twice keeps its last value. Quotes tell: in valid JSON every ``"`` opens or closes a string, or is inside
  one as ``\"``. A value with s strings (keys and values) and q quotes within them is spelled with ``2 s + q`` quotes,
  and each member that is lost had two or more. `parse_rows` counts those of the bytes that are not escaped: ``2 s``
  when nothing was lost, else more. `parse_record` counts all: ``2 s`` in the bytes prove that nothing was lost, and so
  do ``2 s + q`` unless quotes are spelled ``\u0022``.

A lone surrogate (``"\ud800"``) is valid JSON and stays in the value; what is made of it is the renderer's matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import orjson

from everytoken.corpus.errors import BadRow

MAX_RUN_BYTES = 1 << 19  # larger ones are parsed row by row: arrays of their size are too much memory
MAX_DEPTH = 256
_BEYOND_64_BITS = 2.0**63
_NEWLINE, _QUOTE, _BACKSLASH = b'\n"\\'


class _Doubt(Exception):
    """The fast parser may have read this otherwise than the reference."""


def parse_record(data: bytes) -> Any:
    """Return the value that a record's bytes hold, exactly as `parse_reference` does, in about half its time.

    Raises:
        BadRow: see `parse_reference`.
    """
    try:
        value = orjson.loads(data)
        strings = _count_strings(value, MAX_DEPTH) if type(value) is dict else _count_strings_of([value], MAX_DEPTH + 1)
    except (ValueError, RecursionError, _Doubt):
        return parse_reference(data)
    quotes = data.count(b'"')
    if quotes != 2 * strings and (quotes != 2 * strings + _count_quotes(value) or b"\\u0022" in data):
        return parse_reference(data)
    return value


def parse_row(data: bytes) -> dict[str, Any]:
    """Return the object that a row's bytes hold.

    Raises:
        BadRow: ``blank_line``, ``not_an_object``, or see `parse_reference`.
    """
    if not data or data.isspace():
        raise BadRow("blank_line", "the line is blank, expected a JSON object")
    value = parse_record(data)
    if type(value) is not dict:
        raise BadRow("not_an_object", f"the row holds {json_name(value)}, expected a JSON object")
    return value


def parse_rows(run: bytes) -> tuple[list[int], list[dict[str, Any]]] | None:
    r"""Return where the lines of a run begin, and their objects; None when `parse_row` has to judge one of them.

    Rows together take an eighth less time than rows alone, and are the same.

    Args:
        run: whole lines, with ``\n`` between them.
    """
    if len(run) > MAX_RUN_BYTES:
        return None
    codes = np.frombuffer(run, dtype=np.uint8)
    begins: list[int] = [0, *(np.flatnonzero(codes == _NEWLINE) + 1).tolist()]
    ends = [*begins[1:], len(run)]  # with the newline, which is white space to JSON
    view, loads = memoryview(run), orjson.loads
    try:
        values = [loads(view[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        strings = sum([_count_strings(value, MAX_DEPTH) for value in values])
    except (ValueError, RecursionError, _Doubt):
        return None
    return (begins, values) if _count_delimiters(run, codes) == 2 * strings else None


def _count_delimiters(run: bytes, codes: Any) -> int:
    """Count the quotes that are not escaped: those that an even number of backslashes stands before."""
    quotes, backslashes = codes == _QUOTE, codes == _BACKSLASH
    after_one = quotes[1:] & backslashes[:-1]
    count = int(np.count_nonzero(quotes)) - int(np.count_nonzero(after_one))
    for at in (np.flatnonzero(after_one[1:] & backslashes[:-2]) + 2).tolist():
        first = at - 2
        while run[first - 1] == _BACKSLASH:
            first -= 1
        count += (at - first) % 2 == 0
    return count


def parse_reference(data: bytes) -> Any:
    """Return the value that a record's bytes hold.

    Raises:
        BadRow: ``not_utf8``, ``not_json``, ``not_finite`` or ``duplicate_key``.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow("not_utf8", f"not valid UTF-8 ({error.reason} at byte {error.start} of the row)") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise BadRow("not_json", f"the JSON is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise BadRow("not_json", f"not valid JSON ({error})") from None
    if _depth(value) > MAX_DEPTH:  # Python's own limit depends on who calls
        raise BadRow("not_json", f"the JSON is nested deeper than {MAX_DEPTH}")
    return value


def json_name(value: Any) -> str:
    """Return what JSON calls a value."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return {**names, list: "an array", dict: "an object"}.get(type(value), type(value).__name__)


def _count_strings(value: Any, depth: int) -> int:
    """Count the strings of an object, keys included."""
    if type(value) is not dict:
        raise _Doubt
    return len(value) + _count_strings_of(value.values(), depth)


def _count_strings_of(members: Iterable[Any], depth: int) -> int:
    if depth == 0:
        raise _Doubt
    count = 0
    for member in members:
        kind = type(member)
        if kind is str:
            count += 1
        elif kind is dict:
            count += len(member) + _count_strings_of(member.values(), depth - 1)
        elif kind is list:
            count += _count_strings_of(member, depth - 1)
        elif kind is float and not -_BEYOND_64_BITS < member < _BEYOND_64_BITS:
            raise _Doubt
    return count


def _count_quotes(value: Any) -> int:
    """Count the quotes within strings that are values; one within a key is for the reference."""
    kind = type(value)
    if kind is str:
        quotes: int = value.count('"')
        return quotes
    if kind is dict:
        value = value.values()
    elif kind is not list:
        return 0
    return sum(map(_count_quotes, value))


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [member for member in level if type(member) in (dict, list)]:
        depth += 1
        level = [child for member in level for child in (member.values() if type(member) is dict else member)]
    return depth


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):  # Python's parser keeps the last one and says nothing
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise BadRow("duplicate_key", f"a JSON object has the name {shown_name(twice)} more than once")
    return value


def _no_constant(name: str) -> NoReturn:
    raise BadRow("not_finite", f"{name} is not valid JSON")


def shown_name(text: str) -> str:
    """Return a name as messages show it: quoted, and not longer than a line."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}..."
