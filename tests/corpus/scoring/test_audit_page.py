"""The labelling page in a real browser, over the DevTools protocol."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everytoken.corpus.scoring.audit import CLASS_NAMES, MAX_CHARACTERS, label_page
from everytoken.corpus.scoring.audit_report import read_labels
from tests.corpus.scoring.browser import Page, browser_page
from tests.shards.children import PATIENCE, wait_until

pytestmark = pytest.mark.sensitive

DIGEST = "ab" * 32

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'> &lt; &amp;amp; {{data}} {{policy}} ${window.hacked = 3}",
    "<!-- <script> <svg/onload=window.hacked=4> ]]> \u2028 \u2029 \x00 \u202e reversed",
    "javascript:window.hacked=5 <iframe srcdoc='<script>parent.hacked=6</script>'></iframe><style>*{display:none}",
]


def items(texts: list[str]) -> list[dict[str, Any]]:
    fixed = {"id_type": "string", "source": "<b>s</b>", "stratum": "", "shard_index": 0}
    return [
        {"item": number + 1, "id": f"</script>{number}", **fixed, "row": number, "text": text}
        for number, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("chromium")) as page:
        yield page


@pytest.fixture
def folder(page: Page, tmp_path: Path) -> Path:
    page.events.clear()
    page.call("Page.bringToFront")
    return tmp_path


def opened(page: Page, folder: Path, texts: list[str], digest: str) -> None:
    path = folder / "label.html"
    path.write_text(label_page(items(texts), digest, CLASS_NAMES), encoding="utf-8")
    page.open(path)


def test_a_document_is_text_whatever_it_holds(page: Page, folder: Path) -> None:
    opened(page, folder, HOSTILE, "1" * 64)
    for text in HOSTILE:
        assert page.text("#text") == text
        assert page.evaluate("document.getElementById('text').childElementCount") == 0
        assert page.text("#where").startswith("<b>s</b> / ")
        page.press("ArrowRight")
    assert page.evaluate("[typeof window.hacked, document.scripts.length, document.images.length]") == [
        "undefined",
        2,
        0,
    ]
    assert page.complaints() == []
    assert {url.split(":")[0] for url in page.requested()} <= {"file"}


def test_no_script_of_a_document_would_run_even_as_an_element(page: Page, folder: Path) -> None:
    """The policy stands behind the escaping."""
    opened(page, folder, HOSTILE, "2" * 64)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=https://127.0.0.1:9/x onerror=hacked=7>')")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'hacked=8'}))")
    assert page.evaluate("typeof window.hacked") == "undefined"
    logged = " ".join(event["params"]["entry"]["text"] for event in page.complaints())
    assert "Content Security Policy" in logged


def test_labels_by_key_and_mouse_are_kept_and_saved(page: Page, folder: Path) -> None:
    texts = [f"document {number}" for number in range(6)]
    opened(page, folder, texts, DIGEST)
    assert page.evaluate("document.getElementById('save').disabled")
    assert "agree on before they label" in page.text("footer .hint"), "what a class means is said nowhere else"
    page.press("3", "x")
    page.click("#labels button:nth-child(6)")  # class 5
    page.press("0", "ArrowLeft", "Backspace", "q", "9")
    assert (page.text("#count"), page.text("#text")) == ("3 labelled", "document 3")
    page.press("ArrowRight", "2")
    assert page.text("#text") == "document 5"
    page.press("u")
    assert page.text("#text") == "document 3", "the next without a label, from the start again"
    page.press("ArrowLeft")
    deadline = time.monotonic() + PATIENCE
    while page.text("#count") != "4 labelled" or page.text("#text") != "document 3":
        assert time.monotonic() < deadline, "labels stay when the page is opened again"
        page.open(folder / "label.html")  # in another process, which may be faster than the writing of the first one
    page.press("ArrowLeft")
    assert page.text("#labels button[aria-pressed=true]") == "5severe"
    saved = folder / "labels.jsonl"
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    page.click("#save")
    wait_until(saved.exists, "the labels were not saved")
    assert read_labels(saved, len(texts), DIGEST) == {1: 3, 2: None, 3: 5, 5: 2}
    opened(page, folder, texts, "c" * 64)
    assert page.text("#count") == "0 labelled", "labels belong to a sample"
    assert page.complaints() == []


def test_long_texts_are_cut_and_say_so(page: Page, folder: Path) -> None:
    long = "\U0001f600" * (MAX_CHARACTERS + 1234)
    opened(page, folder, [long, "short"], "3" * 64)
    shown = page.text("#text")
    assert 0 < len(shown) < 5_000 and set(shown) == {"\U0001f600"}, "no half characters"
    page.press("a")
    assert page.text("#text") == long[:MAX_CHARACTERS]
    assert page.text("#beyond") == "1,234 more characters are in sample.jsonl, item 1"
    page.press("ArrowRight")
    assert page.evaluate("document.getElementById('all').hidden") and page.text("#beyond") == ""


def test_the_page_is_bounded_however_many_and_long_the_documents_are() -> None:
    texts = ["x" * 30_000] * 2_500
    made = label_page(items(texts), DIGEST, CLASS_NAMES)
    assert 2_500 * 8_000 < len(made) < 2_500 * 8_000 + 1_000_000
    data = re.search(r'id="data">(.*?)</script>', made, re.DOTALL)
    assert data is not None
    assert {row["characters"] for row in json.loads(data[1])["items"]} == {30_000}
