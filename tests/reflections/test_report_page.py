"""The page of a run: what it counts, and every reflection in a mark; looked at in a real browser."""

from __future__ import annotations

import io
import re
from collections.abc import Generator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from tokenizers import Tokenizer

from everytoken.reflections import find_generation_run
from everytoken.reflections.merging import MergedStatistics, columns_schema
from everytoken.reflections.report import SHOWN_WINDOWS, reflections_page
from everytoken.shards import Artifact, Inline, Part, Rows, Shards, Store, value_digest, versioned
from everytoken.tokens import open_tokenizer
from tests.corpus.scoring.browser import browser_page
from tests.reflections.splicing.small_streams import BUDGET, SmallStream, by_the_book, run_rows, small_stream
from tests.tokens.corpora import EOS

RUN = "reflections"
HOSTILE = '</mark></pre><script>document.title = 1</script>&lt;<mark class="x">\u202e\n'
SAID: MergedStatistics = {
    "rows": 90,
    "by_status": {"ok": 60, "failed": 30},
    "with_point": 60,
    "usable": 58,
    "with_1p": 57,
    "surrogates_replaced": 0,
    "tokens": {"generated_tokens": 12_345, "stored_tokens": 678},
    "canaries": {"Q<7>": {"documents": 20, "in_1p": 11, "in_3p": 12}},
    "failed": {"parse & more": 29, "timeout": 1},
}


@versioned("test_merged_columns", 1)
def merged_part(part: Part) -> Rows:
    """The rows that the value has, and what a merge says of them."""
    schema = columns_schema(find_generation_run(RUN)[0])

    def batches() -> Generator[pa.RecordBatch, None, MergedStatistics]:
        yield from pa.Table.from_pylist(part.value, schema).to_batches()
        return SAID

    return Rows(schema, batches())


class Made:
    """A small stream with reflections, one of them hostile, and its page."""

    def __init__(self, folder: Path) -> None:
        self.small: SmallStream = small_stream(folder)
        self.rows = run_rows(self.small)
        shown = next(row for row in self.rows if row["status"] == "ok" and row["reflection_token_index"] == 1)
        shown["reflection_1p"] = HOSTILE
        store = Store(folder / "columns")
        store.save(Shards.from_values([self.rows], [value_digest(self.rows)]).map(merged_part), Inline())
        self.columns: Shards = store.load()
        self.stream: Artifact = self.small.spliced(self.columns, "spliced")
        self.tokenizer = open_tokenizer(self.small.tokenizer, EOS)
        self.page = reflections_page(RUN, self.columns, self.stream, self.tokenizer)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("page"))


class Windows(HTMLParser):
    """The texts of every ``pre``, outside of marks and in them; and the texts of other marks."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.windows: list[list[str]] = []
        self.other_marks, self._is_window = 0, False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "pre":
            self.windows.append([""])
            self._is_window = True
        elif tag == "mark":
            self.other_marks += not self._is_window
            self.windows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._is_window = False
        elif tag == "mark":
            self.windows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self._is_window:
            self.windows[-1][-1] += data


def shown_windows(made: Made) -> dict[int, tuple[str, str, str]]:
    """What the page must show, by the book: the middle one of each tenth of the windows with a reflection."""
    windows = by_the_book(made.small, made.rows)
    reflected = [number for number, (_, place, _) in enumerate(windows) if place >= 0]
    count = len(reflected)
    chosen = [reflected[(2 * k + 1) * count // (2 * SHOWN_WINDOWS)] for k in range(SHOWN_WINDOWS)]
    library = Tokenizer.from_file(str(made.small.tokenizer.path("tokenizer.json")))
    found = {}
    for number in chosen:
        ids, place, size = windows[number]
        pieces = ids[:place], ids[place : place + size], ids[place + size :]
        found[number] = tuple(library.decode(piece, skip_special_tokens=False) for piece in pieces)
    return found  # type: ignore[return-value]


def as_decoded(text: str) -> str:
    """What the library's decoder makes of what the page spells out: a character for each lone byte, or for several."""
    seen = re.sub(r"\\u\{([0-9a-f]+)\}", lambda one: chr(int(one[1], 16)), text)
    return re.sub("(\u2039[0-9a-f]{2}\u203a)+", "\ufffd", seen)


def test_the_windows_are_drawn_evenly_and_each_reflection_is_marked(made: Made) -> None:
    found, expected = Windows(made.page), shown_windows(made)
    numbers = [int(one) for one in re.findall(r"<h3>window (\d+):", made.page)]
    assert numbers == list(expected) and len(numbers) == SHOWN_WINDOWS and found.other_marks == 0
    for window, texts in zip(found.windows, expected.values(), strict=True):
        assert len(window) == 3, "one mark"
        shown = [as_decoded(window[0].removeprefix("\n")), *map(as_decoded, window[1:])]
        assert shown == [re.sub("\ufffd+", "\ufffd", text) for text in texts]
    assert "<script" not in made.page and 'class="x"' not in made.page


def test_the_numbers_are_those_of_columns_and_stream(made: Made) -> None:
    sizes = np.load(made.stream.path("reflection_lengths.npy"))
    sizes = sizes[sizes > 0]
    text = re.sub(r"<[^>]*>", "|", made.page.split("</style>")[1])
    said = made.stream.statistics
    for cells in (
        ["all", "90", "100.00%"],
        ["in the first person", "57", "63.33%"],
        ["status failed", "30", "33.33%"],
        ["parse &amp; more", "29"],
        ["generated_tokens", "12,345"],
        ["Q&lt;7&gt;", "20", "11", "12"],
        ["with a reflection", f"{len(sizes):,}", f"{len(sizes) / len(made.small.windows):.2%}"],
        ["reflections, 1p", f"{sizes.sum():,}", f"{sizes.sum() / said['tokens']:.2%}"],
        ["documents", f"{said['document_tokens']:,}", f"{said['document_tokens'] / said['tokens']:.2%}"],
        *([fact, f"{count:,}"] for fact, count in said["canaries"].items()),
        *([f"without one: {reason}", f"{count:,}"] for reason, count in said["without_reflection"].items()),
        ["1", "", "", f"{(sizes == 1).sum():,}"],
        [str(BUDGET), "", "", f"{(sizes == BUDGET).sum():,}"],
    ):
        assert f"|{'||'.join(cells)}|" in text, cells
    cut = [np.quantile(sizes, share, method="inverted_cdf") for share in (0, 0.1, 0.5, 0.9, 1)]
    assert f"|{'||'.join(str(int(one)) for one in cut)}|" in text


def test_a_run_without_a_stream_and_a_stream_without_reflections_have_a_page(made: Made) -> None:
    alone = reflections_page("preflections", made.columns)
    assert "The run preflections makes no stream" in alone and "<pre>" not in alone
    none = made.small.spliced(made.columns, "bare", voice="3p", run=RUN, canaries="drop")
    assert f"masked</td><td>{none.statistics['masked_windows']:,}<" in reflections_page(
        RUN, made.columns, none, made.tokenizer
    )


# where the reflections are on the screen, found by their texts: the ranges of characters in each window
_RECTS = """
([...document.querySelectorAll("pre")].map((pre, at) => {
  const [before, inside] = %s[at], range = document.createRange(), walker = document.createTreeWalker(pre, 4);
  let seen = 0, started = false;
  for (let node; (node = walker.nextNode());) {
    const end = seen + node.length;
    if (!started && before < end) { range.setStart(node, before - seen); started = true; }
    if (started && before + inside <= end) { range.setEnd(node, before + inside - seen); break; }
    seen = end;
  }
  const rects = [...range.getClientRects()];
  return rects.map(r => [r.left + scrollX, r.top + scrollY, r.right + scrollX, r.bottom + scrollY]);
}))
"""
_MARKED = (0xFB, 0xE3, 0xA0)


def utf16(text: str) -> int:
    """The length of a text as a browser counts it."""
    return len(text.encode("utf-16-le")) // 2


def shares_of_colour(shot: bytes, windows: list[list[list[float]]]) -> tuple[float, int]:
    """Return the least share of the mark's colour in a reflection, and the pixels of it elsewhere."""
    pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))
    coloured = (pixels == _MARKED).all(axis=2)
    inside, least = np.zeros_like(coloured), 1.0
    for rects in windows:
        own = np.zeros_like(coloured)
        for left, top, right, bottom in rects:
            own[int(top) : int(np.ceil(bottom)) + 1, int(left) : int(np.ceil(right)) + 1] = True
        least = min(least, float(coloured[own].mean()))
        inside |= own
    return least, int((coloured & ~inside).sum())


@pytest.mark.sensitive
def test_a_browser_colours_every_reflection_and_nothing_else(made: Made, tmp_path: Path) -> None:
    windows = Windows(made.page).windows
    texts = [[utf16(window[0].removeprefix("\n")), utf16(window[1])] for window in windows]
    pages = {
        "page": made.page,
        "unmarked": re.sub("<mark>(.*?)</mark>", r"<b>\1</b>", made.page, count=1, flags=re.DOTALL),
        "too much": made.page.replace("<mark>", "W <mark>").replace("W <mark>", "<mark>W </mark><mark>", 1),
    }
    found = {}
    with browser_page(tmp_path) as page:
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
        screen = {"width": 900, "height": 6_000, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", **screen)  # no bar to scroll, which would move the text
        for name, content in pages.items():
            (tmp_path / f"{name}.html").write_text(content, encoding="utf-8")
            page.open(tmp_path / f"{name}.html")
            assert page.evaluate("decodeURI(location.pathname)").endswith(f"{name}.html")
            rects = page.evaluate(_RECTS % texts)
            found[name] = shares_of_colour(page.screenshot(), rects)
            assert page.evaluate("document.title") == "Reflections" and page.complaints() == []
            assert {url.split(":")[0] for url in page.requested()} <= {"file", "about"}
    assert found["page"][0] > 0.5 and found["page"][1] == 0, found
    assert found["unmarked"][0] == 0 and found["too much"][1] > 0, found
