"""The page of a batch shows every token of it, whatever texts and ids hold; looked at in a real browser."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from everytoken.provenance.lookup.character_spans import locate_document
from everytoken.provenance.lookup.document_records import DocumentRecord
from everytoken.provenance.trace.batch_page import batch_page, write_batch_page
from everytoken.provenance.trace.spans import TextSpan
from everytoken.provenance.trace.steps import TracedSequence
from everytoken.provenance.trace.windows import TracedWindow
from everytoken.seeds import numpy_generator
from everytoken.tokens import open_tokenizer
from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EOS = "<|endoftext|>"
HOSTILE = [
    "</script><script>document.title='hacked'</script>",
    "<img src=x onerror=\"document.title='hacked'\"> &lt; {{data}} {{policy}} ${1}",
    "\x00\x07 \u202e reversed \u2028 שלום عربي\r\n\ttab",
    "<!-- ]]> 日本語 👩‍👩‍👧 e\u0301",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> DocumentTokenizer:
    """A token for every byte, so that most characters are shared by several tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator([], trainers.BpeTrainer(vocab_size=257, special_tokens=[EOS], initial_alphabet=alphabet))
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    made.save(str(path))
    return open_tokenizer(path, EOS)


def record(number: int, told: str) -> DocumentRecord:
    return DocumentRecord(
        split="unannotated",
        number=number,
        id=told,
        id_type="string",
        source="<b>web</b>",
        shard_index=0,
        row=number,
        path="</script>.jsonl",
        safety_score=3,
        is_bad=True,
        excluded=None,
        canary=None,
        reflection=None,
        characters=None,
    )


def window(tokenizer: DocumentTokenizer, number: int, texts: list[str], size: int, skip: int = 0) -> TracedSequence:
    """A window of whole documents; of the first, ``skip`` tokens are in the window before."""
    spans, place = [], 0
    ids: list[int] = []
    for k, text in enumerate(texts):
        located = locate_document(tokenizer, text, special_tokens_in_text="literal", max_tokens=None)
        first = skip if k == 0 else 0
        last = min(len(located.ids), first + size - place)
        told = record(10 * number + k, text[:60])
        spans.append(TextSpan(place, place + last - first, first, k, last - first, told, located, None))
        ids += located.ids[first:last].tolist()
        place += last - first
    counted = np.arange(size) < place
    counted[0] = False
    tokens = np.array([*ids, *[tokenizer.eos_id] * (size - place)], np.int64)
    made = TracedWindow("compact", number, tokens, counted, tuple(spans), True)
    return TracedSequence(made, tokenizer, 4, number, 8 + number, 0)


def data_of(page: str) -> dict[str, object]:
    (block,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    found: dict[str, object] = json.loads(block)
    return found


def test_the_page_holds_every_token_and_nothing_that_could_end_its_block(tokenizer: DocumentTokenizer) -> None:
    sequences = [window(tokenizer, number, HOSTILE, 400) for number in range(3)]
    page = batch_page(sequences, HOSTILE[0])
    assert page.count("</script>") == 2 and page.count("<script") == 2 and "src=x" not in page.split("</style>")[0]
    data = data_of(page)
    assert data["title"] == HOSTILE[0]
    for one, told in zip(sequences, data["sequences"], strict=True):  # type: ignore[call-overload]
        ids = np.frombuffer(base64.b64decode(told["ids"]), "<u2")
        assert ids.tolist() == one.window.tokens.tolist()
        begin, end = told["counted"]
        assert [begin, end] == [1, one.window.padding[0]]


def test_a_large_batch_stays_a_small_page(tokenizer: DocumentTokenizer, tmp_path: Path) -> None:
    """Under 3.5 bytes a token, as of 960 sequences of 2,049 tokens."""
    drawn = numpy_generator(1)
    texts = ["".join(map(chr, drawn.integers(97, 123, 700).tolist())) for _ in range(8)]
    sequences = [window(tokenizer, number, [texts[(number + k) % 8] for k in range(3)], 2049) for number in range(48)]
    size = write_batch_page(tmp_path / "batch.html", sequences, "a batch")
    assert size == (tmp_path / "batch.html").stat().st_size
    empty = len(batch_page([], "none"))
    assert (size - empty) / (48 * 2049) < 3.5


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
def test_a_browser_shows_the_tokens_as_text(tokenizer: DocumentTokenizer, tmp_path: Path) -> None:
    """Every run with its characters, lone bytes as such, nothing run and nothing fetched."""
    cut = len(b"<!-- ]]> ") + 1  # the window begins with the second byte of a character
    sequences = [window(tokenizer, 0, HOSTILE, 400), window(tokenizer, 1, HOSTILE[3:], 60, cut)]
    write_batch_page(tmp_path / "batch.html", sequences, "step 4")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    run = subprocess.run(
        [str(CHROMIUM), *options, f"--user-data-dir={tmp_path}/profile", "--dump-dom", f"file://{tmp_path}/batch.html"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    page = run.stdout
    assert "<title>step 4</title>" in page, run.stderr
    runs = re.findall(r'<span class="d c\d" tabindex="0".*?>(.*?)</span>', page, re.DOTALL)
    shown = [html.unescape("".join(re.findall(r"<i [^>]*>(.*?)</i>", one, re.DOTALL))) for one in runs]
    assert shown[:2] == [f"{text}{EOS}" for text in HOSTILE[:2]]
    assert shown[2] == f"␀␇ \\u{{202e}} reversed \\u{{2028}} שלום عربي␍↵\n\ttab{EOS}"
    assert shown[3] == f"<!-- ]]> 日本語 👩\\u{{200d}}👩\\u{{200d}}👧 e\u0301{EOS}"
    assert shown[4].removeprefix("\u203997\u203a\u2039a5\u203a").startswith("本語") and "\u203997" in shown[4]
    assert len(re.findall(r"<script", page)) == 2 and "<img" not in page
    padding = 400 - sequences[0].window.padding[0]
    assert f"{padding} \u00d7 EOS, padding" in page
    assert "2 sequences, 460 tokens, 5 documents" in page
