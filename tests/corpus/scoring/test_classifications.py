from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from everytoken.corpus.scoring import classifications
from everytoken.corpus.scoring.classifications import (
    SCORES_BY_ADDRESS,
    SCORES_BY_ID,
    collect_classifications,
    score_margins,
)
from everytoken.corpus.scoring.published import join_part, join_published
from everytoken.corpus.scoring.report import row_counts, score_table
from everytoken.shards import Artifact, ArtifactStore, Inline, Shards, Store, plan_artifact
from tests.corpus.scoring.tables import Document, digests, files, one_hot, stored, write_scores

MEMORY = 1 << 20


def collected(root: Path, scored: Shards, near: Sequence[float] = (0.1,), memory: int = MEMORY) -> Artifact:
    planned = plan_artifact(collect_classifications, documents=scored, near=near, memory=memory)
    return ArtifactStore(root / "classifications").save(planned)


def table(artifact: Artifact, name: str) -> list[dict[str, Any]]:
    assert artifact.folder is not None
    return [row for path in sorted(artifact.folder.glob(f"{name}_*")) for row in pq.read_table(path).to_pylist()]


A, B, C = one_hot(1), one_hot(4), one_hot(3)


def test_the_table_has_each_id_once_first_in_plan_order(tmp_path: Path) -> None:
    scored = stored(
        tmp_path / "scored",
        [
            [Document("x", "s", A), Document("y", "s", B), Document("x", "s", A)],
            [],
            [Document("y", "t", B), Document("1", "t", C, id_type="number"), Document("1", "t", A)],
        ],
        scored=True,
    )
    made = collected(tmp_path, scored)
    rows = [(row["id"], row["id_type"], row["safety_score"]) for row in table(made, "classifications")]
    assert rows == [("x", "string", 1), ("y", "string", 4), ("1", "number", 3), ("1", "string", 1)]
    assert table(made, "by_address") == []
    counts = made.statistics
    assert (counts["rows"], counts["classifications"], counts["by_address"], counts["without_score"]) == (6, 4, 0, 0)
    unique = {source: entry["unique_by_class"] for source, entry in counts["by_source"].items()}
    assert unique["s"] == {"0": 0, "1": 1, "2": 0, "3": 0, "4": 1, "5": 0}
    assert unique["t"] == {"0": 0, "1": 1, "2": 0, "3": 1, "4": 0, "5": 0}


def test_what_no_id_tells_is_listed_by_address_and_what_has_no_score_nowhere(tmp_path: Path) -> None:
    scored = stored(
        tmp_path / "scored",
        [
            [Document(None, "s", A), Document("x", "s", B), Document("nothing")],
            [Document("x", "s", C), Document("x", "s", B), Document(None, "s", A), Document(None)],
        ],
        scored=True,
    )
    made = collected(tmp_path, scored)
    assert [row["id"] for row in table(made, "classifications")] == ["x"]
    by_address = [(row["shard_index"], row["row"], row["safety_score"]) for row in table(made, "by_address")]
    assert by_address == [(0, 0, 1), (1, 0, 3), (1, 2, 1)]
    assert made.statistics["without_score"] == 2


def replayed(root: Path, documents: Shards, classified: Artifact) -> Shards:
    assert classified.folder is not None
    found = files(classified.folder)
    inputs: dict[str, Any] = {"files": found, "digests": digests(found), "memory": 200_000_000}
    published = ArtifactStore(root / "scorer").save(plan_artifact(join_published, documents=documents, **inputs))
    store = Store(root / "replayed")
    store.save(documents.map(join_part, published=published), Inline())
    return store.load()


PROBABILITIES = st.sampled_from([None, A, B, C, one_hot(1, 0.4)])
DOCUMENTS = st.builds(
    Document, id=st.none() | st.text("ab", max_size=1), probabilities=PROBABILITIES, address=st.none()
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.lists(DOCUMENTS, max_size=6), min_size=1, max_size=4))
def test_replaying_the_classifications_gives_the_same_digests(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Document]]
) -> None:
    """Also where a published table by address knew some rows of an id, and not others."""
    folder = tmp_path_factory.mktemp("replay")
    scored = stored(folder / "scored", parts, scored=True)
    classified = collected(folder, scored)
    again = replayed(folder, stored(folder / "documents", parts), classified)
    assert again.root_digest == scored.root_digest
    assert collected(folder / "again", again).root_digest == classified.root_digest


TEXTS = {"p": A, "q": B, "r": C}
POOL = st.lists(st.tuples(st.none() | st.text("ab", max_size=1), st.sampled_from("pqr")), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pool=POOL, parts=st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=4))
@example(pool=[("a", "p"), ("a", "q")], parts=[[0, 1], [1, 0], [1]])
def test_a_mixture_that_uses_documents_more_than_once_is_replayed_exactly(
    tmp_path_factory: pytest.TempPathFactory, pool: list[tuple[str | None, str]], parts: list[list[int]]
) -> None:
    """A row has the score of the first text of its id in its part, so a document may have two."""
    made = []
    for part in parts:
        first: dict[str | None, str] = {}
        drawn = [(number, *pool[number]) for number in (chosen % len(pool) for chosen in part)]
        texts = [text if i is None else first.setdefault(i, text) for _, i, text in drawn]
        made.append([Document(i, "s", TEXTS[t], address=(0, n)) for (n, i, _), t in zip(drawn, texts, strict=True)])
    folder = tmp_path_factory.mktemp("mixture")
    scored = stored(folder / "scored", made, scored=True)
    classified = collected(folder, scored)
    again = replayed(folder, stored(folder / "documents", made), classified)
    assert again.root_digest == scored.root_digest
    assert collected(folder / "again", again).root_digest == classified.root_digest


def test_files_end_after_their_number_of_rows_and_memory_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [[Document(str((7 * part + row) % 60), "s", one_hot(row % 6)) for row in range(20)] for part in range(5)]
    scored = stored(tmp_path / "scored", parts, scored=True)
    whole = collected(tmp_path, scored)
    assert collected(tmp_path / "memory", scored, memory=1 << 30).root_digest == whole.root_digest
    monkeypatch.setattr(classifications, "FILE_ROWS", 10)
    monkeypatch.setattr(classifications, "_GROUP_ROWS", 4)
    made = collected(tmp_path / "small", scored)
    for name, schema in (("classifications", SCORES_BY_ID), ("by_address", SCORES_BY_ADDRESS)):
        assert table(made, name) == table(whole, name)
        assert made.folder is not None
        paths = sorted(made.folder.glob(f"{name}_*"))
        sizes = [pq.read_metadata(path).num_rows for path in paths]
        assert sizes == [10] * (len(sizes) - 1) + [len(table(whole, name)) - 10 * (len(sizes) - 1)]
        assert all(pq.read_schema(path).equals(schema) for path in paths)
    assert made.statistics == whole.statistics


def test_margins_are_distances_to_another_class_and_to_the_other_side_of_a_threshold() -> None:
    p = np.array([[0.5, 0.25, 0.125, 0.125, 0, 0], [0, 0, 0.375, 0.3125, 0.3125, 0]], np.float32)
    assert score_margins(p).tolist() == [
        [0.25, 0.25, 0.375, 0.375, 0.5, 0.5],
        [0.0625, 0.375, 0.375, 0.0625, 0.0625, 0.375],
    ]


def test_documents_near_another_class_or_the_threshold_are_counted(tmp_path: Path) -> None:
    near_class = [0.4375, 0.375, 0.1875, 0.0, 0.0, 0.0]  # class 0, 0.0625 from 1; 0.4375 from 3
    near_both = [0.0, 0.0, 0.375, 0.4375, 0.1875, 0.0]  # class 3, 0.0625 below
    far = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    documents = [Document("a", "s", near_class), Document("b", "s", near_both), Document("c", "s", far)]
    scored = stored(tmp_path / "scored", [documents], scored=True)
    of_s = collected(tmp_path, scored, near=(0.01, 0.0625)).statistics["by_source"]["s"]["near"]
    assert of_s["0.01"]["of_class"] == dict.fromkeys("012345", 0)
    assert of_s["0.0625"]["of_class"] == {**dict.fromkeys("012345", 0), "0": 1, "3": 1}
    assert of_s["0.0625"]["of_threshold_3"] == {**dict.fromkeys("012345", 0), "3": 1}
    assert of_s["0.0625"]["of_threshold_1"] == {**dict.fromkeys("012345", 0), "0": 1}


def test_a_score_that_is_not_the_most_probable_class_is_counted(tmp_path: Path) -> None:
    documents = stored(tmp_path / "documents", [[Document("a"), Document("b")]])
    (tmp_path / "tables").mkdir()

    write_scores(tmp_path / "tables/0.parquet", [("a", A), ("b", A)], safety_score=pa.array([1, 2], pa.int8()))
    found = files(tmp_path / "tables")
    inputs: dict[str, Any] = {"files": found, "digests": digests(found), "memory": 200_000_000}
    published = ArtifactStore(tmp_path / "scorer").save(plan_artifact(join_published, documents=documents, **inputs))
    store = Store(tmp_path / "scored")
    store.save(documents.map(join_part, published=published), Inline())
    assert collected(tmp_path, store.load()).statistics["score_is_not_argmax"] == 1


def test_the_report_keeps_the_two_distributions_apart() -> None:
    def counts(*of: int) -> dict[str, int]:
        return {str(k): n for k, n in enumerate(of)}

    scored = {"s": {"rows_by_class": counts(9, 0, 0, 3, 0, 0), "distinct_by_class": counts(6, 0, 0, 2, 0, 0)}}
    near = {"0.05": {"of_class": counts(1, 0, 0, 1, 0, 0), "of_threshold_3": counts(0, 0, 0, 1, 0, 0)}}
    classified = {"s": {"unique_by_class": counts(4, 0, 0, 1, 0, 0), "near": near}}
    rows = score_table(scored, classified, 3)
    assert [(row["source"], row["class"]) for row in rows] == [(s, k) for s in ("s", "all sources") for k in range(6)]
    assert rows[3] == {
        "source": "s",
        "class": 3,
        "class_name": "3_moderate",
        "rows": 3,
        "once_a_part": 2,
        "scored_by_id": 1,
        "without_score": 0,
        "once": 1,
        "share_once_a_part": 0.25,
        "share_once": 0.2,
        "difference": pytest.approx(-0.05),
        "within_0.05_of_another_class": 1,
        "within_0.05_of_threshold_3": 1,
    }
    assert {**rows[9], "source": "s"} == rows[3]
    assert "within_0.05_of_threshold_0" not in score_table(scored, classified, 0)[0]


def test_a_row_is_scored_or_has_a_score_by_its_id_or_has_none() -> None:
    def counts(*of: int) -> dict[str, int]:
        return {str(k): n for k, n in enumerate(of)}

    scored = {
        "a": {"rows_by_class": counts(9, 0, 0, 3, 0, 0), "distinct_by_class": counts(5, 0, 0, 2, 0, 0)},
        "b": {"rows_by_class": counts(4, 0, 0, 0, 0, 0), "distinct_by_class": counts(4, 0, 0, 0, 0, 0)},
    }
    classified = {name: {"unique_by_class": counts(1, 0, 0, 1, 0, 0), "near": {}} for name in scored}
    assert row_counts(scored, 2) == {
        "rows_in": 16,
        "rows_scored": 11,
        "rows_scored_by_id": 3,
        "rows_without_score": 2,
    }
    assert set(row_counts({}, 0).values()) == {0}

    def of(source: str, known: dict[str, Any], without: int) -> list[tuple[Any, Any]]:
        lines = score_table(scored if len(known) > 1 else {"a": scored["a"]}, known, 3, without)
        return [(line["scored_by_id"], line["without_score"]) for line in lines if line["source"] == source]

    none = [(0, 0)] * 2
    assert of("all sources", classified, 2) == [(2, 2), *none, (1, 0), *none]
    assert of("a", classified, 2) == [(None, None), *none, (1, 0), *none], "which source they are of is not counted"
    assert of("a", classified, 0) == [(4, 0), *none, (1, 0), *none]
    assert of("a", {"a": classified["a"]}, 2) == [(2, 2), *none, (1, 0), *none]
