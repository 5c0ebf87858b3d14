"""Positions of documents among the tokens of padded shards, and back; contents that contradict the sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.provenance import ProvenanceError
from everytoken.provenance.indexes.shard_layout import LayoutWriter, ShardLayout


@given(st.lists(st.integers(1, 10), min_size=1, max_size=8))
def test_pieces_are_the_inverse_of_placed(contents: list[int]) -> None:
    tokens = 10 * (len(contents) - 1) + contents[-1]
    layout = ShardLayout(np.array(contents), 10, tokens)
    flat = np.full(tokens, -1)
    for own in range(sum(contents)):
        flat[layout.placed(own)] = own
    assert sorted(flat[flat >= 0]) == list(range(sum(contents)))
    assert layout.placed(sum(contents)) == tokens and layout.placed(sum(contents) + 3) == tokens + 3
    for begin in range(tokens + 1):
        for end in range(begin, tokens + 1):
            found = np.full(end - begin, -1)
            for first, last, at in layout.pieces(begin, end):
                found[at : at + last - first] = np.arange(first, last)
            assert np.array_equal(found, flat[begin:end])


@given(st.lists(st.integers(1, 10), max_size=20), st.integers(1, 7), st.booleans(), st.none() | st.integers(1, 3))
def test_documents_may_come_in_blocks(sizes: list[int], block: int, whole: bool, n_shards: int | None) -> None:
    made = []
    for step in (block, 1000):
        writer = LayoutWriter(10, whole=whole, n_shards=n_shards)
        for start in range(0, len(sizes), step):
            writer.append(np.array(sizes[start : start + step], np.int64))
        made.append((writer.shards, writer.documents, writer.tokens))
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("contents", "shards", "tokens"), [([10, 11], 2, 20), ([10, 4], 2, 21), ([10, 4], 2, 10), ([], 0, 5)]
)
def test_contents_that_contradict_the_sizes_are_named(
    tmp_path: Path, contents: list[int], shards: int, tokens: int
) -> None:
    np.save(tmp_path / "contents.npy", np.array(contents, "<u8"))
    with pytest.raises(ProvenanceError, match=rf"contents.npy of {shards} shards of 10 tokens does not give {tokens}"):
        ShardLayout.open(tmp_path, shards, 10, tokens)
