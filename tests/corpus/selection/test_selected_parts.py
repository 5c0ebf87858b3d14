"""After the selection every document is in a part or dropped with its reason, for any number of workers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.corpus.dedup.duplicates import DedupRules, find_duplicates
from everytoken.corpus.documents import SET_ASIDE
from everytoken.corpus.errors import SelectionError
from everytoken.corpus.selection.decisions import DECISIONS, select
from everytoken.corpus.selection.mixed_parts import mix_part, mixture_parts
from everytoken.corpus.selection.mixture import MixtureParameters
from everytoken.corpus.selection.selected_parts import check_selection_conservation, dropped_part, select_part
from everytoken.corpus.statistics import add_statistics
from everytoken.shards import Artifact, Engine, Inline, Rows, Shards, Unchanged, WorkerProcesses, plan_artifact
from tests.corpus.part_tables import TablePart, collect, value_part
from tests.corpus.selection.stored_documents import Given, in_memory, kept, made, stored, table_of
from tests.shards.folders import content

PARTS = [
    Given("a", ["aaaa", "bb", "cccccc", "bb", "a longer text"]),
    Given("b", ["bbbb", "ééé", "dddd"]),
    Given("b", ["aaaa", "é", "dd", "eeee"], shard_index=4),
    Given("a", [], shard_index=1),
    Given("a", ["ff", "gg", "ff", "aaaa"], shard_index=2),
]
CAPS = {"a": 27, "b": None}


class Made(NamedTuple):
    documents: Shards
    duplicates: Artifact
    selection: Artifact

    @property
    def inputs(self) -> dict[str, Artifact]:
        return {"selection": self.selection, "duplicates": self.duplicates}


def recipe(weights: dict[str, float], total: int, **changed: Any) -> MixtureParameters:
    given = {"chars_per_token": 1.0, "allow_repeat": {}, "tolerance": 1.0, "documents_per_part": 3, **changed}
    return MixtureParameters(weights=weights, target_total_tokens=total, **given)


def choose(
    root: Path,
    documents: Shards,
    mixture: MixtureParameters | None = None,
    caps: Mapping[str, int | None] = CAPS,
) -> Made:
    rules = DedupRules(exact=True, near=None)
    inputs = {"documents": documents, "buckets": None, "rules": rules, "memory": 200 << 20}
    duplicates = made(root / "duplicates", plan_artifact(find_duplicates, **inputs))
    chosen = {"documents": documents, "duplicates": duplicates, "max_text_bytes": dict(caps), "mixture": mixture}
    return Made(documents, duplicates, made(root / "selection", plan_artifact(select, **chosen)))


def taken_of(part: Any, given: Made) -> tuple[pa.Table, dict[str, Any]]:
    rows = select_part(part, selection=given.selection)
    assert isinstance(rows, Rows)
    return collect(rows)


def dropped_of(part: Any, given: Made) -> tuple[pa.Table, dict[str, Any]]:
    return collect(dropped_part(part, **given.inputs))


def texts(table: pa.Table) -> list[str]:
    return list(table["text"].to_pylist())


def test_a_part_keeps_its_documents_and_drops_the_others_with_their_first(tmp_path: Path) -> None:
    given = choose(tmp_path, in_memory(PARTS, batch_rows=2))
    table, statistics = taken_of(given.documents.parts[4], given)
    aside, counts = dropped_of(given.documents.parts[4], given)
    assert counts == {key: statistics[key] for key in ("rows_in", "kept", "set_aside")}
    assert texts(table) == ["ff"]
    assert table.equals(table_of(PARTS[4]).slice(0, 1))
    assert aside.schema.equals(SET_ASIDE)
    place = {"source": "a", "shard_index": 2, "offset": None, "raw": None}
    assert aside.to_pylist() == [
        {**place, "row": 3, "id": "a-1", "reason": "beyond_payload_cap", "detail": None},
        {**place, "row": 5, "id": "a-2", "reason": "duplicate", "detail": "of source 'a', shard 2, row 1"},
        {**place, "row": 7, "id": "a-3", "reason": "duplicate", "detail": "of source 'a', shard 0, row 1"},
    ]
    assert statistics == {
        "rows_in": 4,
        "kept": 1,
        "set_aside": {"beyond_payload_cap": 1, "duplicate": 2},
        "by_source": {"a": {"even": {"rows": 1, "characters": 2, "utf8_bytes": 2}}},
        "length_histogram": {"01": 1},
    }


def test_a_duplicate_names_the_first_of_another_source(tmp_path: Path) -> None:
    given = choose(tmp_path, in_memory(PARTS))
    aside, _ = dropped_of(given.documents.parts[2], given)
    assert aside["detail"].to_pylist() == ["of source 'a', shard 0, row 1"]


def test_a_part_that_keeps_all_is_handed_on_as_it_is(tmp_path: Path) -> None:
    documents = stored(tmp_path / "documents", PARTS)
    given = choose(tmp_path, documents)
    whole = select_part(documents.parts[1], selection=given.selection)
    assert isinstance(whole, Unchanged)
    assert whole.part is documents.parts[1]
    assert whole.statistics == {
        "rows_in": 3,
        "kept": 3,
        "set_aside": {},
        "by_source": {
            "b": {
                "even": {"rows": 2, "characters": 8, "utf8_bytes": 8},
                "odd": {"rows": 1, "characters": 3, "utf8_bytes": 6},
            }
        },
        "length_histogram": {"01": 1, "02": 2},
    }
    kept(tmp_path / "selected", documents.map(select_part, selection=given.selection))
    one, other = (tmp_path / name / "part_00001.parquet" for name in ("documents", "selected"))
    assert one.samefile(other)


def test_a_part_of_which_nothing_stays_still_names_its_source(tmp_path: Path) -> None:
    parts = [Given("a", ["x", "y"]), Given("b", ["y", "x"])]
    given = choose(tmp_path, in_memory(parts))
    table, statistics = taken_of(given.documents.parts[1], given)
    assert (table.num_rows, dropped_of(given.documents.parts[1], given)[0].num_rows) == (0, 2)
    assert statistics["by_source"] == {"b": {}}


def test_what_is_taken_and_what_is_dropped_adds_up(tmp_path: Path) -> None:
    given = choose(tmp_path, in_memory(PARTS, batch_rows=2))
    taken = [select_part(part, selection=given.selection) for part in given.documents]
    counts = [part.statistics if isinstance(part, Unchanged) else collect(part)[1] for part in taken]
    dropped = [dropped_of(part, given)[1] for part in given.documents]
    check_selection_conservation(given.selection, counts, dropped)
    for lost in range(len(PARTS)):
        if PARTS[lost].texts:
            with pytest.raises(SelectionError, match="A document was lost or made up"):
                check_selection_conservation(given.selection, [*counts[:lost], *counts[lost + 1 :]], dropped)


def test_a_part_that_was_not_selected_from_is_refused(tmp_path: Path) -> None:
    given = choose(tmp_path, in_memory(PARTS))
    for part in (TablePart(table_of(PARTS[1]), index=0), TablePart(table_of(PARTS[1]), index=7)):
        with pytest.raises(SelectionError, match=f"{part.name} has 3 rows, but the selection was made from one of"):
            select_part(part, selection=given.selection)


def mixed(given: Made, documents_per_part: int = 3) -> tuple[list[pa.Table], list[dict[str, Any]]]:
    inputs = {"documents": given.documents, "selection": given.selection}
    made_parts = [
        collect(mix_part(value_part(part.value, part.index), **inputs))
        for part in mixture_parts(given.selection, documents_per_part)
    ]
    return [table for table, _ in made_parts], [statistics for _, statistics in made_parts]


def test_a_mixed_corpus_has_the_sources_in_the_order_of_the_selection(tmp_path: Path) -> None:
    given = choose(tmp_path, in_memory(PARTS, batch_rows=2), recipe({"a": 0.5, "b": 0.5}, 24))
    tables, statistics = mixed(given)
    whole = pa.concat_tables(tables)
    assert [table.num_rows for table in tables] == [3, 3, 1]
    assert [text for text, source in zip(texts(whole), whole["source"].to_pylist(), strict=True) if source == "a"] == [
        "aaaa",
        "bb",
        "cccccc",
    ]
    assert [part["rows_in"] for part in statistics] == [3, 3, 1]
    assert sum(part["first_uses"]["b"] for part in statistics) == 4


def test_a_mixture_of_one_part(tmp_path: Path) -> None:
    given = choose(tmp_path, in_memory([Given("a", ["a1", "a2"])], batch_rows=1), recipe({"a": 1.0}, 4))
    tables, _ = mixed(given)
    assert texts(pa.concat_tables(tables)) == ["a1", "a2"]


@pytest.mark.parametrize("documents_per_part", [1, 2, 3, 100])
def test_repeated_documents_come_again_in_order_with_their_address(tmp_path: Path, documents_per_part: int) -> None:
    parts = [Given("a", ["a1", "a2"]), Given("b", [f"b{n}" for n in range(9)]), Given("a", ["a3"], shard_index=1)]
    mixture = recipe({"a": 0.5, "b": 0.5}, 32, allow_repeat={"a": 3})
    given = choose(tmp_path, in_memory(parts, batch_rows=2), mixture)
    tables, statistics = mixed(given, documents_per_part)
    whole = pa.concat_tables(tables)
    of_a = whole.filter(pa.array([source == "a" for source in whole["source"].to_pylist()]))
    assert texts(of_a) == ["a1", "a2", "a3"] * 2 + ["a1", "a2"]
    assert of_a["shard_index"].to_pylist() == [0, 0, 1, 0, 0, 1, 0, 0]
    assert sum(part["first_uses"].get("a", 0) for part in statistics) == 3
    dropped = [collect(dropped_part(part, **given.inputs))[1] for part in given.documents]
    check_selection_conservation(given.selection, statistics, dropped)
    with pytest.raises(
        SelectionError, match=r"documents dropped by reason: expected \{'beyond_budget': 1\}, found \{\}"
    ):
        check_selection_conservation(given.selection, statistics, dropped[:1])
    with pytest.raises(SelectionError, match=r"documents used by source: expected \{'a': 3, 'b': 8\}, found"):
        check_selection_conservation(given.selection, statistics[1:], dropped)


def test_batches_of_a_mixed_part_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everytoken.corpus.selection.mixed_parts.MAX_BATCH_BYTES", 10)
    given = choose(tmp_path, in_memory(PARTS, batch_rows=2), recipe({"a": 0.5, "b": 0.5}, 24))
    part = mixture_parts(given.selection, 100).parts[0]
    rows = mix_part(value_part(part.value), documents=given.documents, selection=given.selection)
    batches = list(rows.batches)
    sizes = [sum(batch.column("utf8_bytes").to_pylist()) for batch in batches]
    assert len(batches) > 2
    assert max(sizes) <= 10
    whole = pa.Table.from_batches(batches)
    assert whole.equals(pa.concat_tables(mixed(given)[0]).combine_chunks())


TEXTS = st.lists(st.text(st.sampled_from("aé🎉"), min_size=1, max_size=9), max_size=15)


@settings(max_examples=30)
@given(
    st.lists(st.builds(Given, st.sampled_from("ab"), TEXTS, st.integers(0, 5)), min_size=1, max_size=5),
    st.integers(1, 30),
    st.integers(1, 20),
    st.integers(1, 9),
)
def test_every_document_is_used_or_dropped(parts: list[Given], total: int, per_part: int, batch_rows: int) -> None:
    mixture = recipe({"a": 0.5, "b": 0.5}, total, allow_repeat={"a": 20, "b": 20})
    with tempfile.TemporaryDirectory() as root:
        try:
            given = choose(Path(root), in_memory(parts, batch_rows), mixture)
        except SelectionError:
            return
        tables, statistics = mixed(given, per_part)
        dropped = [collect(dropped_part(part, **given.inputs)) for part in given.documents]
        check_selection_conservation(given.selection, statistics, [counts for _, counts in dropped])
    addresses = [
        {(row["source"], row["shard_index"], row["id"]) for row in table.to_pylist()}
        for table in (pa.concat_tables(tables), pa.concat_tables([table for table, _ in dropped]))
    ]
    everything = {
        (part.source, part.shard_index, f"{part.source}-{row}") for part in parts for row in range(len(part.texts))
    }
    assert addresses[0] | addresses[1] == everything
    if len({(part.source, part.shard_index) for part in parts}) == len(parts):
        assert not addresses[0] & addresses[1]


def everything(root: Path, engine: Engine, mixing: Engine) -> None:
    parts = [
        Given(source, [f"{source} {(n + index) ** 2 % 89} " + "x" * (n % 11) for n in range(60)], index)
        for index, source in enumerate("aabab")
    ]
    documents = stored(root / "documents", parts)
    mixture = recipe({"a": 0.3, "b": 0.7}, 2_000, allow_repeat={"b": 9})
    given = choose(root, documents, mixture, {"a": 1_000, "b": None})
    kept(root / "selected", documents.map(select_part, selection=given.selection), engine)
    dropped = kept(root / "dropped", documents.map(dropped_part, **given.inputs), engine)
    values = mixture_parts(given.selection, 7)
    mixed_parts = kept(root / "mixed", values.map(mix_part, documents=documents, selection=given.selection), mixing)
    check_selection_conservation(given.selection, mixed_parts.statistics, dropped.statistics)
    assert mixed_parts.rows > 200
    assert set(add_statistics(dropped.statistics)["set_aside"]) == set(DECISIONS) - {
        "kept",
        "near_duplicate",
        "contaminated",
    }


def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    everything(tmp_path / "one", Inline(), Inline())
    everything(tmp_path / "more", WorkerProcesses(2), WorkerProcesses(5))
    one, more = (
        {name: data for name, data in content(tmp_path / folder).items() if name != "duplicates/ledger.json"}
        for folder in ("one", "more")
    )
    assert one == more
