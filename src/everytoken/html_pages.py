"""Pages of HTML in one file that ask no network and show data as data.

The data stand in the page as JSON in a data block, without a character that ends one. A content security policy allows
the page's own script and style, by their digests, and nothing else: were a text ever to become an element, no script of
it would run and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib import resources
from typing import Any

_DATA, _POLICY = "{{data}}", "{{policy}}"


def page_with(package: str, template: str, data: Any) -> str:
    """Return a page: a template with its data and its policy.

    Args:
        package: that the template lies in.
        template: its file, with one ``<script>``, one ``<style>``, and places for ``{{data}}`` and ``{{policy}}``.
        data: plain JSON.
    """
    page = resources.files(package).joinpath(template).read_text(encoding="utf-8")
    # the data last, and by cutting: a text may hold what looks like a place to fill
    before, after = page.replace(_POLICY, _policy(page)).split(_DATA)
    return before + _json_in_html(data) + after


def _policy(page: str) -> str:
    digests = {}
    for element in ("script", "style"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digests[element] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    own = "; ".join(f"{element}-src 'sha256-{digest}'" for element, digest in digests.items())
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _json_in_html(data: Any) -> str:
    """Return JSON without <, > and &: no tag, comment or entity can begin or end in it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
