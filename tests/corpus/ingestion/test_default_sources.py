"""The real files of the default run: needs the package index, as every first run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everytoken.corpus.ingestion.plan import make_shard_plan, part_values
from everytoken.corpus.ingestion.source import Source, find_files
from tests.corpus.ingestion.test_ingest import read_rows_of
from tests.corpus.ingestion.test_shard_plan import plan_parameters
from tests.corpus.part_tables import collect
from tests.corpus.reading.read_rows import LIMITS
from tests.corpus.upstreams.test_source import AS_IT_IS

CHAMP = {
    **AS_IT_IS,
    "upstream": {
        "kind": "wheel",
        "project": "champ-dataset",
        "version": "1.0.0",
        "sha256": "aa59df5ae28e2ec76a401a46faf3d6395920be8009a01ce451f7d5c131d82201",
        "member": "champ_dataset/dataset_files/v0.json",
    },
    "records": "problems",
    "renderer": {"kind": "champ"},
    "rows_per_shard": None,
}
MMLU_COT = {
    **AS_IT_IS,
    "upstream": {
        "kind": "wheel",
        "project": "lm-eval",
        "version": "0.4.13",
        "sha256": "5daaa1973bf874005f64f28d3834b875f6886f0d6475878e6a6c821994a5286a",
        "member": "lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json",
    },
    "renderer": {"kind": "flan_cot"},
    "rows_per_shard": None,
}


@pytest.mark.parametrize(("source", "rows", "strata"), [(CHAMP, 270, 5), (MMLU_COT, 282, 57)])
def test_a_default_source_gives_what_its_card_says(
    source: dict[str, Any], rows: int, strata: int, tmp_path: Path
) -> None:
    sources = {"s": Source.model_validate(source)}
    files = {"s": find_files("s", sources["s"].upstream, tmp_path)}
    values, _ = part_values(make_shard_plan(sources, files, plan_parameters(), LIMITS), sources, files)
    table, statistics = collect(read_rows_of(values[0], min_chars=32))
    assert statistics["rows_in"] == statistics["kept"] == rows
    assert len(statistics["by_source"]["s"]) == strata
    assert len(set(table.column("id").to_pylist())) == rows
    assert table.column("row").to_pylist() == list(range(rows))
