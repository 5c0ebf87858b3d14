"""A document is a near duplicate when an earlier one shares one of its buckets; other texts share none."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from datasketch.hashfunc import sha1_hash32
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.dedup.duplicates import DedupRules, Duplicates, find_duplicates
from everytoken.corpus.dedup.near_duplicates import BUCKETS, NearRules, buckets_of, find_buckets
from everytoken.corpus.errors import SelectionError
from everytoken.seeds import python_random
from everytoken.shards import Artifact, Shards, WorkerProcesses, plan_artifact
from tests.corpus.part_tables import TablePart, collect
from tests.corpus.selection.stored_documents import Given, in_memory, kept, made, stored, table_of
from tests.shards.folders import content

NEAR = NearRules(num_permutations=128, bands=16, shingle_words=3, seed=42)
WORDS = [f"{a}{b}{c}" for a in ("ba", "de", "fi", "go", "hu") for b in ("lo", "mi", "nu", "ra") for c in "knstz"]


def text_of(seed: int, words: int = 400) -> str:
    random = python_random(seed)
    return " ".join(random.choice(WORDS) for _ in range(words))


def edited(text: str, seed: int, share: float) -> str:
    random, words = python_random(seed, 1), text.split()
    for place in random.sample(range(len(words)), round(share * len(words))):
        words[place] = "edited"
    return " ".join(words)


def found(root: Path, documents: Shards, near: NearRules = NEAR, exact: bool = True) -> Artifact:
    buckets = kept(root / "buckets", documents.map(find_buckets, near=near))
    rules = DedupRules(exact=exact, near=near)
    inputs = {"documents": documents, "buckets": buckets, "rules": rules, "memory": 200 << 20}
    return made(root / "duplicates", plan_artifact(find_duplicates, **inputs))


def test_near_copies_are_found_and_unrelated_texts_are_not(tmp_path: Path) -> None:
    originals = [text_of(seed) for seed in range(60)]
    copies = [edited(text, seed, 0.02) for seed, text in enumerate(originals)]
    others = [text_of(1_000 + seed) for seed in range(300)]
    documents = stored(
        tmp_path / "documents", [Given("a", originals + others[:150]), Given("b", copies + others[150:])]
    )
    artifact = found(tmp_path, documents)
    pairs = Duplicates(artifact).near.tolist()
    assert len(pairs) >= 58, "the similarity is about 0.89: one in 2,000 is missed"
    assert all(position - 210 == first for position, first in pairs), "each names its original"
    assert artifact.statistics["by_source"]["b"] == {"rows": 210, "duplicates": 0, "near_duplicates": len(pairs)}


def test_exact_duplicates_are_none_of_the_near_ones(tmp_path: Path) -> None:
    text = text_of(1)
    near = edited(text, 1, 0.005)
    documents = in_memory([Given("a", [text, text, near, text.upper(), near])])
    given = Shards(tuple(TablePart(collect(find_buckets(part, near=NEAR))[0], index=part.index) for part in documents))
    inputs = {"documents": documents, "buckets": given, "memory": 200 << 20}
    for exact, expected_exact, expected_near in (
        (True, [[1, 0], [4, 2]], [[2, 0], [3, 0]]),
        (False, [], [[1, 0], [2, 0], [3, 0], [4, 0]]),
    ):
        rules = DedupRules(exact=exact, near=NEAR)
        root = tmp_path / str(exact)
        duplicates = Duplicates(made(root, plan_artifact(find_duplicates, rules=rules, **inputs)))
        assert duplicates.exact.tolist() == expected_exact
        assert duplicates.near.tolist() == expected_near
        assert duplicates.addresses(np.array([0])) == [("a", 0, 1)]


def test_a_chain_of_edits_keeps_its_first_member_and_names_the_earliest_that_is_close(tmp_path: Path) -> None:
    chain = [text_of(5)]
    for step in range(12):
        chain.append(edited(chain[-1], step, 0.04))
    pairs = Duplicates(found(tmp_path, stored(tmp_path / "documents", [Given("a", chain)]))).near.tolist()
    assert [position for position, _ in pairs] == list(range(1, 13))
    named = dict(pairs)
    assert named[1] == 0
    assert named[12] > 0, "the last is far from the first, and goes for one that is close, although that goes too"


def test_a_bucket_is_the_rows_of_a_band() -> None:
    """Texts with half of their shingles in common share some of many small bands and none of a few large ones."""
    first, second = text_of(8, 200) + " " + text_of(9, 200), text_of(8, 200) + " " + text_of(10, 200)
    for bands, expected in ((64, True), (2, False)):
        near = NEAR.model_copy(update={"bands": bands})
        one, two = buckets_of(first, near), buckets_of(second, near)
        assert one is not None
        assert two is not None
        assert len(set(one)) == bands
        assert bool(set(one) & set(two)) == expected


def test_case_and_punctuation_are_no_difference_and_words_are() -> None:
    assert buckets_of("Ein Straße, ein Haus!", NEAR) == buckets_of("ein STRASSE -- ein haus", NEAR)
    assert buckets_of("one word", NEAR) != buckets_of("one sword", NEAR)
    assert buckets_of("two", NEAR) is not None, "a text of fewer words than a shingle is one shingle"
    assert buckets_of("", NEAR) is None
    assert buckets_of(" ... \n", NEAR) is None


def test_a_long_text_is_hashed_a_few_shingles_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = buckets_of(text_of(1), NEAR)
    monkeypatch.setattr("everytoken.corpus.dedup.near_duplicates._SHINGLES_AT_ONCE", 7)
    assert buckets_of(text_of(1), NEAR) == at_once


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.sampled_from("aäßİ1_中. \n\ud800"), max_size=40), max_size=6), st.integers(1, 4))
def test_signatures_are_those_of_datasketch(texts: list[str], words: int) -> None:
    near = NEAR.model_copy(update={"bands": 128, "shingle_words": words})  # a bucket for each number
    for text in texts:
        found = re.findall(r"\w+", text.casefold())
        sketch = MinHash(num_perm=128, seed=near.seed, hashfunc=sha1_hash32, scheme="affine32")
        for start in range(max(1, len(found) - words + 1) if found else 0):
            sketch.update(" ".join(found[start : start + words]).encode("utf-8", "surrogatepass"))
        numbers = [band.to_bytes(4, "little") + value.tobytes() for band, value in enumerate(sketch.hashvalues)]
        expected = [blake2b(number, digest_size=16).digest() for number in numbers] if found else None
        assert buckets_of(text, near) == expected


def test_buckets_are_what_they_were() -> None:
    """They depend on the library; another one would find other documents."""
    buckets = buckets_of("the quick brown fox jumps over the lazy dog", NEAR)
    assert buckets is not None
    assert buckets[0].hex() == "170081414cb1dc177440501620de8297"
    other_seed = buckets_of("the quick brown fox jumps over the lazy dog", NEAR.model_copy(update={"seed": 43}))
    assert not set(buckets) & set(other_seed or [])


def test_texts_without_words_are_never_near(tmp_path: Path) -> None:
    documents = stored(tmp_path / "documents", [Given("a", ["...", "!!", "word", "—"])])
    artifact = found(tmp_path, documents)
    assert artifact.statistics["near_duplicates"] == 0
    part = kept(tmp_path / "buckets", documents.map(find_buckets, near=NEAR)).parts[0]
    assert [row is None for row in part.table()["buckets"].to_pylist()] == [True, True, False, True]


def test_without_rules_there_are_no_buckets_and_nothing_is_read() -> None:
    class Unreadable(TablePart):
        def batches(self, columns: object = None) -> object:  # type: ignore[override]
            raise AssertionError("read")

    table, statistics = collect(find_buckets(Unreadable(table_of(Given("a", ["text"]))), near=None))
    assert table.equals(pa.Table.from_batches([], BUCKETS))
    assert statistics == {"rows": 0, "without_words": 0}


def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    parts = [Given("a", [text_of(seed, 40) for seed in range(20)]), Given("b", [text_of(3, 40), "", text_of(99, 40)])]
    documents = stored(tmp_path / "documents", parts)
    planned = documents.map(find_buckets, near=NEAR)
    kept(tmp_path / "one", planned)
    kept(tmp_path / "two", planned, WorkerProcesses(2))
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_buckets_of_other_documents_are_refused(tmp_path: Path) -> None:
    buckets = in_memory([Given("a", ["one"])])
    rules = DedupRules(exact=True, near=NEAR)
    with pytest.raises(SelectionError, match="the buckets are of 1 parts with 1 rows, the documents of 1 with 2"):
        find_duplicates(
            tmp_path,
            documents=in_memory([Given("a", ["one", "two"])]),
            buckets=buckets,
            rules=rules,
            memory=10**8,
        )


def test_bands_divide_the_permutations() -> None:
    with pytest.raises(ValidationError, match="num_permutations 128 is no multiple of bands 20"):
        NearRules(num_permutations=128, bands=20, shingle_words=3, seed=1)
    assert NEAR.threshold == pytest.approx(0.707, abs=0.001)
