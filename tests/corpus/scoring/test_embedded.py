from __future__ import annotations

import random
import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.documents import SCORED_DOCUMENTS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.embedded import EmbeddedScorer, class_probabilities, rate_texts
from everytoken.corpus.scoring.score import score_part
from everytoken.seeds import python_random
from tests.corpus.part_tables import TablePart, collect, documents


def scorer(**changes: Any) -> EmbeddedScorer:
    base = {"kind": "embedded", "version": "1.9.1", "max_chars": 1000, "slope": 3.0}
    return EmbeddedScorer.model_validate({**base, "thresholds": (-3.5, -2.7, -1.9, -0.9, 0.5), **changes})


def some_texts(n: int) -> list[str]:
    generator: random.Random = python_random(7)
    words = ["stupid", "idiot", "hate", "damn", "hello", "weather", "theorem", "you", "film", "ugly", "crap", "tea"]
    return [" ".join(generator.choices(words, k=generator.randint(0, 30))) for _ in range(n)] + ["", "é", "\n"]


def scores_of(texts: list[str], ids: list[str | None], batch_rows: int = 7) -> tuple[list[dict[str, Any]], Any]:
    table, statistics = collect(score_part(TablePart(documents(texts, ids), batch_rows), scorer=scorer(), model=None))
    return table.to_pylist(), statistics


def test_a_score_does_not_depend_on_what_else_is_in_the_batch() -> None:
    texts = some_texts(130)
    alone = np.concatenate([rate_texts([text], scorer()).probabilities for text in texts])
    order = list(range(len(texts)))
    python_random(3).shuffle(order)
    for batch in (1, 8, 64, len(texts)):
        for rows in (list(range(len(texts))), order):
            parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
            p = np.concatenate([rate_texts([texts[row] for row in part], scorer()).probabilities for part in parts])
            assert p.tobytes() == alone[rows].tobytes()
            classes = np.concatenate([class_probabilities(alone[part], scorer()) for part in parts])
            assert classes.tobytes() == class_probabilities(alone, scorer())[rows].tobytes()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0.1, 20))
def test_class_probabilities_are_probabilities_and_rise_with_p(p: list[float], slope: float) -> None:
    made = class_probabilities(np.sort(np.array(p)), scorer(slope=slope))
    assert made.dtype == np.float32
    assert made.shape == (len(p), 6)
    assert (made >= 0).all()
    np.testing.assert_allclose(made.sum(axis=1), 1, rtol=1e-6)
    expected_class = made.astype(np.float64) @ np.arange(6)
    assert (np.diff(expected_class) >= -1e-5).all()


def test_the_thresholds_are_where_p_of_at_least_k_is_one_half() -> None:
    for k, threshold in enumerate(scorer().thresholds, start=1):
        p = np.array([1 / (1 + np.exp(-threshold))])
        assert class_probabilities(p, scorer())[0, k:].sum() == pytest.approx(0.5)
    assert class_probabilities(np.array([0.0, 1.0]), scorer()).argmax(axis=1).tolist() == [0, 5]


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
def test_rows_of_one_id_share_the_score_of_the_first_and_null_ids_never_do(batch_rows: int) -> None:
    texts = ["you stupid idiot", "hello weather", "hello weather", "stupid crap", "damn", "tea"]
    ids = ["a", None, "a", None, "a", "b"]
    rows, statistics = scores_of(texts, ids, batch_rows)
    assert [row["text"] for row in rows] == texts
    assert rows[0]["safety_probs"] == rows[2]["safety_probs"] == rows[4]["safety_probs"]
    assert rows[1]["safety_probs"] != rows[3]["safety_probs"]
    assert (statistics["rows"], statistics["scored"], statistics["null_ids"]) == (6, 4, 2)
    by_class = statistics["by_source"]["s"]
    assert sum(by_class["rows_by_class"].values()) == 6
    assert sum(by_class["distinct_by_class"].values()) == 4
    assert rows[0]["safety_score"] == int(np.argmax(rows[0]["safety_probs"]))


@pytest.mark.parametrize("batch_rows", [1, 2, 100])
def test_rows_that_get_the_score_of_another_text_by_their_id_are_counted(batch_rows: int) -> None:
    texts = ["tea", "stupid idiot", "tea", "hello", "weather", "hello", "x", "y"]
    ids: list[str | None] = ["a", "a", "a", "", "", "", None, None]
    rows, statistics = scores_of(texts, ids, batch_rows)
    assert rows[0]["safety_probs"] == rows[1]["safety_probs"]
    assert rows[3]["safety_probs"] == rows[4]["safety_probs"]
    assert (statistics["scored"], statistics["same_id_other_text"]) == (4, 2)


def test_output_and_statistics_do_not_depend_on_batches() -> None:
    texts = some_texts(40)
    ids: list[str | None] = [None if row % 5 == 0 else string.ascii_lowercase[row % 7] for row in range(len(texts))]
    assert scores_of(texts, ids, 1) == scores_of(texts, ids, 9) == scores_of(texts, ids, 1000)


def test_every_column_is_kept_and_an_empty_part_is_empty() -> None:
    table, _ = collect(score_part(TablePart(documents(["tea"])), scorer=scorer(), model=None))
    assert table.schema == SCORED_DOCUMENTS
    empty, statistics = collect(score_part(TablePart(documents([])), scorer=scorer(), model=None))
    assert empty.num_rows == 0
    counts = {
        "rows": 0,
        "scored": 0,
        "null_ids": 0,
        "same_id_other_text": 0,
        "truncated": 0,
        "words": 0,
        "unknown_words": 0,
    }
    assert statistics.pop("scored_with") == {"alt-profanity-check 1.9.1, scikit-learn 1.9.1": 0}
    assert statistics == {**counts, "by_source": {}}


def test_what_lies_beyond_max_chars_has_no_influence_and_is_counted() -> None:
    rows, statistics = scores_of(["tea " * 250 + "stupid", "tea " * 250], [None, None])
    assert rows[0]["safety_probs"] == rows[1]["safety_probs"]
    assert statistics["truncated"] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"thresholds": (-3.5, -2.7, -2.7, -0.9, 0.5)},
        {"thresholds": (-3.5, -2.7, -1.9, -0.9)},
        {"thresholds": (-3.5, -2.7, -1.9, -0.9, float("inf"))},
        {"slope": 0.0},
        {"max_chars": 0},
        {"batch": 1},
    ],
)
def test_parameters_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        scorer(**changes)


def test_another_version_of_the_model_is_refused() -> None:
    with pytest.raises(ScoringError, match=r"pin alt-profanity-check 1.8, installed is 1.9.1"):
        rate_texts(["tea"], scorer(version="1.8"))


def test_words_that_the_model_does_not_know_are_counted_alike_for_any_batches() -> None:
    english = "The harbour froze in January and nobody could sail before the ice broke in the spring."
    german = "Der Hafen fror im Januar zu, und niemand konnte segeln, bevor das Eis im Frühling aufbrach."
    shares = {}
    for text in (english, german):
        (_, one), (_, many) = (scores_of([text] * 20, [None] * 20, rows) for rows in (1, 20))
        assert one == many and one["words"] == 20 * rate_texts([text], scorer()).words
        shares[text] = one["unknown_words"] / one["words"]
    assert shares[english] < 0.2 and shares[german] > 0.5
    assert scores_of([german], [None])[1]["unknown_words"] == rate_texts([german], scorer()).unknown_words
