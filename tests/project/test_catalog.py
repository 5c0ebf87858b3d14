"""The catalog: every dataset by name, so that a dataset factory never catches one by mistake, and its digests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kedro.framework.context import KedroContext
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.io import DataCatalog
from kedro.validation import validate_catalog

from everytoken.datasets import DatasetPaths
from everytoken.shards import Artifact, Built, plan_artifact, versioned
from tests.shards.functions import given, sift

ROOT = Path(__file__).resolve().parents[2]
bootstrap_project(ROOT)

# by type and folder: the last part of a path is the name of its dataset, but for those of OTHER_PATHS
DATASETS = {
    ("JsonFile", "01_raw"): "shard_plan upstream_changes",
    ("UpstreamFiles", "01_raw"): "reflection_files score_files sft_files upstream_files",
    ("ArtifactFolder", "02_intermediate"): (
        "counting_certificate counting_tokenizer document_matches duplicates evaluation_ngrams "
        "manifest_contradictions ngram_counts selection"
    ),
    ("ShardStore", "02_intermediate"): (
        "canary_documents contamination document_sketches documents dropped_documents located_documents "
        "languages ngram_matches token_counts upstream_documents"
    ),
    ("WhenMade", "02_intermediate"): "canary_documents_when_made languages_when_made token_counts_when_made",
    ("ArtifactFolder", "03_primary"): "classifications",
    ("JsonFile", "03_primary"): "scorer_metadata",
    ("ShardStore", "03_primary"): "scored_documents",
    ("JsonFile", "04_feature"): "subsampling_metadata",
    ("ShardStore", "04_feature"): (
        "annotated_documents exclusions held_out_documents token_estimates unannotated_documents"
    ),
    ("ArtifactFolder", "05_model_input"): (
        "annotated_index canary_index chat_index compact_index document_index engine_certificate "
        "published_reflections_index raw_shards "
        "raw_shards_index reflected_end_index reflected_index reflected_refusals_index reflected_summaries_index"
    ),
    ("JsonFile", "05_model_input"): "raw_shards_configuration released_job",
    ("ShardStore", "05_model_input"): (
        "annotated_manifest annotated_tokens canary_tokens held_out_manifest preflections_columns "
        "reflection_end_columns reflections_columns refusal_reflection_columns rephrasing_safelm_columns "
        "reflections_manifest summaries_columns unannotated_manifest unannotated_tokens whole_annotated_tokens "
        "whole_unannotated_tokens "
        "withheld_ids"
    ),
    ("TokenStream", "05_model_input"): (
        "annotated_stream canary_stream chat_windows compact_stream reflected_end_stream reflected_refusals_stream "
        "reflected_stream reflected_summaries_stream"
    ),
    ("TokenizerFile", "05_model_input"): "tokenizer",
    ("WhenMade", "05_model_input"): (
        "canary_stream_when_made canary_tokens_when_made raw_shards_when_made reflections_columns_when_made "
        "reflection_end_columns_when_made refusal_reflection_columns_when_made summaries_columns_when_made "
        "reflected_end_stream_when_made "
        "reflected_refusals_stream_when_made reflected_stream_when_made reflected_summaries_stream_when_made "
        "whole_annotated_tokens_when_made whole_unannotated_tokens_when_made"
    ),
    ("ArtifactFolder", "06_models"): "scorer",
    ("Checkpoint", "06_models"): "checkpoint finetuned_checkpoint pretrained_checkpoint",
    ("ArtifactFolder", "07_model_output"): (
        "finetuned_generations generations held_out_evaluation memorisation_evaluation pretrained_generations "
        "sft_chats sft_prompts"
    ),
    ("RankedReplies", "07_model_output"): (
        "preflections_replies reflection_end_replies reflections_replies refusal_reflection_replies "
        "rephrasing_safelm_replies sft_replies summaries_replies"
    ),
    ("CsvFile", "08_reporting"): "ingestion_report language_report score_report strata_report tokenization_report",
    ("FigureFile", "08_reporting"): (
        "bits_per_byte_by_source finetuning_loss_curve ingestion_figure loss_curve memorisation_by_condition "
        "mixture_by_source "
        "pretraining_loss_curve score_distribution tokens_by_source"
    ),
    ("HtmlFile", "08_reporting"): (
        "preflections_page reflection_end_page reflections_page refusal_reflection_page rephrasing_safelm_page "
        "summaries_page"
    ),
    ("JsonFile", "06_models"): "chat_format",
    ("JsonFile", "08_reporting"): (
        "annotation_metrics canary_metrics canary_triggers contamination_report evaluation_metrics "
        "finetuned_samples finetuning_history finetuning_metrics finetuning_report generated_samples "
        "ingestion_metrics memorisation_metrics packing_metrics preflections_metrics pretraining_history "
        "pretraining_metrics "
        "pretraining_report reflection_end_metrics reflections_metrics refusal_reflection_metrics "
        "release_metrics release_report replay_metrics replay_report sft_metrics splitting_metrics subsampling_metrics "
        "rephrasing_safelm_metrics summaries_metrics tokenization_metrics "
        "training_history training_metrics training_report verification_metrics verification_report"
    ),
    ("ReleaseFolder", "08_reporting"): "release",
    ("ShardStore", "08_reporting"): "annotated_split unannotated_split",
}
PLANS = (  # in memory: what a release compares with the datasets of these names
    "annotated_documents annotated_stream annotated_tokens canary_documents canary_stream canary_tokens "
    "classifications compact_stream contamination document_sketches documents dropped_documents duplicates "
    "evaluation_ngrams exclusions held_out_documents ngram_counts ngram_matches raw_shards scored_documents scorer "
    "selection token_estimates tokenizer unannotated_documents unannotated_tokens upstream_documents "
    "whole_annotated_tokens whole_unannotated_tokens reflected_stream reflected_end_stream reflected_refusals_stream "
    "reflected_summaries_stream"
)
OTHER_PATHS = {
    "canary_documents_when_made": "canary_documents",
    "canary_stream_when_made": "canary_stream",
    "canary_tokens_when_made": "canary_tokens",
    "languages_when_made": "languages",
    "raw_shards_when_made": "raw_shards",
    "reflections_columns_when_made": "reflections_columns",
    "reflection_end_columns_when_made": "reflection_end_columns",
    "refusal_reflection_columns_when_made": "refusal_reflection_columns",
    "summaries_columns_when_made": "summaries_columns",
    "reflected_end_stream_when_made": "reflected_end_stream",
    "reflected_refusals_stream_when_made": "reflected_refusals_stream",
    "reflected_stream_when_made": "reflected_stream",
    "reflected_summaries_stream_when_made": "reflected_summaries_stream",
    **{
        f"{run}_replies": f"reflections/{run}"
        for run in (
            "preflections",
            "reflection_end",
            "reflections",
            "refusal_reflection",
            "rephrasing_safelm",
            "sft",
            "summaries",
        )
    },
    "subsampling_metadata": "metadata.json",
    "token_counts_when_made": "token_counts",
    "whole_annotated_tokens_when_made": "whole_annotated_tokens",
    "whole_unannotated_tokens_when_made": "whole_unannotated_tokens",
}
SUFFIXES = {
    "CsvFile": ".csv",
    "FigureFile": ".json",
    "HtmlFile": ".html",
    "JsonFile": ".json",
    "UpstreamFiles": ".json",
}
STORED = {"ArtifactFolder", "Checkpoint", "ReleaseFolder", "ShardStore", "TokenStream", "TokenizerFile", "WhenMade"}


@pytest.fixture(scope="module", params=["local", "test", "replay"])
def context(request: pytest.FixtureRequest) -> Iterator[KedroContext]:
    with KedroSession.create(project_path=ROOT, env=request.param) as session:
        yield session.load_context()


def _names() -> list[str]:
    names = {name for pipeline in pipelines.values() for name in pipeline.datasets()}
    return sorted(name for name in names if not name.startswith("params:") and name != "parameters")


def test_every_dataset_of_a_pipeline_is_of_this_type_and_path(context: KedroContext) -> None:
    data = ROOT / context.config_loader["globals"]["data"]
    listed = {
        name: (kind, str(data / folder / OTHER_PATHS.get(name, name + SUFFIXES.get(kind, ""))))
        for (kind, folder), names in DATASETS.items()
        for name in names.split()
    }
    catalog = context.catalog
    planned = {f"{name}_as_planned" for name in PLANS.split()}
    assert {name for name in _names() if type(catalog[name]).__name__ == "MemoryDataset"} == planned
    stored = set(_names()) - planned
    found = {name: (type(catalog[name]).__name__, str(catalog[name]._describe()["filepath"])) for name in stored}
    assert found == listed


def test_every_entry_and_every_factory_is_used(context: KedroContext) -> None:
    resolver = context.catalog.config_resolver
    entries = {name for name in context.config_loader["catalog"] if not name.startswith("_")}
    assert len(entries) < 70
    assert entries == {name if name in entries else resolver.match_dataset_pattern(name) for name in _names()}


def test_what_has_digests_has_a_validator_that_no_load_waits_for(context: KedroContext) -> None:
    catalog = context.catalog
    stored = {name for name in _names() if type(catalog[name]).__name__ in STORED}
    assert set(catalog.validator_specs) == stored and len(stored) == 93
    assert not any(spec.enabled for spec in catalog.validator_specs.values())


def test_paths_are_those_of_the_catalog(context: KedroContext) -> None:
    paths, catalog = DatasetPaths(context.config_loader["catalog"], ROOT), context.catalog
    for name in _names():
        if not name.endswith(("_when_made", "_as_planned")):
            assert str(paths[name]) == str(catalog[name]._describe()["filepath"])


CATALOG: dict[str, dict[str, Any]] = {
    "{kind}_stream": {
        "type": "everytoken.datasets.TokenStream",
        "filepath": "{kind}_stream",
        "validator": {"class": "everytoken.datasets.verify_content", "on": "load", "enabled": False},
    },
    "other_stream": {"type": "everytoken.datasets.TokenStream", "filepath": "elsewhere"},
    "none_when_made": {"type": "everytoken.datasets.WhenMade", "dataset": {}},
    "{dataset}_as_planned": {"type": "MemoryDataset"},
}


def test_paths_hold_what_is_there_and_give_what_is_not(tmp_path: Path) -> None:
    for name in ("compact_stream", "other_stream", ".half_stream", "compact_stream_2"):
        (tmp_path / name).mkdir()
    paths = DatasetPaths(CATALOG, tmp_path)
    assert dict(paths) == {"compact_stream": tmp_path / "compact_stream", "other_stream": tmp_path / "elsewhere"}
    assert "canary_stream" not in paths and paths["canary_stream"] == tmp_path / "canary_stream"
    for name in ("data/canary_stream", "compact", "none_when_made", "compact_stream_as_planned"):
        with pytest.raises(KeyError):
            paths[name]


@versioned("test_catalog.write", 1)
def _write(folder: Path) -> Built:
    (folder / "tokens.bin").write_bytes(b"1234")
    return Built({})


def test_validate_catalog_finds_a_changed_byte(tmp_path: Path) -> None:
    entry = {**CATALOG["{kind}_stream"], "filepath": str(tmp_path / "{kind}_stream")}
    catalog = DataCatalog.from_config({"{kind}_stream": entry})
    catalog.save("compact_stream", plan_artifact(_write))
    names = ["compact_stream", "canary_stream"]
    results = validate_catalog(catalog, names)
    assert results["compact_stream"].status == "passed"
    assert results["canary_stream"].status == "errored"  # it does not exist
    (tmp_path / "compact_stream/tokens.bin").write_bytes(b"1235")
    assert isinstance(catalog.load("compact_stream"), Artifact)  # a load compares sizes
    result = validate_catalog(catalog, names)["compact_stream"]
    assert result.status == "failed" and "tokens.bin is not the file that was written" in str(result.message)


def test_validate_catalog_reads_the_rows_that_were_set_aside(tmp_path: Path) -> None:
    entry = {"type": "everytoken.datasets.ShardStore", "filepath": str(tmp_path), "engine": {"kind": "inline"}}
    catalog = DataCatalog.from_config({"rows": {**entry, "validator": CATALOG["{kind}_stream"]["validator"]}})
    catalog.save("rows", given(2).map(sift))
    assert validate_catalog(catalog)["rows"].status == "passed"
    (changed,) = tmp_path.glob("*set_aside.parquet")
    changed.write_bytes(bytes(changed.stat().st_size))
    result = validate_catalog(catalog)["rows"]
    assert result.status == "failed" and changed.name in str(result.message)
