"""The picture of a batch has the text of every document in it, whatever that text is; and README's is one."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.lookup.document_records import DocumentRecords
from everytoken.provenance.trace.batch_picture import batch_picture, write_batch_picture
from everytoken.provenance.trace.steps import TracedSequence, trace_step
from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer
from tests.provenance.trace.test_batch_page import HOSTILE, tokenizer, window  # noqa: F401  # a fixture
from tests.provenance.traced_job import STREAMS, make

ROOT = Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(picture: str) -> tuple[list[str], str]:
    """Return the colours of documents in their order, and all text of windows."""
    root = ElementTree.fromstring(picture)
    assert {one.tag for one in root.iter()} == {f"{SVG}{name}" for name in ("svg", "title", "style", "rect", "text")}
    colours = [one.get("class", "") for one in root.iter(f"{SVG}rect") if one.get("class") != "ground"]
    texts = [one.text or "" for one in root.iter(f"{SVG}text") if one.get("class") is None]
    return list(dict.fromkeys(colours)), "".join(texts)


def test_every_document_has_a_colour_and_its_text(tokenizer: DocumentTokenizer, tmp_path: Path) -> None:  # noqa: F811
    told = ["The first.\nIts second line.", "Of another <b>document</b> & more", "日本語 e\u0301"]
    size = write_batch_picture(tmp_path / "batch.svg", [window(tokenizer, 0, told, 130)], "step 4")
    picture = (tmp_path / "batch.svg").read_text(encoding="utf-8")
    assert size == len(picture.encode()) and picture == batch_picture([window(tokenizer, 0, told, 130)], "step 4")
    colours, text = drawn(picture)
    assert colours == ["d0", "d1", "d2"]
    for one in told:
        assert f"{one}■".replace("\n", "↵") in text
    assert "<b>web</b>/0/1, id Of another <b>document</b> & more, unannotated document 1" in "".join(
        ElementTree.fromstring(picture).itertext()
    )


def test_no_text_makes_another_element_or_a_bad_file(tokenizer: DocumentTokenizer) -> None:  # noqa: F811
    cut = len(b"<!-- ]]> ") + 1  # the window begins with the second byte of a character
    sequences = [window(tokenizer, 0, [*HOSTILE, "\ufffe\uffff\x0b"], 400), window(tokenizer, 1, HOSTILE[3:], 60, cut)]
    colours, text = drawn(batch_picture(sequences, HOSTILE[0]))
    assert len(colours) == 6 and HOSTILE[0] in text


def test_a_dark_page_has_colours_of_its_own(tokenizer: DocumentTokenizer) -> None:  # noqa: F811
    picture = batch_picture([window(tokenizer, 0, ["a", "b"], 9)], "step 4")
    light, dark = picture.partition("</style>")[0].split("@media (prefers-color-scheme:dark)")
    for part in (light, dark):
        (ground,), (ink,) = (re.findall(rf"{name}{{fill:(#......)}}", part) for name in (r"\.ground", r"(?<!\.)text"))
        fills = re.findall(r"\.d\d{fill:(#......)}", part)
        assert len(fills) == 6
        assert min(contrast(ink, other) for other in (ground, *fills)) > 7


def contrast(one: str, other: str) -> float:
    """Return the ratio of contrast of two colours, by WCAG 2."""

    def light(colour: str) -> float:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_batch_of_a_run_is_drawn(tmp_path: Path) -> None:
    made = make(tmp_path / "job")
    sequences = trace_step(made.run(STREAMS, 7, 3), DocumentRecords(made.places), 2)
    picture = batch_picture(sequences, "step 2 of a small run")
    documents = {(span.record.split, span.record.number) for one in sequences for span in one.window.spans}
    colours, text = drawn(picture)
    assert len(sequences) == 3 and len(colours) == min(6, len(documents)) and "café" in text
    told = "".join(ElementTree.fromstring(picture).itertext())
    for one in sequences:
        assert f"sequence {one.sequence}: sample {one.sample:,}, window" in told
    for split, number in documents:
        assert f"{split} document {number:,}" in told or split == "canary"


def test_a_text_that_is_gone_is_an_error(tokenizer: DocumentTokenizer) -> None:  # noqa: F811
    gone = TracedSequence(window(tokenizer, 0, ["a"], 9).window, None)
    with pytest.raises(ProvenanceError, match="its text is not known"):
        batch_picture([gone], "step 4")


def test_the_picture_of_the_first_page_is_small_and_well_formed() -> None:
    picture = ROOT / "docs/traced_batch.svg"
    colours, text = drawn(picture.read_text(encoding="utf-8"))
    assert picture.stat().st_size < 100_000 and len(colours) > 1 and len(text) > 500
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/traced_batch.svg)" in readme and "--svg docs/traced_batch.svg" in readme
