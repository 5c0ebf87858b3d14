"""The page on which people label an audit: one file of HTML that asks no network and shows texts as texts.

The documents enter the page as text nodes only (`everytoken.html_pages`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everytoken.html_pages import page_with

MAX_CHARACTERS = 20_000  # of a document
MAX_PAGE_CHARACTERS = 20_000_000  # of all documents

_TEMPLATE = "audit_page.html"


def label_page(sample: Sequence[Mapping[str, Any]], digest: str, class_names: Sequence[str]) -> str:
    """Return the page.

    Args:
        sample: the items; of long texts the page holds the first `MAX_CHARACTERS`, of many the first characters that
            make `MAX_PAGE_CHARACTERS` together, and says how many more there are.
        digest: SHA-256 of the sample: labels that a browser keeps belong to it, and saved labels name it.
    """
    most = min(MAX_CHARACTERS, MAX_PAGE_CHARACTERS // max(1, len(sample)))
    data = {"sample": digest, "classes": list(class_names), "items": [_shown(row, most) for row in sample]}
    return page_with(__package__, _TEMPLATE, data)


def _shown(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    text = row["text"]
    shown = {name: value for name, value in row.items() if name not in ("text", "id_type")}
    return {**shown, "text": text[:most], "characters": len(text)}
