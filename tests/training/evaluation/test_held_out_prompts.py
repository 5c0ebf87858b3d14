"""Prompts from held-out documents are the same for any parts, and leave something to write."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from everytoken.shards import Shards
from everytoken.training import TrainingError
from everytoken.training.evaluation.prompts import CHARACTERS, beginning, held_out_prompts
from tests.corpus.part_tables import TablePart, documents

TEXTS = [f"{number} to be or not to be, that is the question of line {number}" for number in range(30)]


def held_out(*tables: pa.Table) -> Shards:
    parts: Any = tuple(TablePart(table, index=index) for index, table in enumerate(tables))
    return Shards(parts)


def test_the_same_documents_begin_the_samples_for_any_parts() -> None:
    rows = documents(TEXTS)
    found = held_out_prompts(held_out(rows), 1)
    assert found == held_out_prompts(held_out(rows.slice(15), rows.slice(0, 0), rows.slice(0, 15)), 1)
    assert len(set(found)) == 4 and all(any(text.startswith(prompt) for text in TEXTS) for prompt in found)
    assert held_out_prompts(held_out(rows), 2) != found


def test_a_beginning_ends_with_a_word_and_leaves_something_to_write() -> None:
    assert all(len(beginning(text)) <= CHARACTERS and text.startswith(beginning(text) + " ") for text in TEXTS)
    assert beginning("Donaudampfschifffahrt" * 9) == ("Donaudampfschifffahrt" * 9)[:CHARACTERS]
    assert beginning("  kurz und gut  ") == "kurz u"


def test_without_held_out_documents_there_are_no_prompts() -> None:
    with pytest.raises(TrainingError, match=r"give evaluation\.generation\.prompts, or hold documents out"):
        held_out_prompts(held_out(), 1)
