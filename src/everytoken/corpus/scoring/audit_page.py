"""The page on which people label an audit: one file of HTML that asks no network and shows texts as texts.

The documents stand in it as JSON in a data block, without a character that ends one, and enter the page as text nodes
only. A content security policy allows the page's own script and style, by their digests, and nothing else: were a
document ever to become an element, no script of it would run and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

MAX_CHARACTERS = 20_000  # of a document
MAX_PAGE_CHARACTERS = 20_000_000  # of all documents

_TEMPLATE = "audit_page.html"
_DATA = "{{data}}"
_POLICY = "{{policy}}"


def label_page(sample: Sequence[Mapping[str, Any]], digest: str, class_names: Sequence[str]) -> str:
    """Return the page.

    Args:
        sample: the items; of long texts the page holds the first `MAX_CHARACTERS`, of many the first characters that
            make `MAX_PAGE_CHARACTERS` together, and says how many more there are.
        digest: SHA-256 of the sample: labels that a browser keeps belong to it, and saved labels name it.
        class_names: of classes 0, 1, ...
    """
    most = min(MAX_CHARACTERS, MAX_PAGE_CHARACTERS // max(1, len(sample)))
    data = {"sample": digest, "classes": list(class_names), "items": [_shown(row, most) for row in sample]}
    template = resources.files(__package__).joinpath(_TEMPLATE).read_text(encoding="utf-8")
    # the documents last, and by cutting: one may hold what looks like a place to fill
    before, after = template.replace(_POLICY, _policy(template)).split(_DATA)
    return before + _json_in_html(data) + after


def _shown(row: Mapping[str, Any], most: int) -> dict[str, Any]:
    text = row["text"]
    shown = {name: value for name, value in row.items() if name not in ("text", "id_type")}
    return {**shown, "text": text[:most], "characters": len(text)}


def _policy(template: str) -> str:
    digests = {}
    for element in ("script", "style"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", template, re.DOTALL)
        digests[element] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    own = "; ".join(f"{element}-src 'sha256-{digest}'" for element, digest in digests.items())
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _json_in_html(data: Any) -> str:
    """Return JSON without <, > and &: no tag, comment or entity can begin or end in it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
