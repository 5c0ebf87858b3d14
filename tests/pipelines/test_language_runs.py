"""Languages in whole runs: off they leave nothing, on they are a dataset and a table, and strata of the draw."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from everytoken.shards import Store
from tests.test_run import Project, made

RUN = ("run", "--env", "test", "--pipelines")
LANGUAGES = "{kind: langid, version: 0.4.0, max_characters: 300, min_letters: 120, min_confidence: 0.5}"
STRATA = "{key: language, languages: [en], shares: {en: 1.0, other: 0.0}}"


def give(project: Project, pipeline: str, lines: str) -> None:
    (project.folder / f"conf/test/parameters_{pipeline}.yml").write_text(f"{pipeline}:\n{lines}\n")


@pytest.mark.slow
def test_they_are_a_dataset_a_table_and_strata(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    data = project.folder / "data/test"
    without = project.kedro(*RUN, "ingestion,annotation,subsampling")
    assert "language" not in without and not (data / "02_intermediate/languages").exists()
    digests = project.digests()

    give(project, "subsampling", f"  target_tokens: 100000\n  strata: {STRATA}")
    refused = project.kedro(*RUN, "ingestion,annotation,subsampling", expect=1)
    assert "subsampling.strata.key is language, and ingestion.languages is null" in refused
    alone = project.kedro(*RUN, "subsampling", expect=1)
    assert "run the pipeline languages first (kedro run --pipelines languages)" in alone

    (ingestion := project.folder / "conf/test/parameters_ingestion.yml").write_text(
        f"{ingestion.read_text()}  languages: {LANGUAGES}\n"
    )
    output = project.kedro(*RUN, "ingestion")
    assert made(output) == ["languages 4"] and "languages, by characters: en " in output
    table = pd.read_csv(data / "08_reporting/language_report.csv", keep_default_na=False)
    documents, languages = (Store(data / "02_intermediate" / name).load() for name in ("documents", "languages"))
    assert table[table["group"] == "all"]["documents"].sum() == documents.rows == languages.rows
    for part, found in zip(documents, languages, strict=True):
        assert part.table(["source", "shard_index", "row"]) == found.table(["source", "shard_index", "row"])

    assert "annotated_documents 4" in made(project.kedro(*RUN, "subsampling"))
    english = {
        tuple(row[name] for name in ("source", "shard_index", "row"))
        for part in languages
        for row in part.table().to_pylist()
        if row["language"] == "en"
    }
    taken = 0
    for split in ("annotated", "unannotated"):
        for part in Store(data / f"04_feature/{split}_documents").load():
            rows = part.table(["source", "shard_index", "row"]).to_pylist()
            assert {tuple(row.values()) for row in rows} <= english
            taken += len(rows)
    assert 100 < taken < len(english) < documents.rows
    now = project.digests()
    drawn = {"token_estimates", "annotated_documents", "unannotated_documents"}
    assert {name for name in digests if now[name] != digests[name]} <= drawn
    assert made(project.kedro(*RUN, "ingestion,annotation,subsampling")) == []
    assert pq.read_schema(data / "02_intermediate/languages/part_00000.parquet").names[-2:] == [
        "language",
        "confidence",
    ]

    project.everytoken("report", "--env", "test", "--no-mlflow")
    report = (data / "08_reporting/report.md").read_text(encoding="utf-8")
    assert "\n## Languages\n" in report and f"| all sources | en | {len(english):,} |" in report
