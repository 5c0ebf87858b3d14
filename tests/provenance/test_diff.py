"""``everytoken diff A B``: which parameters, which stage first, which documents; of data folders and releases."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from everytoken.cli import cli
from everytoken.corpus.exclusion import ExcludedAddress, write_list
from everytoken.provenance.diff.builds import BuildDifferences, diff_builds
from everytoken.provenance.diff.document_differences import compare_documents
from everytoken.shards import Part, Rows, Store, make_engine, versioned
from tests.provenance.builds import build, release_of, write_texts
from tests.provenance.replay.test_replay import own_parameters, replay
from tests.tokens.corpora import stored

STAGES = ["shard_plan", "upstream_documents", "documents", "scored_documents", "annotated_documents"]
STAGES += ["unannotated_documents", "held_out_documents", "tokenizer", "annotated_tokens", "unannotated_tokens"]
STAGES += ["compact_stream", "annotated_stream"]
RELEASE = "08_reporting/release"
SPLITS = ("annotated_documents", "unannotated_documents", "held_out_documents")
SAME = "the streams are the same; every document is the same\n"
CHANGED = "another text in the place of one, and long enough to be kept " * 2


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``first``; ``drawn`` with another seed of the draw, ``shuffled`` of the streams; ``edited``, with one text.

    ``taken_down`` is ``first`` without one document of each split, ``replayed`` what its release gives again.
    """
    folder = tmp_path_factory.mktemp("builds")
    write_texts(folder / "texts")
    write_texts(folder / "edited_texts", {5: CHANGED})
    for name, texts, other in [
        ("first", "texts", {}),
        ("drawn", "texts", {"subsampling__seed": 43}),
        ("edited", "edited_texts", {}),
    ]:
        release_of(build(folder / name, folder / texts, **other))
    build(folder / "shuffled", folder / "texts", tokenization__seed=7)
    down = [ExcludedAddress(*address(rows(folder / "first", dataset)[3]), "asked for") for dataset in SPLITS]
    listed = {"path": str(folder / "list.jsonl"), "sha256": write_list(down, folder / "list.jsonl")}
    release_of(build(folder / "taken_down", folder / "texts", subsampling__exclude=listed))
    replay(folder / "replayed", folder / "taken_down" / RELEASE, own_parameters(folder / "texts"))
    return folder


def diff(a: Path, b: Path, limit: int = 3) -> BuildDifferences:
    return diff_builds(a, b, stages=STAGES, limit=limit, memory=1 << 27)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["diff", *map(str, arguments)])


def rows(folder: Path, dataset: str) -> list[dict[str, Any]]:
    (place,) = folder.glob(f"*/{dataset}")
    return [row for part in Store(place).load() for row in part.table().to_pylist()]


def address(row: Any) -> tuple[str, int, int]:
    get = row.get if isinstance(row, dict) else lambda name: getattr(row, name)
    return get("source"), get("shard_index"), get("row")


def test_equal_builds_are_said_to_be_in_a_line(builds: Path) -> None:
    for a, b in [("first", "first"), ("first", f"first/{RELEASE}"), (f"first/{RELEASE}", f"first/{RELEASE}")]:
        found = command(builds / a, builds / b)
        assert found.exit_code == 0, found.output
        assert found.output.startswith(SAME)
        (line,) = [line for line in found.output.splitlines() if line.startswith("equal")]
        assert line.startswith("equal: all ") and line.endswith(" stages that both have hold the same")
        assert "differ" not in found.output


def test_another_draw_is_named_by_its_seed_its_stage_and_its_documents(builds: Path) -> None:
    a, b = (
        {address(row): split for split in SPLITS for row in rows(builds / name, split)} for name in ("first", "drawn")
    )
    expected = {
        "only_in_a": {place for place in a if place not in b},
        "only_in_b": {place for place in b if place not in a},
        "split_changed": {place for place in a if place in b and a[place] != b[place]},
    }
    for one, other in [("first", "drawn"), (f"first/{RELEASE}", "drawn"), (f"first/{RELEASE}", f"drawn/{RELEASE}")]:
        found = diff(builds / one, builds / other, limit=100)
        assert found.parameters == {"subsampling.seed": (42, 43)}
        first, *after = found.different
        assert first == "annotated_documents"
        assert {"unannotated_documents", "tokenizer", "compact_stream"} <= set(after)
        assert "held_out_documents" in found.equal and "scored_documents" in found.equal
        assert found.documents is not None and found.documents.datasets == SPLITS
        for kind, places in expected.items():
            assert found.documents.counts[kind] == len(places) > 0
            assert {address(document) for document in found.documents.first[kind]} == places, kind
        assert found.documents.counts["text_changed"] == found.documents.counts["score_changed"] == 0
    moved = found.documents.first["split_changed"][0]
    assert moved.in_a is not None and moved.in_b is not None
    dataset, number = moved.in_a
    assert address(rows(builds / "first", dataset)[number]) == address(moved)


def test_documents_that_were_taken_down_are_told_from_all_others(builds: Path) -> None:
    *of_streams, held_out = [address(rows(builds / "first", dataset)[3]) for dataset in SPLITS]
    for first in ("first", f"first/{RELEASE}"):
        for other in ("taken_down", f"taken_down/{RELEASE}"):
            # a release has no row of a held-out document that was taken down, and nothing that names it
            named, lost = (of_streams, [held_out]) if RELEASE in other else ([*of_streams, held_out], [])
            forth, back = (first, other, "a", "b"), (other, first, "b", "a")
            for a, b, in_a, in_b in [forth, back] if first == "first" else [forth]:
                found = diff(builds / a, builds / b)
                assert found.documents is not None and found.documents.datasets == SPLITS and not found.is_same
                told = {kind: [address(one) for one in places] for kind, places in found.documents.first.items()}
                assert {kind: places for kind, places in told.items() if places} == {
                    f"taken_down_in_{in_b}": named,
                    **({f"only_in_{in_a}": lost} if lost else {}),
                }
                assert {kind: len(places) for kind, places in told.items()} == found.documents.counts
    changed = diff(builds / "first", builds / "taken_down").parameters
    assert list(changed) == ["subsampling.exclude.sha256"] and changed["subsampling.exclude.sha256"][0] is None
    said = command(builds / "first", builds / "taken_down").output
    assert "  3 taken down in B:\n" in said
    assert re.search(r"    pieces\S* .*A annotated_documents 3, B annotated_documents 3 \(asked for\)\n", said)


def test_an_exact_replay_is_the_same_although_its_ledgers_say_other_things(builds: Path) -> None:
    outputs = {}
    for side, a, b in [("B", "taken_down", "replayed"), ("A", "replayed", f"taken_down/{RELEASE}")]:
        found = command(builds / a, builds / b)
        outputs[side] = found.output
        assert found.exit_code == 0, found.output
        assert found.output.startswith(SAME) and "  none differs\n" in found.output
        assert f"{', '.join(SPLITS)}: safety_probs is not there in {side}: a replayed" in found.output
        assert "  tokenizer: the same tokenizer.json; what is recorded of how it was made differs\n" in found.output
        assert "parameters that differ" not in found.output
        assert max(map(len, found.output.replace(str(builds), "").splitlines())) <= 120
    told = json.loads(command(builds / "taken_down", builds / "replayed", "--json").output)
    assert told["is_same"] is True
    assert f"one of the two records: {len(told['parameters_of_one'])} (--all shows them)\n" in outputs["B"]
    assert "only in B: " in outputs["B"] and "located_documents" not in outputs["B"]
    whole = command(builds / "taken_down", builds / "replayed", "--all").output
    assert all(name in whole for name in (*told["parameters_of_one"], *told["only_in_a"], *told["only_in_b"]))


def test_a_column_that_documents_are_not_compared_by_is_named(builds: Path, tmp_path: Path) -> None:
    for name in ("04_feature", "05_model_input"):
        shutil.copytree(builds / "first" / name, tmp_path / "other" / name)
    documents = Store(builds / "first/04_feature/held_out_documents").load()
    shutil.rmtree(tmp_path / "other/04_feature/held_out_documents")
    Store(tmp_path / "other/04_feature/held_out_documents").save(
        documents.map(with_other_strata), make_engine("inline")
    )
    found = diff(builds / "first", tmp_path / "other")
    assert list(found.different) == ["held_out_documents"] and found.is_same
    assert found.explained == {"held_out_documents": "stratum differs"}


@versioned("with_other_strata", 1)
def with_other_strata(part: Part) -> Rows:
    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        for batch in part.batches():
            number = batch.schema.get_field_index("stratum")
            strata = pa.array(["other"] * batch.num_rows, batch.schema.field(number).type)
            yield batch.set_column(number, batch.schema.field(number), strata)
        return {}

    return Rows(part.schema, batches())


def test_one_changed_text_is_named(builds: Path) -> None:
    found = diff(builds / "first", builds / "edited")
    assert found.parameters == {}
    assert next(iter(found.different)) == "shard_plan", "it has the digests of the files"
    assert found.documents is not None and found.documents.datasets == ("upstream_documents",)
    assert {kind: count for kind, count in found.documents.counts.items() if count} == {"text_changed": 1}
    (document,) = found.documents.first["text_changed"]
    (expected,) = [row for row in rows(builds / "edited", "upstream_documents") if row["text"] == CHANGED]
    assert address(document) == address(expected) and document.id == "piece-5"


def test_streams_of_another_seed_have_the_same_documents_in_other_windows(builds: Path) -> None:
    for a in ("first", f"first/{RELEASE}"):
        found = diff(builds / a, builds / "shuffled")
        assert found.parameters == {"tokenization.seed": (42, 7)}
        assert list(found.different)[:2] == ["compact_stream", "annotated_stream"]
        assert found.documents is None
        assert found.windows["compact_stream"].different > 0
        assert found.windows["annotated_stream"].in_a == found.windows["annotated_stream"].in_b > 0


def test_documents_that_are_cut_in_place_of_split_are_told_by_the_parameter(builds: Path, tmp_path: Path) -> None:
    build(tmp_path / "cut", builds / "texts", tokenization__long_documents="cut")
    assert (
        "long_documents"
        in json.loads((builds / "first" / RELEASE / "recipe.json").read_text())["parameters"]["tokenization"]
    )
    for a in ("first", f"first/{RELEASE}"):
        found = diff(builds / a, tmp_path / "cut")
        assert found.parameters == {"tokenization.long_documents": ("split", "cut")}
        assert list(found.different)[:1] == ["unannotated_tokens"]


def test_the_command_says_all_of_it_in_words_and_as_json(builds: Path) -> None:
    found = command(builds / "first", builds / "drawn", "--limit", 1)
    assert found.exit_code == 1
    lines = found.output.splitlines()
    assert "  subsampling.seed  42  43" in lines
    assert any(line.startswith("first stage that differs: annotated_documents  ") for line in lines)
    assert any(line.endswith(" in another split, the first 1:") for line in lines)
    told = json.loads(command(builds / "first", builds / "drawn", "--json").output)
    assert told["parameters"] == {"subsampling.seed": [42, 43]}
    assert set(told["documents"]["counts"]) == set(told["documents"]["first"])


def test_what_is_no_build_or_damaged_is_an_error(builds: Path, tmp_path: Path) -> None:
    none = command(builds / "first", tmp_path)
    assert none.exit_code == 2 and f"{tmp_path} holds no build" in none.output
    shutil.copytree(builds / "first/02_intermediate", tmp_path / "02_intermediate")
    (tmp_path / "02_intermediate/documents/ledger.json").write_text("{")
    cut = command(builds / "first", tmp_path)
    assert cut.exit_code == 2 and "documents/ledger.json is no ledger" in cut.output


def test_every_kind_of_difference_is_counted_also_of_documents_that_are_used_twice(tmp_path: Path) -> None:
    def documents(name: str, places: list[int], scores: list[int], ids: dict[int, str] | None = None) -> Any:
        table = pa.table(
            {
                "id": [(ids or {}).get(place, f"d{place}") for place in places],
                "text_sha256": [bytes([place]) * 32 for place in places],
                "source": ["web"] * len(places),
                "shard_index": pa.array([0] * len(places), pa.int32()),
                "row": pa.array(places, pa.int64()),
                "safety_score": pa.array(scores, pa.int8()),
                "tokens": pa.array([[place, 0] for place in places], pa.list_(pa.uint16())),
            }
        )
        return lambda: stored(tmp_path / name, [table])

    found = compare_documents(
        {"documents": documents("a", [1, 2, 3, 4, 5, 5], [0, 0, 0, 0, 0, 0])},
        {"documents": documents("b", [2, 1, 3, 5, 6], [0, 0, 1, 0, 0], {3: "three"})},
        down_in_a=lambda: iter(()),
        down_in_b=lambda: iter(()),
        ids_of_tokens=True,
        limit=9,
        memory=1 << 27,
    )
    assert found.counts == {
        "only_in_a": 2,  # 4, and 5 for the second time
        "only_in_b": 1,
        "taken_down_in_a": 0,
        "taken_down_in_b": 0,
        "split_changed": 0,
        "id_changed": 1,
        "text_changed": 0,
        "score_changed": 1,
        "tokens_changed": 0,
        "order_changed": 2,  # 1 and 2: what is only in one of the two moves no other
    }
    assert [document.row for document in found.first["order_changed"]] == [1, 2]
    assert [document.in_a for document in found.first["only_in_a"]] == [("documents", 3), ("documents", 5)]
