"""Estimated tokens of a mixture against those that the tokenizer gave, by source."""

from __future__ import annotations

from pathlib import Path

import pytest

from everytoken.corpus.selection import MixtureParameters
from everytoken.shards import Artifact, Inline, Store
from everytoken.tokens.encoding import encode_part, estimate_errors, estimate_lines
from tests.tokens.corpora import documents, small_tokenizer, stored
from tests.tokens.encoding.test_token_counts import counting

TEXTS = ["the cat sat on the mat", "naïve café", "日本語 the", "the the the"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return small_tokenizer(tmp_path_factory.mktemp("small"), TEXTS)


def test_the_error_is_by_source_and_of_whole_documents(tokenizer: Artifact, tmp_path: Path) -> None:
    given = counting(tokenizer, tmp_path / "proof")
    read = stored(tmp_path / "in", [documents(TEXTS), documents(TEXTS, 1)])
    encoded = read.map(encode_part, **given, max_tokens=3, max_lossy_share=1.0, columns=("source",))
    whole = read.map(encode_part, **given, max_tokens=None, max_lossy_share=1.0, columns=("source",))
    made = []
    for name, planned in (("cut", encoded), ("whole", whole)):
        store = Store(tmp_path / name)
        store.save(planned, Inline())
        made.append(store.load())
    mixture = MixtureParameters(
        weights={"web": 0.5, "code": 0.5},
        target_total_tokens=9,
        chars_per_token={"web": 4.0, "code": 2.5},
        tolerance=0.0,
        documents_per_part=1,
    )
    errors = estimate_errors(made[:1], mixture)
    tokens = {"web": 0, "code": 0}
    for part in made[1]:
        table = part.table(["source", "token_length"]).to_pylist()
        for row in table:
            tokens[row["source"]] += row["token_length"] + 1
    for source, per_token in (("web", 4.0), ("code", 2.5)):
        characters = 2 * sum(len(text) for text in TEXTS[0 if source == "web" else 1 :: 2])
        error = errors[source]
        assert error["estimated_tokens"] == characters / per_token
        assert error["tokens"] == tokens[source]
        assert error["relative_error"] == pytest.approx(characters / per_token / tokens[source] - 1)
    (line,) = [line for line in estimate_lines(errors) if "'web'" in line]
    assert f"{tokens['web']:,} by the tokenizer" in line and f"{errors['web']['relative_error']:+.1%}" in line


def test_without_an_estimate_there_is_no_error(tmp_path: Path) -> None:
    counted = MixtureParameters(
        weights={"web": 1.0}, target_total_tokens=9, unit="tokens", tolerance=0.0, documents_per_part=1
    )
    assert estimate_errors([], None) == estimate_errors([], counted) == {}
