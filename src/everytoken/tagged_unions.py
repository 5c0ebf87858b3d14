"""Parameters of several kinds: an environment that chooses another kind still has the keys of base's.

Environments change leaves, so ``{kind: file, path: ...}`` over base's ``{kind: train, vocab_size: ...}`` gives all four
keys. Those of the kinds that were not chosen are left out; a key of no kind stays, and is an error.

Families of models share the names of their keys (``d_model``), and a width of one family is no width of another. So a
model that names its ``family`` is whole, and inherits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel


def keys_of_the_chosen_kind(data: Any, kinds: Mapping[str, type[BaseModel]]) -> Any:
    """Return ``data`` without the keys that only other kinds have; what names no kind is returned as it is.

    Args:
        data: raw parameters with a key ``kind``.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or data["kind"] not in kinds:
        return data
    foreign = {key for kind in kinds.values() for key in kind.model_fields} - set(kinds[data["kind"]].model_fields)
    return {key: value for key, value in data.items() if key not in foreign}


def with_whole_families(merged: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``merged`` in which each mapping that names its ``family`` in ``layer`` has the keys of ``layer`` alone.

    Args:
        merged: parameters, ``layer`` over those below it.
        layer: what an environment or the command line says.
    """
    whole = dict(merged)
    for name, own in layer.items():
        if isinstance(own, Mapping) and isinstance(found := merged.get(name), Mapping):
            kept = {key: value for key, value in found.items() if key in own} if "family" in own else found
            whole[name] = with_whole_families(kept, own)
    return whole
