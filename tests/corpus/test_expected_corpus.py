"""A tree of 40 files like the published corpus, through the pipelines of conf/spp with both levels of ``expect``."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from everytoken import parameters as models
from everytoken.configuration import JobConfigLoader
from everytoken.corpus import ExpectationError
from everytoken.pipelines import annotation, ingestion, subsampling, tokenization
from everytoken.pipelines.replay.pipeline import restore_pipeline
from everytoken.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[2]
FILES, IDS = 40, 6  # of a file, each twice; one id is in two files
CAP = 47  # content tokens
SCORED = FILES * IDS - FILES // 2  # of every second file one id is not in the published scores
FORWARD = (ingestion, annotation, subsampling, tokenization)


def write_tree(folder: Path) -> None:
    """Write the files, and the published scores of most of their ids."""
    scores = []
    for number in range(FILES):
        rows = []
        for i in range(IDS):
            name = "shared" if i == 0 and number < 2 else f"{number}-{i}"
            words = " ".join(hashlib.sha256(f"{name} {k}".encode()).hexdigest()[:9] for k in range(3 + 8 * (i % 3)))
            rows += [{"id": name, "text": f"Document {name}: {words}"}] * 2
            if number % 2 == 0 or i != 1:
                scores.append((name, 4 if i in (2, 3) else 0))
        path = folder / f"data/common_crawl-{number % 4:04d}/shard_{number:08d}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstd.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    ids, classes = zip(*dict(scores).items(), strict=True)
    (folder / "scores").mkdir()
    probabilities = pa.array([[float(k == s) for k in range(6)] for s in classes], pa.list_(pa.float32()))
    table = {"id": ids, "safety_score": pa.array(classes, pa.int8()), "safety_probs": probabilities}
    pq.write_table(pa.table(table), folder / "scores/0.parquet")


class Corpus:
    """The environment ``spp`` over the tree: a data folder, and what is expected of it."""

    def __init__(self, tree: Path, data: Path, expect: Mapping[str, Any], **more: Any) -> None:
        self.data = data
        small = {
            "ingestion": {
                "plan": {"n_shards": FILES, "expect_shards": None},
                "sources": {"dolma3": {"upstream": {"kind": "path", "root": str(tree)}}},
            },
            "annotation": {
                "scorer": {"upstream": {"kind": "path", "root": str(tree / "scores")}, "max_missing_share": 0.2},
                "memory": 1 << 27,
            },
            "tokenization": {
                "tokenizer": {
                    "kind": "train",
                    "vocab_size": 400,
                    "min_frequency": 2,
                    "special_tokens": ["<|endoftext|>"],
                },
                **{"seq_length": 64, "reflection_budget": 16, "shuffle_memory": 1 << 20},
                "engine": "tokenizers",
                "certificate": {"cases": 1, "documents": 1},
            },
            "replay": {"memory": 1 << 27, **more},
        }
        loader = JobConfigLoader(str(ROOT / "conf"), env="spp", runtime_params=small, **CONFIG_LOADER_ARGS)
        places = {"data": str(data), "raw": str(data / "raw"), "engine": {"kind": "inline"}}
        loader["globals"] = {**loader["globals"], **places}
        self.catalog = DataCatalog.from_config(loader["catalog"])
        given = {**loader["parameters"], "expect": expect}
        for name in ("ingestion", "annotation", "subsampling", "tokenization", "replay", "expect"):
            model = getattr(models, f"{name.capitalize()}Parameters")
            self.catalog[f"params:{name}"] = MemoryDataset(model.model_validate(given[name]))

    def run(self, *packages: Any) -> None:
        for package in packages:
            SequentialRunner().run(package.create_pipeline(), self.catalog)

    def ledgers(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(self.data.rglob("ledger.json"))}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    write_tree(folder)
    return folder


@pytest.fixture(scope="module")
def made(tree: Path) -> Corpus:
    """The corpus of the tree, of which nothing was expected."""
    corpus = Corpus(tree, tree / "made", {})
    corpus.run(*FORWARD)
    return corpus


def shuffled() -> list[int]:
    order = list(range(FILES))
    random.Random(42).shuffle(order)
    return order


def rows_of(made: Corpus) -> dict[str, int]:
    return {f"{split}_rows": made.catalog.load(f"{split}_documents").rows for split in ("annotated", "unannotated")}


def true_of(made: Corpus) -> dict[str, Any]:
    tokenizer = made.data / "05_model_input/tokenizer/tokenizer.json"
    return {
        "shards": FILES,
        "first_shards": shuffled()[:5],
        "tokenizer_sha256": hashlib.sha256(tokenizer.read_bytes()).hexdigest(),
        "longest_document": CAP,
    }


def test_both_levels_are_checked_and_nothing_is_made_again(
    made: Corpus, tree: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, rows = made.ledgers(), rows_of(made)
    compared = {
        **{"annotated_rows": rows["annotated_rows"], "unannotated_rows": 925_065_551},
        **{"scored_rows": SCORED, "scored_ids": SCORED},
    }
    expect = {"fatal": true_of(made), "compare": compared, "because": "They read other files"}
    again = Corpus(tree, made.data, expect)
    with caplog.at_level(logging.INFO, logger="everytoken"):
        again.run(*FORWARD)
    said = [record.getMessage() for record in caplog.records]
    assert f"annotated rows: {rows['annotated_rows']:,}, as expected" in said
    assert f"unannotated rows: found {rows['unannotated_rows']:,}, expected 925,065,551. They read other files" in said
    assert f"scored rows: {SCORED:,}, as expected" in said
    assert f"scored ids: found {SCORED - 1:,}, expected {SCORED:,}. They read other files" in said, (
        "one is in two files"
    )
    assert again.ledgers() == before


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"shards": 63_911}, "shards: found 40, expected 63,911"),
        ({"first_shards": [1502, 22656, 56218, 17774, 7487]}, "first shards: found [{}], expected [1502, 22656"),
        ({"revisions": {"dolma3": "6" * 40}}, "revisions: found {{}}, expected {{'dolma3': '666"),
    ],
)
def test_another_order_of_shards_stops_before_a_file_is_read(
    tree: Path, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    corpus = Corpus(tree, tmp_path / "data", {"fatal": wrong})
    with pytest.raises(ExpectationError) as caught:
        corpus.run(ingestion)
    assert message.format(", ".join(map(str, shuffled()[:5]))) in str(caught.value)
    assert [path.name for path in (tmp_path / "data/01_raw").iterdir()] == ["upstream_files.json"], "and no plan"
    assert not (tmp_path / "data/02_intermediate/upstream_documents").exists()


def test_the_first_of_the_order_are_the_same_for_every_slice_of_it(tree: Path, tmp_path: Path) -> None:
    corpus = Corpus(tree, tmp_path / "data", {"fatal": {"first_shards": shuffled()[:5]}})
    given = corpus.catalog.load("params:ingestion")
    plan = given.plan.model_copy(update={"offset": 30, "n_shards": 10})
    corpus.catalog["params:ingestion"] = MemoryDataset(given.model_copy(update={"plan": plan}))
    corpus.run(ingestion)
    assert corpus.catalog.load("shard_plan")["order"] == shuffled()[30:]


@pytest.mark.parametrize(
    ("package", "wrong", "message"),
    [
        (annotation, {"scored_rows": 1}, f"scored rows: found {SCORED}, expected 1"),
        (annotation, {"scored_ids": 1}, f"scored ids: found {SCORED - 1}, expected 1"),
        (subsampling, {"annotated_rows": 1}, "annotated rows: found "),
        (tokenization, {"tokenizer_sha256": "0" * 64}, "tokenizer sha256: found "),
        (tokenization, {"longest_document": 1919}, f"longest document: found {CAP}, expected 1,919"),
        (tokenization, {"share_at_cap": 0.999}, "share at cap: found 0."),
    ],
)
def test_a_fatal_value_stops_the_pipeline_that_finds_it(
    made: Corpus, tree: Path, package: Any, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExpectationError) as caught:
        Corpus(tree, made.data, {"fatal": wrong}).run(package)
    assert message in str(caught.value)


def test_another_tokenizer_stops_before_anything_is_encoded(made: Corpus, tree: Path, tmp_path: Path) -> None:
    corpus = Corpus(tree, tmp_path / "data", {"fatal": {"tokenizer_sha256": "0" * 64}})
    for name in ("annotated_documents", "unannotated_documents", "exclusions"):
        corpus.catalog[name] = MemoryDataset(made.catalog.load(name), copy_mode="assign")
    with pytest.raises(ExpectationError):
        corpus.run(tokenization)
    assert [path.parent.name for path in (tmp_path / "data").rglob("ledger.json")] == ["tokenizer"]


@pytest.mark.slow
def test_the_rows_of_a_published_manifest_are_fatal_in_its_replay(made: Corpus, tree: Path, tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "examples/published_manifest.py"))["main"](made.data, tmp_path / "manifest")
    place, rows = {"release": str(tmp_path / "manifest")}, rows_of(made)
    wrong = {"compare": {**rows, "unannotated_rows": rows["unannotated_rows"] + 1}}
    with pytest.raises(ExpectationError, match=r"unannotated rows: found (\d+), expected \d+\."):
        SequentialRunner().run(restore_pipeline(), Corpus(tree, tmp_path / "data", wrong, **place).catalog)
    assert not (tmp_path / "data/02_intermediate/upstream_documents").exists(), "no document was read"
    right = Corpus(tree, tmp_path / "data", {"fatal": {"shards": FILES}, "compare": rows}, **place)
    SequentialRunner().run(restore_pipeline(), right.catalog)
    assert rows_of(right) == rows


def test_the_report_of_scores_names_classes_and_what_became_of_rows(made: Corpus) -> None:
    metrics = made.catalog.load("annotation_metrics")
    without = FILES // 2 * 2  # both rows of an id without an entry
    rows = FILES * IDS * 2
    assert metrics["counts"] == {
        **{"rows_in": rows, "rows_scored": SCORED},
        **{"rows_scored_by_id": rows - SCORED - without, "rows_without_score": without},
    }
    report = pd.read_csv(made.data / "08_reporting/score_report.csv")
    everything = report[report["source"] == "all sources"]
    names = ["0_safe", "1_minimal", "2_mild", "3_moderate", "4_significant", "5_severe"]
    assert everything["class_name"].tolist() == names
    assert everything["without_score"].tolist() == [without, 0, 0, 0, 0, 0]
    counted = everything[["once_a_part", "scored_by_id", "without_score"]].sum(axis=1)
    assert counted.tolist() == everything["rows"].tolist() and sum(counted) == rows
    assert (report[report["source"] == "dolma3"].drop(columns="source").to_numpy().tolist()) == (
        everything.drop(columns="source").to_numpy().tolist()
    )
