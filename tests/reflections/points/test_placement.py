"""Points: those of the reference run, and the distribution that is published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from everytoken.reflections.points import published_index_of_null_id, sampled_index, sampled_share
from everytoken.seeds import python_random

VECTORS = Path(__file__).parents[2] / "vectors"
NUMBERS = json.loads((VECTORS / "placement_numbers.json").read_text())
NULL_ID = json.loads((VECTORS / "replies.json").read_text())["null_id_original"]


def test_points_are_those_of_the_reference_run() -> None:
    seed = NUMBERS["reflection_seed"]
    assert NUMBERS["columns"] == ["doc_id", "n_tokens", "u", "token_index"]
    for doc_id, tokens, u, index in NUMBERS["rows"]:
        assert python_random(seed, doc_id).random() == u
        assert sampled_index(seed, doc_id, tokens) == index, doc_id


def test_published_rows_without_an_id_share_one_draw() -> None:
    assert sampled_share(NULL_ID["seed"], "None") == NULL_ID["t"]
    found = {int(n): published_index_of_null_id(NULL_ID["seed"], int(n)) for n in NULL_ID["token_index_of_n"]}
    assert found == {int(n): index for n, index in NULL_ID["token_index_of_n"].items()}


def test_the_mean_and_the_first_fifth_are_those_of_the_density() -> None:
    shares = np.array([sampled_share(42, f"document {i}") for i in range(40_000)])
    assert shares.mean() == pytest.approx(0.548148, abs=4 * shares.std() / 200)
    assert (shares < 0.2).mean() == pytest.approx(1 / 9, abs=4 * np.sqrt(8 / 81) / 200)
    assert shares.min() >= 0 and shares.max() < 1
    rising, _ = np.histogram(shares, bins=[0, 0.1, 0.2])
    assert rising[1] / rising[0] == pytest.approx(3, rel=0.15), "the density rises linearly from 0"
    flat, _ = np.histogram(shares, bins=np.linspace(0.2, 1, 9))
    assert flat.std() < 4 * np.sqrt(flat.mean()), "it is flat behind the first fifth"


def test_a_point_is_never_behind_the_last_token() -> None:
    for tokens in (2, 3, 5):
        indexes = {sampled_index(1, str(i), tokens) for i in range(300)}
        assert indexes == set(range(1, tokens))
    assert {sampled_index(1, str(i), 1) for i in range(20)} == {0}
