"""Documents that hold n-grams of evaluation files are found exactly, with their place; nothing else is."""

from __future__ import annotations

import hashlib
import json
import string
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.decontamination import word_blocks, words
from everytoken.corpus.decontamination.contamination import count_documents, judge_part
from everytoken.corpus.decontamination.evaluation_files import Decontamination, EvaluationFile, read_examples
from everytoken.corpus.decontamination.evaluation_index import index_evaluation, index_nothing
from everytoken.corpus.decontamination.matches import find_matches
from everytoken.corpus.decontamination.report import contamination_report
from everytoken.corpus.dedup.duplicates import DedupRules, find_duplicates
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.reading.rows import ReadingLimits
from everytoken.corpus.selection.decisions import DECISIONS, Selection, select
from everytoken.corpus.selection.selected_parts import check_selection_conservation, dropped_part, select_part
from everytoken.seeds import python_random
from everytoken.shards import Artifact, Engine, Inline, Shards, WorkerProcesses, plan_artifact
from tests.corpus.selection.stored_documents import Given, kept, made, stored
from tests.shards.folders import content

LIMITS = ReadingLimits(max_row_bytes=1 << 20, zstd_window_log_max=27)
QUESTION = (
    "A merchant sells three baskets of apples on Monday and twice as many on Tuesday, how many baskets were sold?"
)


def evaluation_file(path: Path, **changed: Any) -> EvaluationFile:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "0" * 64
    plain = {"path": str(path), "sha256": sha256, "format": None, "records": None, "fields": ["question"]}
    return EvaluationFile.model_validate({**plain, **changed})


def questions(path: Path, texts: Sequence[str]) -> EvaluationFile:
    path.write_text("".join(json.dumps({"question": text}) + "\n" for text in texts))
    return evaluation_file(path)


def rules(files: Mapping[str, EvaluationFile], ngram: int = 13, **changed: Any) -> Decontamination:
    plain = {"max_documents": None, "remove": True, "min_matches": 1, "min_share": 0.0}
    return Decontamination.model_validate({"ngram": ngram, "files": dict(files), **plain, **changed})


class Found(NamedTuple):
    evaluation: Artifact
    duplicates: Artifact
    counts: Artifact
    contamination: Shards

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for part in self.contamination for row in part.table().to_pylist()]


def find(
    root: Path,
    documents: Shards,
    given_rules: Decontamination,
    finding: Engine = Inline(),  # noqa: B008 - immutable
    judging: Engine = Inline(),  # noqa: B008
) -> Found:
    plain = {"kinds": {name: file.kind for name, file in given_rules.files.items()}, "limits": LIMITS}
    planned = plan_artifact(
        index_evaluation, ngram=given_rules.ngram, files=given_rules.files, max_ngrams=1 << 20, **plain
    )
    evaluation = made(root / "evaluation", planned)
    matches = kept(root / "matches", documents.map(find_matches, evaluation=evaluation), finding)
    dedup = DedupRules(exact=True, near=None)
    planned = plan_artifact(find_duplicates, documents=documents, buckets=None, rules=dedup, memory=100 << 20)
    duplicates = made(root / "duplicates", planned)
    inputs = {"duplicates": duplicates, "evaluation": evaluation}
    counts = made(
        root / "counts",
        plan_artifact(count_documents, matches=matches, max_documents=given_rules.max_documents, **inputs),
    )
    judged = matches.map(judge_part, counts=counts, rules=given_rules, **inputs)
    return Found(evaluation, duplicates, counts, kept(root / "contamination", judged, judging))


def word_list(text: str) -> list[str]:
    """The definition, one character after the other."""
    folded = ""
    for character in text:
        if character in string.punctuation or unicodedata.category(character).startswith("P"):
            continue
        other = [fold for fold in (character.casefold(), character.lower(), character) if len(fold) == 1]
        folded += other[0]
    return folded.split()


def ngrams_of(text: str, n: int) -> list[tuple[str, ...]]:
    found = word_list(text)
    return [tuple(found[k : k + n]) for k in range(len(found) - n + 1)]


def by_brute_force(
    texts: Sequence[str], examples: Sequence[str], n: int, max_documents: int | None
) -> dict[int, tuple[int, int, int]]:
    """Return of each matching document that repeats no other: matching n-grams, n-grams, example of the first."""
    firsts = {text: row for row, text in reversed(list(enumerate(texts)))}
    chosen = {row: ngrams_of(text, n) for row, text in enumerate(texts) if firsts[text] == row}
    of_example: dict[tuple[str, ...], int] = {}
    for number, example in enumerate(examples):
        for ngram in ngrams_of(example, n):
            of_example.setdefault(ngram, number)
    documents = Counter(ngram for ngrams in chosen.values() for ngram in set(ngrams) & set(of_example))
    counted = {ngram for ngram in of_example if max_documents is None or documents[ngram] <= max_documents}
    result = {}
    for row, ngrams in chosen.items():
        if matching := [ngram for ngram in ngrams if ngram in counted]:
            result[row] = (len(matching), len(ngrams), of_example[matching[0]])
    return result


WORD = st.sampled_from(
    ["a", "B", "b!", "c", "«D»", "d", "é", "É.", "longer-than-eight", "...", "x" * 70, "\u00a0", "ß"]
)
TEXT = st.lists(WORD, max_size=14).map(" ".join)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(TEXT, min_size=1, max_size=9),
    st.lists(TEXT, min_size=1, max_size=6),
    st.integers(2, 5),
    st.sampled_from([None, 1, 2]),
    st.sampled_from([1 << 18, 30]),
    st.booleans(),
)
def test_what_is_found_is_what_a_set_of_ngrams_finds(
    texts: list[str], examples: list[str], n: int, max_documents: int | None, piece: int, collide: bool
) -> None:
    """Also when a text is looked at in pieces, and when hashes collide all the time."""
    if not any(ngrams_of(example, n) for example in examples):
        return
    hashing = word_blocks._ngram_hashes
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(words, "_PIECE_BYTES", piece)
        patch.setattr("os.fsync", lambda file: None)  # a third of the time
        if collide:
            patch.setattr(word_blocks, "_ngram_hashes", lambda *given: hashing(*given) & np.uint64(0x3 << 60))
        root = Path(folder)
        documents = stored(root / "documents", [Given("s", texts[:4]), Given("s", texts[4:], 1)])
        given_rules = rules({"e": questions(root / "e.jsonl", examples)}, n, max_documents=max_documents)
        rows = find(root, documents, given_rules).rows
    in_parts = {4 * row["shard_index"] + row["document"]: row for row in rows}
    assert len(in_parts) == len(rows)
    shown = {place: (row["matching_ngrams"], row["ngrams"], row["example"]) for place, row in sorted(in_parts.items())}
    assert shown == by_brute_force(texts, examples, n, max_documents)
    for place, row in in_parts.items():
        span = texts[place][row["start"] : row["end"]]
        assert tuple(word_list(span)) in ngrams_of(examples[row["example"]], n)
        assert not set(span[0] + span[-1]) & set(" .!«»")


def test_a_planted_example_is_found_with_its_span_in_other_case_and_punctuation(tmp_path: Path) -> None:
    planted = QUESTION.upper().replace(",", " —").replace(" ", "\n  ").replace("?", "!?”")
    before = "Übung №1: “Äpfel” — "
    texts = ["Nothing of the kind. " * 20, before + planted + " The end.", QUESTION[: len(QUESTION) // 2]]
    documents = stored(tmp_path / "documents", [Given("web", texts)])
    files = {"gsm": questions(tmp_path / "gsm.jsonl", ["Another question that has enough words, " * 3, QUESTION])}
    (row,) = find(tmp_path, documents, rules(files)).rows
    assert texts[1][row["start"] : row["end"]] == "\n  ".join(planted.split()[:14])[: row["end"] - row["start"]]
    assert (row["document"], row["id"], row["shard_index"], row["row"]) == (1, "web-1", 0, 3)
    assert (row["evaluation"], row["example"]) == ("gsm", 1)
    assert row["start"] == len(before)
    assert row["matching_ngrams"] == len(ngrams_of(QUESTION, 13))
    assert row["share"] == row["matching_ngrams"] / row["ngrams"]


def test_a_match_over_a_cut_of_a_long_text_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_PIECE_BYTES", 50)
    filler = "— ünnecessary filler — " * 7
    text = filler + QUESTION + " " + filler + QUESTION + "z" * 300 + " " + QUESTION
    documents = stored(tmp_path / "documents", [Given("s", [text])])
    (row,) = find(tmp_path, documents, rules({"e": questions(tmp_path / "e.jsonl", [QUESTION])})).rows
    assert text[row["start"] : row["end"]] == " ".join(QUESTION.split()[:13]).rstrip(",")
    assert row["ngrams"] == len(ngrams_of(text, 13))
    per_question = len(ngrams_of(QUESTION, 13))
    assert row["matching_ngrams"] == 3 * per_question - 1


def test_contaminated_documents_are_dropped_with_reason_and_example_after_duplicates_and_before_caps(
    tmp_path: Path,
) -> None:
    texts = [QUESTION, "clean text one", QUESTION, "clean text two", QUESTION.lower() + " and more", "beyond the cap"]
    documents = stored(tmp_path / "documents", [Given("web", texts)])
    given_rules = rules({"gsm": questions(tmp_path / "gsm.jsonl", ["too short", QUESTION])})
    found = find(tmp_path, documents, given_rules)
    inputs: dict[str, Any] = {"duplicates": found.duplicates, "contamination": found.contamination}
    caps = {"web": len(texts[1]) + len(texts[3])}
    planned = plan_artifact(select, documents=documents, max_text_bytes=caps, mixture=None, **inputs)
    selection = made(tmp_path / "selection", planned)
    reasons = [DECISIONS[code] for code in Selection(selection).codes]
    assert reasons == ["contaminated", "kept", "duplicate", "kept", "contaminated", "beyond_payload_cap"]
    taken = kept(tmp_path / "taken", documents.map(select_part, selection=selection))
    dropped = kept(tmp_path / "dropped", documents.map(dropped_part, selection=selection, **inputs))
    check_selection_conservation(selection, taken.statistics, dropped.statistics)
    listed = [(row["row"], row["reason"], row["detail"]) for row in dropped.parts[0].table().to_pylist()]
    span = QUESTION.index(" on Tuesday")
    detail = f"evaluation 'gsm', example 1, from character 0 to {span}; 8 of 8 n-grams match"
    assert listed[0] == (1, "contaminated", detail)
    assert listed[1] == (5, "duplicate", "of source 'web', shard 0, row 1")
    assert listed[2] == (9, "contaminated", detail.replace("8 of 8", "8 of 10"))
    assert listed[3] == (11, "beyond_payload_cap", None)

    of_others = {**inputs, "contamination": Shards(())}
    with pytest.raises(SelectionError, match="the contamination is of 0 parts, and part_00000 is none of them"):
        select(tmp_path, documents=documents, max_text_bytes=caps, mixture=None, **of_others)

    report = contamination_report(found.contamination, found.counts)
    assert report["by_evaluation"]["gsm"] == {
        **{"examples": 2, "short_examples": 1, "ngrams": 8, "examples_found": 1, "share": 1.0},
        "documents": {"matching": 2, "contaminated": 2},
    }
    assert report["by_source"] == {"web": {"matching": 2, "contaminated": 2}}
    assert [row["row"] for row in report["worst"]] == [1, 9]


def test_frequent_ngrams_are_ignored_by_the_documents_that_stay(tmp_path: Path) -> None:
    """Copies count as one document: an example that is copied often is no phrase of the language."""
    licence = "permission is hereby granted free of charge to any person obtaining a copy of this software"
    texts = [f"{number} {licence} {number}" for number in range(5)] + [QUESTION] * 9
    documents = stored(tmp_path / "documents", [Given("a", texts[:3]), Given("b", texts[3:])])
    files = {
        "code": questions(tmp_path / "code.jsonl", [licence]),
        "gsm": questions(tmp_path / "gsm.jsonl", [QUESTION]),
    }
    found = find(tmp_path, documents, rules(files, max_documents=4))
    assert [row["row"] for row in found.rows] == [5]
    assert found.counts.statistics["ignored"] == len(ngrams_of(licence, 13))
    shares = {name: file["share"] for name, file in found.counts.statistics["files"].items()}
    assert shares == {"code": 0.0, "gsm": 1.0}
    assert len(find(tmp_path, documents, rules(files, max_documents=5)).rows) == 6


@pytest.mark.parametrize(
    ("changed", "contaminated"),
    [({}, "1111"), ({"min_matches": 9}, "0000"), ({"min_matches": 2}, "1011"), ({"min_share": 0.5}, "1010")],
)
def test_few_matches_need_not_contaminate(tmp_path: Path, changed: dict[str, Any], contaminated: str) -> None:
    filler = " ".join(f"w{number}" for number in range(100))
    start = " ".join(QUESTION.split()[:13])
    texts = [QUESTION, f"{filler} {start}", f"{QUESTION} again", f"{filler} {QUESTION}"]
    documents = stored(tmp_path / "documents", [Given("s", texts)])
    found = find(tmp_path, documents, rules({"e": questions(tmp_path / "e.jsonl", [QUESTION])}, **changed))
    assert "".join(str(int(row["contaminated"])) for row in found.rows) == contaminated


def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    random = python_random(3)
    vocabulary = [f"{a}{b}" for a in "bdfg" for b in ("a", "é")]
    texts = [" ".join(random.choices(vocabulary, k=random.randint(0, 400))) for _ in range(90)]
    examples = [" ".join(text.split()[3:60]) for text in texts[::3]] * 3 + texts[1::7]
    parts = [Given("ab"[index % 2], texts[start : start + 15], index) for index, start in enumerate(range(0, 90, 15))]
    documents = stored(tmp_path / "documents", parts)
    files = {name: questions(tmp_path / f"{name}.jsonl", some) for name, some in (("x", examples), ("y", examples[5:]))}
    outcomes = []
    for run, engines in enumerate([(Inline(), Inline()), (WorkerProcesses(5), WorkerProcesses(2))]):
        root = tmp_path / str(run)
        found = find(root, documents, rules(files, 4, max_documents=9), *engines)
        assert found.counts.statistics["ignored"]
        outcomes.append({name: data for name, data in content(root).items() if not name.endswith("ledger.json")})
        assert found.contamination.rows > 20
    assert outcomes[0] == outcomes[1]


def test_an_index_is_the_same_for_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = python_random(4)
    given_file = questions(tmp_path / "e.jsonl", [" ".join(random.choices("abcdefgh", k=300)) for _ in range(9)])
    plain = {"ngram": 3, "files": {"e": given_file}, "kinds": {"e": "jsonl"}, "limits": LIMITS}
    for piece in (1, 300, 1 << 30):
        monkeypatch.setattr(words, "_PIECE_BYTES", piece)
        made(tmp_path / str(piece), plan_artifact(index_evaluation, max_ngrams=9 * 298, **plain))
    small, some, large = ({**content(tmp_path / str(piece)), "ledger.json": b""} for piece in (1, 300, 1 << 30))
    assert small == some == large
    hashes = np.load(tmp_path / "1" / "hashes.npy")
    assert len(hashes) > 450, "nearly all of the 512 there can be"
    assert (hashes[1:] > hashes[:-1]).all()


def test_more_ngrams_than_are_allowed_are_refused_with_both_numbers(tmp_path: Path) -> None:
    files = {name: questions(tmp_path / f"{name}.jsonl", [QUESTION] * 600) for name in ("a", "b")}
    inputs = {"ngram": 13, "files": files, "kinds": dict.fromkeys(files, "jsonl"), "limits": LIMITS}
    with pytest.raises(SelectionError, match=r"have 9,600 n-grams, ingestion.max_evaluation_ngrams allows 9,599\. Rai"):
        index_evaluation(tmp_path, max_ngrams=9_599, **inputs)
    assert index_evaluation(tmp_path, max_ngrams=9_600, **inputs).statistics["distinct"] == 8


def normalised(text: str) -> list[str]:
    whole = b"".join(words.normalised([text.encode()]))
    return whole.decode().removesuffix(" . ").split(" ")


def test_words_are_those_of_the_definition_for_every_character() -> None:
    beyond = range(words._BEYOND, sys.maxunicode + 1)
    assert not any(words._map(point) != point for point in beyond), "the table leaves these as they are"
    mapped = [words._map(point) for point in range(words._BEYOND)]
    assert all(words._map(point) == point for point in mapped if point != words._DELETED), "twice is once"
    points = [chr(point) for point in range(0x3000) if not 0xD800 <= point < 0xE000]
    text = "".join(f"{character}x y{character} " for character in points)
    assert normalised(text) == word_list(text)
    sparse = "".join(f"{'latin ' * 9}{character}x y{character} " for character in points[128:])
    assert normalised(sparse) == word_list(sparse)
    ascii_text = "".join(f"{character}x y{character} " for character in map(chr, range(128)))
    table = str.maketrans(string.ascii_uppercase, string.ascii_lowercase, string.punctuation)
    assert normalised(ascii_text) == ascii_text.translate(table).split()


RECORDS = [{"question": "one two", "choices": ["three", "four five"], "answer": 3}, {"question": None, "choices": []}]


def test_every_format_gives_the_same_examples(tmp_path: Path) -> None:
    import csv
    import gzip

    table = [{"question": "What, is\n“it”?", "answer": "it"}, {"question": "Why", "answer": "x y"}]
    lines = "".join(json.dumps(row) + "\n" for row in table)
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.json").write_text(json.dumps({"data": table}))
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "a.parquet")
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        with (tmp_path / name).open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, ["answer", "question"], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(table)
    expected = [["What, is\n“it”?", "What, is\n“it”? it"], ["Why", "Why x y"]]
    for name in ("a.jsonl", "a.jsonl.gz", "a.json", "a.parquet", "a.csv", "a.tsv"):
        records = "data" if name == "a.json" else None
        given_file = evaluation_file(tmp_path / name, records=records, fields=["question", ["question", "answer"]])
        assert [example.texts for example in read_examples("a", given_file, LIMITS)] == expected, name


def test_nested_fields_give_every_text_and_null_gives_none(tmp_path: Path) -> None:
    path = tmp_path / "nested.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in RECORDS))
    given_file = evaluation_file(path, fields=["question", "choices", ["question", "choices"]])
    first, second = (example.texts for example in read_examples("n", given_file, LIMITS))
    assert first == ["one two", "three", "four five", "one two three four five"]
    assert second == [""]


def test_a_number_is_part_of_a_joined_text(tmp_path: Path) -> None:
    path = tmp_path / "sums.jsonl"
    path.write_text('{"question": "six times seven is", "answer": 42}\n')
    given_file = evaluation_file(path, fields=["answer", ["question", "answer"]])
    (example,) = read_examples("s", given_file, LIMITS)
    assert example.texts == ["42", "six times seven is 42"]


def test_paragraphs_of_plain_text_are_examples(tmp_path: Path) -> None:
    path = tmp_path / "plain.txt"
    path.write_text("one\ntwo\n\n\n  \nthree\r\n\r\nfour")
    texts = [example.texts for example in read_examples("p", evaluation_file(path, fields=[]), LIMITS)]
    assert texts == [["one\ntwo\n"], ["three\r\n"], ["four"]]


def bad(tmp_path: Path, name: str, data: bytes, message: str, **changed: Any) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SelectionError, match=message) as raised:
        list(read_examples("mmlu", evaluation_file(path, **changed), LIMITS))
    assert str(path) in str(raised.value)
    assert "'mmlu'" in str(raised.value)


def test_errors_name_the_file_the_row_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        SelectionError, match=r"missing.jsonl: it cannot be read .*correct decontamination.files.e.path"
    ):
        list(read_examples("e", evaluation_file(tmp_path / "missing.jsonl"), LIMITS))
    bad(tmp_path, "a.jsonl", b'{"question": "x"}\n', "SHA-256 is .*, expected 00.*files.mmlu.sha256", sha256="0" * 64)
    line = b'{"question": "x"}\n'
    bad(tmp_path, "a.jsonl", line + b'{"q": 1}\n', r"row 1: it has no field 'question', found \['q'\]. Set fields")
    bad(tmp_path, "b.jsonl", line + b"{\n", "row 1 at byte 18: not_json.*Repair the file")
    bad(tmp_path, "c.csv", b"question,b\n1,2\n3\n", "row 1 at byte 15: it has 1 columns, the header 2")
    bad(tmp_path, "d.csv", b'question\n"x', "row 0, which begins at byte 9, .*unexpected end of data")
    bad(tmp_path, "e.csv", b"question\n\xff\n", "is not valid UTF-8")
    bad(tmp_path, "f.csv", b"a,a\n", "the header has more than one column of the name 'a'")
    bad(tmp_path, "g.jsonl.gz", b"no archive", "gz", fields=["question"])
    pq.write_table(pa.table({"other": ["x"]}), tmp_path / "h.parquet")
    bad(tmp_path, "h.parquet", (tmp_path / "h.parquet").read_bytes(), r"no column 'question'.*Correct fields")
    big = ReadingLimits(max_row_bytes=10, zstd_window_log_max=27)
    (tmp_path / "i.txt").write_text("a long paragraph\n" * 3)
    with pytest.raises(SelectionError, match="a paragraph has over 10 characters"):
        list(read_examples("i", evaluation_file(tmp_path / "i.txt", fields=[]), big))


def test_a_file_of_which_nothing_can_be_found_is_an_error(tmp_path: Path) -> None:
    short = questions(tmp_path / "short.jsonl", ["only a few words", "and a few more"])
    with pytest.raises(SelectionError, match=r"'short': none of its 2 examples has a text of 13 words"):
        index_evaluation(
            tmp_path, ngram=13, files={"short": short}, kinds={"short": "jsonl"}, limits=LIMITS, max_ngrams=9
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"path": "x.pdf"}, "the format of x.pdf is not known by its name"),
        ({"path": "x.parquet.gz"}, "parquet is compressed inside"),
        ({"records": "data"}, "records is 'data', but x.jsonl is read as jsonl"),
        ({"fields": []}, "name those that hold the texts"),
        ({"format": "txt"}, r"Set it to \[\]"),
        ({"sha256": "abc"}, "should match pattern"),
    ],
)
def test_parameters_that_cannot_be_meant_are_refused(changed: dict[str, Any], message: str) -> None:
    plain = {"path": "x.jsonl", "sha256": "0" * 64, "format": None, "records": None, "fields": ["question"]}
    with pytest.raises(ValidationError, match=message):
        EvaluationFile.model_validate({**plain, **changed})


def test_without_files_nothing_is_written(tmp_path: Path) -> None:
    planned = plan_artifact(index_nothing, ngram=None, files={}, kinds={})
    evaluation = made(tmp_path / "evaluation", planned)
    nothing = {"matches": None, "duplicates": None, "max_documents": None}
    counts = made(tmp_path / "counts", plan_artifact(count_documents, evaluation=evaluation, **nothing))
    none = Shards.from_values([], [])
    matches = kept(tmp_path / "matches", none.map(find_matches, evaluation=evaluation))
    inputs = {"counts": counts, "duplicates": None, "evaluation": evaluation, "rules": None}
    contamination = kept(tmp_path / "contamination", matches.map(judge_part, **inputs))
    assert contamination_report(contamination, counts) == {}
    assert {Path(name).name for name in content(tmp_path)} <= {"ledger.json", ".evaluation.lock", ".counts.lock"}
