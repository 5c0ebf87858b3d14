"""Pages of HTML in one file that ask no network and show data as data.

A page with a script has its data as JSON in a data block, without a character that ends one. A page without one has
elements, in which all text is escaped. A content security policy allows the page's own script and style, by their
digests, and nothing else: were a text ever to become an element, no script of it would run and nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any

_DATA, _POLICY = "{{data}}", "{{policy}}"

# what a reader would not see, or what would act on the text around it
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)


class Markup(str):
    """A text that is HTML already."""


def element(name: str, *content: str, **attributes: object) -> Markup:
    """Return an element; what is in it is escaped, and characters that one cannot see are spelled out.

    Args:
        content: texts, and `Markup` of other elements.
    """
    given = "".join(f' {key}="{_escaped(str(value))}"' for key, value in attributes.items())
    inner = "".join(one if isinstance(one, Markup) else _escaped(one) for one in content)
    return Markup(f"<{name}{given}>{inner}</{name}>")


def _escaped(text: str) -> str:
    return html.escape(_UNSEEN.sub(lambda found: f"\\u{{{ord(found[0]):x}}}", text))


def static_page(package: str, template: str, *body: Markup) -> str:
    """Return a page without a script.

    Args:
        package: that the template lies in.
        template: its file, with one ``<style>``, and places for ``{{data}}``, the body, and ``{{policy}}``.
        body: elements, in order.
    """
    before, after = _template(package, template)
    return before + "\n".join(body) + after


def page_with(package: str, template: str, data: Any) -> str:
    """Return a page: a template with its data and its policy.

    Args:
        package: that the template lies in.
        template: its file, with one ``<script>``, one ``<style>``, and places for ``{{data}}`` and ``{{policy}}``.
        data: plain JSON.
    """
    before, after = _template(package, template)
    return before + _json_in_html(data) + after


def _template(package: str, template: str) -> tuple[str, str]:
    """Return what is before and after the data: a text of these may hold what looks like a place to fill."""
    page = resources.files(package).joinpath(template).read_text(encoding="utf-8")
    before, after = page.replace(_POLICY, _policy(page)).split(_DATA)
    return before, after


def _policy(page: str) -> str:
    digests = {}
    for name in ("script", "style"):
        for content in re.findall(rf"<{name}>(.*?)</{name}>", page, re.DOTALL):
            digests[name] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    own = "; ".join(f"{name}-src 'sha256-{digest}'" for name, digest in digests.items())
    return f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"


def _json_in_html(data: Any) -> str:
    """Return JSON without <, > and &: no tag, comment or entity can begin or end in it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
