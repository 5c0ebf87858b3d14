"""A sample says what is in somebody's files, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from everytoken.corpus import CorpusError
from everytoken.new_environment.sample import FREQUENT_WORDS, language_of, look_at, sampled_classes

GERMAN = "Der Hafen ist im Winter nicht frei, und die Schiffe liegen auf dem Fluss oder in der Stadt."
ENGLISH = "The harbour is not free in the winter, and the ships lie on the river or in the town."
SCORER = {
    "kind": "embedded",
    "version": "1.9.1",
    "max_chars": 1000,
    "slope": 3.0,
    "thresholds": [-3.5, -2.7, -1.9, -0.9, 0.5],
}


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_folder_of_texts(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"{GERMAN} {number // 2}")
    facts = look_at([tmp_path])
    assert (facts.files, facts.formats, facts.pattern, facts.shape) == (9, {"txt": 9}, "**", None)
    assert (facts.duplicates, dict(facts.languages), facts.bad, facts.is_whole) == (4, {"de": 9}, {}, True)
    assert facts.estimated_characters == sum(facts.lengths) == 9 * (len(GERMAN) + 2)
    assert facts.language == "de"


def test_the_column_with_most_text_is_the_text(tmp_path: Path) -> None:
    rows = [{"nr": number, "titel": "Nachricht", "inhalt": GERMAN} for number in range(3)]
    facts = look_at([lines(tmp_path / "a.jsonl", *rows, "no object")])
    assert (facts.text_column, facts.columns, facts.has_ids) == ("inhalt", ("nr", "titel", "inhalt"), False)
    assert facts.bad == {"not_an_object": 1} and len(facts.lengths) == 3
    facts = look_at([lines(tmp_path / "b.jsonl", {"id": 1, "text": ENGLISH, "long": ENGLISH * 9})])
    assert (facts.text_column, facts.has_ids, facts.pattern) == ("text", True, "b.jsonl")
    with pytest.raises(
        CorpusError, match=r"no column of c\.jsonl has texts of 32 characters or more; it has id, label"
    ):
        look_at([lines(tmp_path / "c.jsonl", {"id": "0001", "label": "good"})])


def test_chats_are_known_by_their_shape(tmp_path: Path) -> None:
    asked, answered = {"role": "user", "content": GERMAN}, {"role": "assistant", "content": "Ja."}
    facts = look_at([lines(tmp_path / "a.jsonl", {"messages": [asked, answered]})])
    assert (facts.shape, facts.lengths) == ("messages", (len(GERMAN) + 4,))
    facts = look_at([lines(tmp_path / "b.jsonl", {"question": ENGLISH, "answer": "Yes."})])
    assert facts.shape == "question_answer"


def test_what_is_too_much_to_read_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"{ENGLISH} {number:05}"} for number in range(1_000)]
    lines(tmp_path / "a.jsonl", *rows)
    whole = look_at([tmp_path])
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    monkeypatch.setattr("everytoken.new_environment.sample.SAMPLE_BYTES", 20_000)
    facts = look_at([tmp_path / "a.jsonl"])
    assert whole.is_whole and not facts.is_whole and len(facts.lengths) < 300
    assert facts.estimated_documents == pytest.approx(1_000, rel=0.3)
    assert facts.estimated_characters == pytest.approx(whole.estimated_characters, rel=0.3)


def test_the_encoding_of_older_western_texts_is_found(tmp_path: Path) -> None:
    text = "Für größere Häfen gilt: die Schiffe müssen über den Fluss und in die Stadt."
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    (tmp_path / "b.txt").write_bytes(b"of ASCII alone, in both")
    facts = look_at([tmp_path])
    assert (facts.encoding, facts.bad) == ("cp1252", {}) and text in facts.some_texts
    (tmp_path / "c.txt").write_text(text, encoding="utf-8")
    with pytest.raises(
        CorpusError, match=r"1 rows are no UTF-8, and others are\. Convert the files that are none: iconv"
    ):
        look_at([tmp_path])


def test_files_that_are_no_source_are_said_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(ENGLISH)
    (tmp_path / "b.txt").write_text(ENGLISH)
    (tmp_path / "LICENSE").write_text(ENGLISH)
    for given, message in (
        ([tmp_path / "none"], r"there is no file or folder .*none\. Correct the path"),
        ([tmp_path, tmp_path / "a.txt"], "Give one folder, or files alone"),
        ([tmp_path], r"LICENSE: the format is not known by its name.*everytoken new NAME .*/\*\.txt"),
    ):
        with pytest.raises(CorpusError, match=message):
            look_at(given)
    assert look_at([tmp_path / "a.txt", tmp_path / "b.txt"]).pattern == "*.txt", "the remedy helps"
    (tmp_path / "c.txt").write_text(ENGLISH)
    with pytest.raises(
        CorpusError, match=r"a source has all of one pattern\. Move the 2 files to a folder of their own"
    ):
        look_at([tmp_path / "a.txt", tmp_path / "b.txt"])


def test_where_no_row_can_be_read_the_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[1]\n[2]\n")
    told = r"can be read \(not_an_object 2\)\. a\.jsonl, row 0: the row holds an array, expected a JSON object"
    with pytest.raises(CorpusError, match=told):
        look_at([tmp_path / "a.jsonl"])


@pytest.mark.parametrize("language", FREQUENT_WORDS)
def test_a_language_is_known_by_its_frequent_words(language: str) -> None:
    assert language_of(FREQUENT_WORDS[language]) == language
    assert language_of("日本語の文章") == language_of("") == "other"


def test_the_scorer_of_base_looks_at_english(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(ENGLISH)
    (tmp_path / "b.txt").write_text("You stupid idiot, you ugly stupid piece of crap and the idiot of the town.")
    classes = sampled_classes(look_at([tmp_path]), SCORER)
    assert sum(classes.values()) == 2 and classes[0] <= 1 and sum(classes[k] for k in (3, 4, 5)) == 1
