"""Splits of documents that nobody scored: every document is held out or trained on, and none is annotated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.corpus.documents import SPLIT_DOCUMENTS
from everytoken.corpus.errors import SamplingError
from everytoken.corpus.sampling.held_out import HeldOutRule
from everytoken.corpus.sampling.splits import select_held_out
from everytoken.corpus.sampling.unscored_splits import UnscoredSplit, check_split_conservation, split_unscored
from tests.corpus.part_tables import TablePart, collect, scored, value_part
from tests.corpus.sampling.test_sampling import subsampling

SPLITS: tuple[UnscoredSplit, ...] = ("annotated", "unannotated", "held_out")
LENGTHS = st.lists(st.integers(0, 400), max_size=40)


def rule(share: float) -> HeldOutRule:
    return HeldOutRule(chars_per_token=4.0, max_tokens_per_document=50.0, held_out_seed=7, held_out_share=share)


def documents(lengths: list[int], batch_rows: int = 7) -> TablePart:
    table = scored(lengths, [0] * len(lengths)).drop_columns(["safety_score", "safety_probs"])
    return TablePart(table, batch_rows, 0)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.sampled_from([0.0, 0.3]), st.integers(1, 50))
def test_every_document_is_in_one_split(lengths: list[int], share: float, batch_rows: int) -> None:
    part = documents(lengths, batch_rows)
    made = {split: collect(split_unscored(part, split=split, rule=rule(share))) for split in SPLITS}
    tables = {split: table for split, (table, _) in made.items()}
    rows = [row for table in tables.values() for row in table.column("row").to_pylist()]
    assert sorted(rows) == list(range(len(lengths)))
    assert tables["annotated"].num_rows == 0
    assert tables["held_out"].num_rows == 0 or share > 0
    for split, (table, counted) in made.items():
        assert table.schema == SPLIT_DOCUMENTS
        assert set(table.column("safety_score").to_pylist()) <= {0}
        assert table.column("safety_probs").null_count == table.num_rows
        assert not any(table.column("has_annotation").to_pylist() + table.column("is_bad").to_pylist())
        assert (counted["rows_in"], counted["rows"], counted["excluded"]) == (len(lengths), table.num_rows, 0)
        tokens = sum(min(len(text) / 4, 50) for text in table.column("text").to_pylist())
        assert counted["estimated_tokens"] == pytest.approx(tokens), split


@given(LENGTHS)
def test_the_same_documents_are_held_out_whether_they_are_scored_or_not(lengths: list[int]) -> None:
    parameters = subsampling(held_out_share=0.3)
    with_scores = TablePart(scored(lengths, [0] * len(lengths)), 7, 0)
    one = collect(select_held_out(with_scores, parameters=parameters.held_out))[0]
    two = collect(split_unscored(documents(lengths), split="held_out", rule=parameters.held_out_rule))[0]
    assert one.column("row").to_pylist() == two.column("row").to_pylist()


def test_an_excluded_document_is_not_held_out_and_is_counted() -> None:
    part = documents([10] * 40)
    held_out = collect(split_unscored(part, split="held_out", rule=rule(0.3)))[0]
    assert held_out.num_rows > 1
    first = held_out.slice(0, 1).to_pylist()[0]
    exclusions = value_part({"addresses": [[first["source"], first["shard_index"], first["row"], "wish"]]})
    table, counted = collect(split_unscored(part, exclusions, split="held_out", rule=rule(0.3)))
    assert (table.num_rows, counted["excluded"]) == (held_out.num_rows - 1, 1)
    kept, counted = collect(split_unscored(part, exclusions, split="unannotated", rule=rule(0.3)))
    assert (kept.num_rows, counted["excluded"]) == (40 - held_out.num_rows, 0)


def test_a_lost_document_is_noticed() -> None:
    part = documents([10] * 40)
    counts = {split: collect(split_unscored(part, split=split, rule=rule(0.3)))[1] for split in SPLITS}
    check_split_conservation(40, counts)
    with pytest.raises(SamplingError, match="41 documents came, and 40 are in a split or excluded"):
        check_split_conservation(41, counts)
