"""Nested values to MLflow's flat keys: ``{"subsampling": {"seed": 42}}`` becomes ``subsampling.seed = 42``.

MLflow compares runs key by key and knows only flat text parameters and flat float metrics. A key is the path
joined by dots; letters, digits and ``_ - . space`` stay, any other character becomes ``_``; two paths that
meet in one key are an error, never an overwrite. A parameter's value is a string as it is, or the JSON of
anything else (lists stay one value).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from everytoken.tracking.errors import TrackingError

KEY_LIMIT = 250  # mlflow.utils.validation.MAX_ENTITY_KEY_LENGTH
VALUE_LIMIT = 6000  # MAX_PARAM_VAL_LENGTH: MLflow itself would cut without a mark

_FORBIDDEN = re.compile(r"[^\w.\- ]")  # MLflow takes "/" in clean paths alone, and ":" not on Windows

KeyPath = tuple[str, ...]
Point = tuple[str, int, float]


def plain(value: Any, where: KeyPath = ()) -> Any:
    """Return ``value`` in JSON's types: models become dicts, tuples and sets (sorted) lists, paths text.

    Raises:
        TrackingError: for a value that has no such form (it would be recorded as a memory address), or for
        two keys of one mapping with the same text (``1`` and ``"1"``), or for text that UTF-8 cannot hold.
    """
    if isinstance(value, BaseModel):
        value = dict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        items = {str(plain(key, where)): plain(item, (*where, str(key))) for key, item in value.items()}
        if len(items) < len(value):
            name = Counter(map(str, value)).most_common(1)[0][0]
            raise TrackingError(f"{_dotted(where)}: two keys are both {name!r} as text. Rename one of them.")
        return items
    if isinstance(value, list | tuple):
        return [plain(item, (*where, str(index))) for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        # sorted by JSON text: the order of a set depends on PYTHONHASHSEED
        return sorted((plain(item, where) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return _plain_leaf(value, where)


def _plain_leaf(value: Any, where: KeyPath) -> Any:
    try:
        leaf = to_jsonable_python(value)
        if isinstance(leaf, str):
            leaf.encode()
    except PydanticSerializationError as error:
        raise TrackingError(
            f"{_dotted(where)}: a {type(value).__name__} cannot be recorded; expected a number, text, list, mapping, "
            f"model or dataclass. Change the type of the parameter."
        ) from error
    except UnicodeEncodeError as error:
        raise TrackingError(
            f"{_dotted(where)}: the text {ascii(leaf)[:80]} holds U+{ord(leaf[error.start]):04X} at position "
            f"{error.start}, half of a character, which no database or file in UTF-8 can hold. Write it in UTF-8."
        ) from error
    return leaf


def flat_key(*path: str) -> str:
    """Return the MLflow key of a path.

    Raises:
        TrackingError: if the key is empty or longer than 250 characters.
    """
    key = _FORBIDDEN.sub("_", ".".join(path))
    if key.startswith("."):  # MLflow reads keys as file paths and refuses "." and ".."
        key = "_" + key[1:]
    if not key or len(key) > KEY_LIMIT:
        raise TrackingError(
            f"{_dotted(path)[:300]}: the key has {len(key)} characters, MLflow takes 1 to {KEY_LIMIT}. Use other names."
        )
    return key


def flatten(tree: Mapping[str, Any], *prefix: str) -> dict[str, Any]:
    """Return ``{flat key: leaf}`` of a nested mapping.

    Raises:
        TrackingError: if two paths give one key.
    """
    paths: dict[str, KeyPath] = {}
    result: dict[str, Any] = {}
    for path, leaf in leaves(tree, prefix):
        key = flat_key(*path)
        if key in paths:
            raise TrackingError(
                f"{list(paths[key])} and {list(path)} both become MLflow's key {key!r}, one would be lost. Rename one."
            )
        paths[key], result[key] = path, leaf
    return result


def leaves(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of each leaf of a nested mapping; an empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def shorten(text: str, limit: int = VALUE_LIMIT, complete_in: str = "parameters.json") -> str:
    """Return ``text``, cut to ``limit`` characters with a mark at its end that says so.

    The mark holds a digest, so two long values that differ only after the cut still differ in a comparison.
    """
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    mark = f" [CUT: {len(text)} characters, SHA-256 {digest}, complete in {complete_in}]"
    return text[: limit - len(mark)] + mark


def flat_parameters(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return MLflow's flat parameters of a plain mapping: a text as it is (an empty one as ``""``), else JSON."""
    return {
        key: shorten(leaf if isinstance(leaf, str) and leaf else json.dumps(leaf, ensure_ascii=False))
        for key, leaf in flatten(tree).items()
    }


def flat_metrics(prefix: str, data: Any, dataset: str) -> dict[str, float]:
    """Return ``{"prefix.key": number}`` of a nested mapping of numbers.

    Raises:
        TrackingError: if ``data`` is no mapping, or a leaf of it is not a number.
    """
    if not isinstance(data, Mapping):
        raise TrackingError(f"dataset {dataset}: expected a (nested) dict of numbers, found {type(data).__name__}.")
    flat = flatten(data, prefix)
    return {key: _number(leaf, f"dataset {dataset}, key {key}") for key, leaf in flat.items() if leaf != {}}


def metric_points(prefix: str, data: Any, dataset: str) -> list[Point]:
    """Return ``(key, step, value)`` for every cell of a history: DataFrame or dict of lists, with ``step``.

    A missing cell (``None``) gives no point; a NaN is a number here (a diverged loss) and is kept.

    Raises:
        TrackingError: without ``step``, with columns of unequal length, or with a cell that is not a number.
    """
    columns = {str(name): list(data[name]) for name in data} if hasattr(data, "keys") else {}
    if "step" not in columns:
        raise TrackingError(
            f"dataset {dataset}: expected a DataFrame or a dict of lists with a column 'step', found "
            f"{type(data).__name__} with columns {list(columns)}."
        )
    steps = columns.pop("step")
    unequal = {name: len(values) for name, values in columns.items() if len(values) != len(steps)}
    if unequal:
        raise TrackingError(f"dataset {dataset}: 'step' has {len(steps)} rows, other columns differ: {unequal}.")
    for row, step in enumerate(steps):
        if not isinstance(step, Integral):
            raise TrackingError(f"dataset {dataset}, row {row}: step must be an integer, found {step!r}.")
    return [
        (key, int(step), _number(value, f"dataset {dataset}, column {key.removeprefix(prefix + '.')}, row {row}"))
        for key, values in flatten(columns, prefix).items()
        for row, (step, value) in enumerate(zip(steps, values, strict=True))
        if value is not None
    ]


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TrackingError(f"{where}: expected a number, found {type(value).__name__} {str(value)[:80]!r}.")
    return float(value)


def _dotted(path: KeyPath) -> str:
    return ".".join(path) or "parameters"
