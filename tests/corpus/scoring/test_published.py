from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everytoken.corpus.documents import SCORED_DOCUMENTS
from everytoken.corpus.errors import RowError, ScoringError
from everytoken.corpus.scoring import score_tables
from everytoken.corpus.scoring.published import join_part, join_published, require_scores_known
from everytoken.corpus.upstreams.file import UpstreamFile
from everytoken.shards import Artifact, ArtifactStore, Shards, Store, plan_artifact
from everytoken.shards.engines import Inline, WorkerProcesses
from tests.corpus.scoring.tables import Document, digests, files, one_hot, stored, write_scores

MEMORY = 200_000_000


def joined(root: Path, documents: Shards, tables: Path, memory: int = MEMORY) -> Artifact:
    found = files(tables)
    inputs: dict[str, Any] = {"documents": documents, "files": found, "digests": digests(found), "memory": memory}
    return ArtifactStore(root / "scorer").save(plan_artifact(join_published, **inputs))


def scored(root: Path, parts: list[list[Document]], tables: Path, workers: int = 0) -> Shards:
    documents = stored(root / "documents", parts)
    published = joined(root, documents, tables)
    store = Store(root / "scored")
    store.save(documents.map(join_part, published=published), WorkerProcesses(workers) if workers else Inline())
    return store.load()


def both(folder: Path) -> tuple[list[UpstreamFile], list[str]]:
    found = files(folder)
    return found, digests(found)


def rows(shards: Shards) -> list[tuple[str | None, int, list[float] | None]]:
    return [
        (row["id"], row["safety_score"], row["safety_probs"])
        for part in shards
        for row in part.table(["id", "safety_score", "safety_probs"]).to_pylist()
    ]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    (tmp_path / "tables").mkdir()
    return tmp_path / "tables"


def test_every_row_with_a_known_id_has_the_published_score_and_the_others_are_counted(
    tmp_path: Path, tables: Path
) -> None:
    write_scores(tables / "0.parquet", [("a", one_hot(3)), ("b", one_hot(5, 0.75)), ("nobody", one_hot(1))])
    write_scores(tables / "1.parquet", [("", one_hot(2))])
    parts = [[Document("b"), Document("x"), Document("b")], [], [Document(None), Document(""), Document("a")]]
    made = scored(tmp_path, parts, tables)
    half = np.float32(0.1).item(), np.float32(0.05).item()
    assert rows(made) == [
        ("b", 5, [half[1]] * 5 + [0.75]),
        ("x", 0, None),
        ("b", 5, [half[1]] * 5 + [0.75]),
        (None, 0, None),
        ("", 2, [half[0]] * 2 + [0.5] + [half[0]] * 3),
        ("a", 3, [half[0]] * 3 + [0.5] + [half[0]] * 2),
    ]
    assert made.parts[0].schema == SCORED_DOCUMENTS
    assert [part["missing"] for part in made.statistics] == [
        {"no_id": 0, "no_entry": 1},
        {"no_id": 0, "no_entry": 0},
        {"no_id": 1, "no_entry": 0},
    ]
    classes = made.statistics[0]["by_source"]["s"]
    assert (classes["rows_by_class"]["5"], classes["distinct_by_class"]["5"]) == (2, 1)
    assert (classes["rows_by_class"]["0"], classes["distinct_by_class"]["0"]) == (1, 0), "no score is no class of an id"
    assert made.statistics[1]["by_source"] == {}
    joined_counts = ArtifactStore(tmp_path / "scorer").load().statistics
    assert joined_counts["tables"] == {file.path: digest for file, digest in zip(*both(tables), strict=True)}
    assert {**joined_counts, "documents": "", "tables": {}} == {
        "documents": "",
        "tables": {},
        "rows": 6,
        "scored": 4,
        "missing": 2,
        "entries": {"id": 4},
    }


def test_ids_are_compared_as_text_unless_the_table_has_their_type(tmp_path: Path, tables: Path) -> None:
    parts = [[Document("1", id_type="number"), Document("1")]]
    write_scores(tables / "0.parquet", [("?", one_hot(2))], id=pa.array([1], pa.int64()))
    assert [score for _, score, _ in rows(scored(tmp_path / "text", parts, tables))] == [2, 2]
    write_scores(tables / "0.parquet", [("1", one_hot(2))], id_type=pa.array(["number"]))
    assert [score for _, score, _ in rows(scored(tmp_path / "type", parts, tables))] == [2, 0]


def test_an_address_goes_before_an_id_and_tells_what_no_id_does(tmp_path: Path, tables: Path) -> None:
    write_scores(tables / "ids.parquet", [("a", one_hot(3)), ("b", one_hot(4))])
    write_scores(
        tables / "addresses.parquet",
        [(None, one_hot(1)), (None, one_hot(5)), (None, one_hot(2))],
        id=None,
        source=pa.array(["s", "s", "other"]),
        shard_index=pa.array([0, 1, 1], pa.int32()),
        row=pa.array([1, 0, 0], pa.int64()),
    )
    made = scored(tmp_path, [[Document("a"), Document("b"), Document("b")], [Document(None)]], tables)
    assert [score for _, score, _ in rows(made)] == [3, 1, 4, 5]


def test_a_result_of_many_batches_is_that_of_one(tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"{number % 40}" for number in range(100)]
    write_scores(tables / "0.parquet", [(str(number), one_hot(number % 6)) for number in range(0, 40, 3)])
    parts = [[Document(identifier) for identifier in ids[start : start + 30]] for start in range(0, 100, 30)]
    whole = joined(tmp_path, stored(tmp_path / "documents", parts), tables)
    for module in (score_tables, join_published.__globals__):
        name = "SCORE_BATCH_ROWS"
        monkeypatch.setitem(module, name, 7) if isinstance(module, dict) else monkeypatch.setattr(module, name, 7)
    again = joined(tmp_path / "again", stored(tmp_path / "documents", parts), tables)
    assert whole.statistics["scored"] == sum(int(identifier) % 3 == 0 for identifier in ids)
    assert again.root_digest == whole.root_digest


@pytest.mark.parametrize("workers", [2, 5])
def test_same_bytes_for_any_number_of_workers(tmp_path: Path, tables: Path, workers: int) -> None:
    write_scores(tables / "0.parquet", [(str(number), one_hot(number % 6)) for number in range(0, 30, 2)])
    parts = [[Document(str((part * 7 + row) % 30)) for row in range(part)] for part in range(8)]
    inline = scored(tmp_path / "inline", parts, tables)
    spawned = scored(tmp_path / "workers", parts, tables, workers)
    assert spawned.ledger == inline.ledger


NAN = float("nan")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"safety_score": pa.array([1, None], pa.int8())}, r"0.parquet, row 1: safety_score None"),
        ({"safety_score": pa.array([6, 1], pa.int8())}, r"0.parquet, row 0: safety_score 6"),
        ({"safety_score": pa.array([1, -1], pa.int8())}, r"0.parquet, row 1: safety_score -1"),
        ({"safety_probs": pa.array([one_hot(1), None])}, r"row 1: .* safety_probs None"),
        ({"safety_probs": pa.array([one_hot(1), [0.5, 0.5]])}, r"row 1: .* safety_probs \[0.5, 0.5\]"),
        ({"safety_probs": pa.array([one_hot(1), [None] * 6], pa.list_(pa.float32()))}, r"row 1: .*None"),
        ({"safety_probs": pa.array([one_hot(1), [NAN] * 6])}, r"row 1: .*nan"),
        ({"safety_probs": pa.array([one_hot(1), [2.0] + [0.0] * 5])}, r"row 1: .*2.0"),
        ({"safety_probs": pa.array([one_hot(1), [-0.5] + [0.3] * 5])}, r"row 1: .*-0.5"),
        ({"safety_probs": None}, r"0.parquet has the columns id: string, safety_score: int8; a table"),
        ({"id": None}, r"columns safety_score: int8, safety_probs: list<.*>; .* rename"),
        ({"safety_score": pa.array(["low", "high"])}, r"safety_score: string, .* \(an integer\)"),
    ],
)
def test_a_wrong_table_is_named_with_file_and_row(
    tmp_path: Path, tables: Path, columns: dict[str, Any], message: str
) -> None:
    write_scores(tables / "0.parquet", [("a", one_hot(1)), ("b", one_hot(1))], **columns)
    documents = stored(tmp_path / "documents", [[Document("a")]])
    with pytest.raises(ScoringError, match=message):
        joined(tmp_path, documents, tables)
    assert not (tmp_path / "scorer").exists()


def test_a_document_that_is_there_twice_is_named(tmp_path: Path, tables: Path) -> None:
    write_scores(tables / "0.parquet", [("x", one_hot(1)), ("it's", one_hot(1))])
    write_scores(tables / "1.parquet", [("it's", one_hot(4)), ("y", one_hot(4))])
    documents = stored(tmp_path / "documents", [[Document("y")], [Document("x"), Document("it's")]])
    twice = r"{'id': \"it's\"} is twice .*0.parquet, row 1 \(score 1\) and .*1.parquet, row 0 \(score 4\)"
    with pytest.raises(ScoringError, match=twice):
        joined(tmp_path, documents, tables)


def test_a_document_that_is_there_twice_is_found_also_where_it_is_never_used(tmp_path: Path, tables: Path) -> None:
    write_scores(tables / "0.parquet", [("a", one_hot(1)), ("nobody", one_hot(1)), ("nobody", one_hot(1))])
    with pytest.raises(ScoringError, match=r"{'id': 'nobody'} is twice .*row 1 .* and .*row 2"):
        joined(tmp_path, stored(tmp_path / "documents", [[Document("a")]]), tables)


@pytest.mark.parametrize("name", ["a[1]", "it's", "*", "?", "b[z-a]", "{a,b}", "ä ö"])
def test_a_file_name_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "a1").mkdir()
    write_scores(tmp_path / "a1/0.parquet", [("a", one_hot(2))])
    write_scores(tmp_path / name / f"{name}.parquet", [("a", one_hot(1))])
    made = scored(tmp_path / "run", [[Document("a")]], tmp_path / name)
    assert [score for _, score, _ in rows(made)] == [1]


def test_the_name_of_a_folder_is_no_column(tmp_path: Path, tables: Path) -> None:
    """DuckDB would read safety_score=4 as a value for all rows (hive partitioning)."""
    (tables / "safety_score=4").mkdir()
    write_scores(tables / "safety_score=4/0.parquet", [("a", one_hot(1))])
    made = scored(tmp_path, [[Document("a")]], tables / "safety_score=4")
    assert [score for _, score, _ in rows(made)] == [1]


def test_tables_of_different_types_are_refused(tmp_path: Path, tables: Path) -> None:
    write_scores(tables / "0.parquet", [("?", one_hot(2))], id=pa.array([1], pa.int64()))
    write_scores(tables / "1.parquet", [("01", one_hot(4))])
    documents = stored(tmp_path / "documents", [[Document("1"), Document("01")]])
    with pytest.raises(ScoringError, match=r"1.parquet has the types text, .*0.parquet has int64, .*same types"):
        joined(tmp_path, documents, tables)


@pytest.mark.parametrize("column", ["Safety_Score", "ID", "filename", "file_row_number"])
def test_a_column_that_cannot_be_told_from_another_is_refused(tmp_path: Path, tables: Path, column: str) -> None:
    write_scores(tables / "0.parquet", [("a", one_hot(2))], **{column: pa.array([4], pa.int8())})
    documents = stored(tmp_path / "documents", [[Document("a")]])
    with pytest.raises(ScoringError, match=rf"'{column}'\] cannot be told from those of the join"):
        joined(tmp_path, documents, tables)


@pytest.mark.parametrize("kind", [pa.float64(), pa.bool_(), pa.binary()])
def test_ids_and_addresses_of_other_types_are_refused(tmp_path: Path, tables: Path, kind: pa.DataType) -> None:
    documents = stored(tmp_path / "documents", [[Document("a")]])
    write_scores(tables / "0.parquet", [("a", one_hot(2))], id=pa.nulls(1, kind))
    with pytest.raises(ScoringError, match=r"0.parquet has the columns id: .* \(text or an integer"):
        joined(tmp_path, documents, tables)


def test_a_document_that_a_mixture_has_twice_is_scored_by_its_address(tmp_path: Path, tables: Path) -> None:
    address = {"source": pa.array(["s", "s"]), "shard_index": pa.array([0, 0]), "row": pa.array([0, 0])}
    write_scores(tables / "0.parquet", [(None, one_hot(3)), (None, one_hot(3))], id=None, **address)
    assert [score for _, score, _ in rows(scored(tmp_path, [[Document(None)]], tables))] == [3]


def test_what_is_no_parquet_file_or_not_the_planned_one_is_named(tmp_path: Path, tables: Path) -> None:
    documents = stored(tmp_path / "documents", [[Document("a")]])
    (tables / "0.parquet").write_text("no parquet")
    with pytest.raises(ScoringError, match=r"0.parquet is no parquet file"):
        joined(tmp_path, documents, tables)
    write_scores(tables / "0.parquet", [("a", one_hot(1))])
    found = files(tables)
    planned = plan_artifact(
        join_published, documents=documents, files=found, digests=["sha256:" + "0" * 64], memory=MEMORY
    )
    with pytest.raises(RowError, match=r"has changed since"):
        ArtifactStore(tmp_path / "scorer").save(planned)


def test_too_little_memory_is_an_error_that_names_the_parameter(tmp_path: Path, tables: Path) -> None:
    write_scores(tables / "0.parquet", [("a", one_hot(1))])
    documents = stored(tmp_path / "documents", [[Document("a")]])
    with pytest.raises(ScoringError, match=r"more than 1,000 bytes .* Raise annotation.memory"):
        joined(tmp_path, documents, tables, memory=1_000)


def test_a_table_of_another_corpus_stops_the_run(tmp_path: Path, tables: Path) -> None:
    write_scores(tables / "0.parquet", [("a", one_hot(1))])
    documents = stored(tmp_path / "documents", [[Document("a"), Document("b"), Document("c"), Document("a")]])
    published = joined(tmp_path, documents, tables)
    require_scores_known(published, documents, 0.5)
    with pytest.raises(ScoringError, match=r"know 2 of 4 documents; 2 \(50.00%\) have none, .* 49.00%"):
        require_scores_known(published, documents, 0.49)
    others = stored(tmp_path / "others", [[Document("a")] * 4])
    with pytest.raises(ScoringError, match=r"were joined to documents [0-9a-f]{16}, these are"):
        require_scores_known(published, others, 1.0)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    known=st.dictionaries(st.text("abc", max_size=2), st.integers(0, 5), max_size=9),
    ids=st.lists(st.lists(st.none() | st.text("abc", max_size=2), max_size=8), min_size=1, max_size=4),
)
def test_the_join_is_a_look_up(
    tmp_path_factory: pytest.TempPathFactory, known: dict[str, int], ids: list[list[str | None]]
) -> None:
    folder = tmp_path_factory.mktemp("join")
    (folder / "tables").mkdir()
    write_scores(folder / "tables/0.parquet", [(identifier, one_hot(k)) for identifier, k in known.items()])
    made = scored(folder, [[Document(identifier) for identifier in part] for part in ids], folder / "tables")
    expected = [(i, known.get(i, 0) if i is not None else 0, i in known) for part in ids for i in part]
    assert [(i, score, probs is not None) for i, score, probs in rows(made)] == expected
