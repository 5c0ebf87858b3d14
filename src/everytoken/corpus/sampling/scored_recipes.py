"""Whether documents were scored, without the code that scores or draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_scored(recipe: Mapping[str, Any]) -> bool:
    """Return whether documents were scored, as the recipe in the ledger of a split, or of scored documents, says."""
    if recipe["function"] in ("split_unscored", "leave_unscored"):
        return False
    given = (value for value in recipe["parameters"].values() if isinstance(value, Mapping))
    return all(value.get("annotation_threshold", 0) is not None for value in given)
