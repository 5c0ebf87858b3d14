"""Parameters of several kinds: an environment that chooses another kind still has the keys of base's.

Environments change leaves, so ``{kind: file, path: ...}`` over base's ``{kind: train, vocab_size: ...}`` gives all four
keys. Those of the kinds that were not chosen are left out; a key of no kind stays, and is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def keys_of_the_chosen_kind(data: Any, kinds: Mapping[str, type[BaseModel]]) -> Any:
    """Return ``data`` without the keys that only other kinds have; what names no kind is returned as it is.

    Args:
        data: raw parameters with a key ``kind``.
        kinds: the model of each.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str) or data["kind"] not in kinds:
        return data
    foreign = {key for kind in kinds.values() for key in kind.model_fields} - set(kinds[data["kind"]].model_fields)
    return {key: value for key, value in data.items() if key not in foreign}
