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
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, time
from enum import Enum
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from everytoken.tracking.errors import TrackingError

KEY_LIMIT = 250  # mlflow.utils.validation.MAX_ENTITY_KEY_LENGTH
VALUE_LIMIT = 6000  # MAX_PARAM_VAL_LENGTH: MLflow itself would cut without a mark

_FORBIDDEN = re.compile(r"[^\w.\- ]")  # MLflow takes "/" in clean paths alone, and ":" not on Windows
_SURROGATE = re.compile(r"[\ud800-\udfff]")

KeyPath = tuple[str, ...]
Point = tuple[str, int, float]


def plain(value: Any, where: KeyPath = ()) -> Any:
    """Return ``value`` in JSON's types: models become dicts, tuples and sets (sorted) lists, paths text.

    Raises:
        TrackingError: for a value that has no such form (it would be recorded as a memory address), or for
        two keys of one mapping with the same text (``1`` and ``"1"``), or for text that UTF-8 cannot hold.
    """
    if isinstance(value, Enum):
        return plain(value.value, where)
    if isinstance(value, str):
        _refuse_surrogates(value, where)
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, BaseModel):
        return _plain_items(((name, getattr(value, name)) for name in type(value).model_fields), where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain_items(((field.name, getattr(value, field.name)) for field in dataclasses.fields(value)), where)
    if isinstance(value, Mapping):
        return _plain_items(value.items(), where)
    if isinstance(value, list | tuple):
        return [plain(item, (*where, str(index))) for index, item in enumerate(value)]
    if isinstance(value, set | frozenset):
        # sorted by JSON text: the order of a set depends on PYTHONHASHSEED
        return sorted((plain(item, where) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, PurePath):
        return plain(str(value), where)
    if isinstance(value, date | time):
        return value.isoformat()
    raise TrackingError(
        f"{_dotted(where)}: a {type(value).__name__} cannot be recorded; expected a number, text, list, mapping, "
        f"model or dataclass. Change the type of the parameter."
    )


def _plain_items(items: Iterable[tuple[Any, Any]], where: KeyPath) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in items:
        name = str(plain(key, where))
        if name in result:
            raise TrackingError(f"{_dotted(where)}: two keys are both {name!r} as text. Rename one of them.")
        result[name] = plain(value, (*where, name))
    return result


def _refuse_surrogates(text: str, where: KeyPath) -> None:
    lone = _SURROGATE.search(text)
    if lone:
        raise TrackingError(
            f"{_dotted(where)}: the text {ascii(text)[:80]} holds U+{ord(lone[0]):04X} at position {lone.start()}, "
            f"half of a character, which no database or file in UTF-8 can hold. Write the text in UTF-8."
        )


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


def flatten(tree: Mapping[str, Any], *prefix: str) -> dict[str, object]:
    """Return ``{flat key: leaf}`` of a nested mapping.

    Raises:
        TrackingError: if two paths give one key.
    """
    result: dict[str, object] = {}
    origin: dict[str, KeyPath] = {}
    for path, leaf in leaves(tree, prefix):
        key = flat_key(*path)
        if key in result:
            raise TrackingError(
                f"{list(origin[key])} and {list(path)} both become MLflow's key {key!r}, one would be lost. Rename one."
            )
        result[key], origin[key] = leaf, path
    return result


def leaves(tree: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield path and value of each leaf of a nested mapping; an empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def parameter_text(value: Any) -> str:
    """Return the text of one plain parameter: a string as it is (an empty one as ``""``), else JSON."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


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
    """Return MLflow's flat parameters of a plain nested mapping."""
    return {key: shorten(parameter_text(leaf)) for key, leaf in flatten(tree).items()}


def number(value: Any, where: str) -> float:
    """Return ``value`` as a float (NaN and infinities included).

    Raises:
        TrackingError: if it is not a number; a bool is not one.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TrackingError(f"{where}: expected a number, found {type(value).__name__} {str(value)[:80]!r}.")
    return float(value)


def flat_metrics(prefix: str, data: Any, dataset: str) -> dict[str, float]:
    """Return ``{"prefix.key": number}`` of a nested mapping of numbers.

    Raises:
        TrackingError: if ``data`` is no mapping, or a leaf of it is not a number.
    """
    if not isinstance(data, Mapping):
        raise TrackingError(f"dataset {dataset}: expected a (nested) dict of numbers, found {type(data).__name__}.")
    flat = flatten(data, prefix)
    return {key: number(leaf, f"dataset {dataset}, key {key}") for key, leaf in flat.items() if leaf != {}}


def metric_points(prefix: str, data: Any, dataset: str) -> list[Point]:
    """Return ``(key, step, value)`` for every cell of a history: DataFrame or dict of lists, with ``step``.

    A missing cell (``None``, ``pandas.NA``) gives no point; a NaN is a number here (a diverged loss) and is
    kept.

    Raises:
        TrackingError: without ``step``, with columns of unequal length, or with a cell that is not a number.
    """
    names = list(data.columns) if hasattr(data, "columns") else list(data) if isinstance(data, Mapping) else []
    if "step" not in names:
        raise TrackingError(
            f"dataset {dataset}: expected a DataFrame or a dict of lists with a column 'step', found "
            f"{type(data).__name__} with columns {names}."
        )
    columns = {str(name): list(data[name]) for name in names}
    steps = columns.pop("step")
    unequal = {name: len(values) for name, values in columns.items() if len(values) != len(steps)}
    if unequal:
        raise TrackingError(f"dataset {dataset}: 'step' has {len(steps)} rows, other columns differ: {unequal}.")
    keys = flatten(dict.fromkeys(columns, 0), prefix)  # the same order, checked for collisions
    points = []
    for key, (name, values) in zip(keys, columns.items(), strict=True):
        for row, (step, value) in enumerate(zip(steps, values, strict=True)):
            if not isinstance(step, Integral) or isinstance(step, bool):
                raise TrackingError(f"dataset {dataset}, row {row}: step must be an integer, found {step!r}.")
            if value is not None and type(value).__name__ != "NAType":
                points.append((key, int(step), number(value, f"dataset {dataset}, column {name}, row {row}")))
    return points


def _dotted(path: KeyPath) -> str:
    return ".".join(path) or "parameters"
