"""The stand-ins of the published systems run whole, on text from PyPI, each to its end and once only."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.test_run import ROOT, Project, made

pytestmark = pytest.mark.slow
_CPU_SECONDS = 300


def of_shards(data: Path) -> None:
    manifest = read(data / "05_model_input/raw_shards/manifest.json")
    sizes = [shard["tokens"] for shard in manifest["shards"]]
    files = sorted((data / "05_model_input/raw_shards").glob("shard_*.bin"))
    ids = [np.fromfile(file, "<u4") for file in files]
    assert sizes == [len(of) for of in ids] == [50_000] * 16
    assert [file.stat().st_size for file in files] == [200_000] * 16
    assert {int(of[-1]) for of in ids} == {50_256}, "every shard ends with a document or its padding"
    assert manifest["padding_tokens"] == sum(shard["padding_tokens"] for shard in manifest["shards"]) > 0
    selection = read(data / "02_intermediate/selection/ledger.json")["statistics"]
    for row in selection["mixture"]:
        assert 0 <= row["tokens"] - row["budget_tokens"] < 20_000, "the budget, and less than a document"
    assert (manifest["vocab_size"], manifest["eos_id"], manifest["dtype"]) == (50_257, 50_256, "uint32")
    statistics = [
        part["statistics"] for part in read(data / "05_model_input/whole_unannotated_tokens/ledger.json")["parts"]
    ]
    assert sum(one["cut_tokens"] for one in statistics) == 0
    assert max(len(one["length_histogram"]) for one in statistics) > 8  # and some are longer than a window of 256
    configuration = read(data / "05_model_input/raw_shards_configuration.json")
    assert (configuration["_tokenizer_family"], configuration["pipeline"]["tokenizer"]["vocab_size"]) == (
        "gpt2",
        50_257,
    )
    assert read(data / "08_reporting/packing_metrics.json")["checks"] > 3
    assert read(data / "08_reporting/training_report.json")["streams"]["raw_shards"]
    assert_beats_unigram(data)
    assert not (data / "03_primary").exists(), "nothing is scored"


def assert_beats_unigram(data: Path) -> None:
    total = read(data / "08_reporting/evaluation_metrics.json")["total"]
    assert total["documents"] > 50
    assert total["of_unigram"] == total["bits_per_byte"] / total["unigram_bits_per_byte"] <= 0.85


def of_chat(data: Path) -> None:
    assert [set(one) for one in read(data / "08_reporting/finetuned_samples.json")] == [
        {"prompt", "before", "before_finish", "after", "after_finish"}
    ]
    assert_beats_unigram(data)
    history = read(data / "08_reporting/training_history.json")
    assert history["budget"][-1] < 0.01 < 0.05 < history["budget"][0], "positions halt after two loops of three"
    assert 0.8e-4 < history["balance"][-1] < 2e-4, "experts are about equally busy"
    checkpoints = data / "06_models/checkpoints"
    kept = sorted(int(folder.name.split("_")[1]) for folder in checkpoints.glob("*/step_*"))
    assert kept == [5, 10, 150, 300, 350, 400], "of each run the newest, the one before, and milestones"
    split = read(data / "08_reporting/splitting_metrics.json")
    assert split["rows"]["annotated"] == 0
    assert sum(split["rows"].values()) == split["rows_in"]
    assert read(data / "08_reporting/training_report.json")["streams"].keys() == {"compact"}
    assert not (data / "03_primary").exists(), "nothing is scored"


def of_corpus(data: Path) -> None:
    assert read(data / "08_reporting/training_report.json")["streams"].keys() == {"compact", "reflected", "canary"}
    reflections = read(data / "08_reporting/reflections_metrics.json")
    assert reflections["by_status"] == {"ok": 24}, "the embedded model fills a frame, which always parses"
    assert 0 < reflections["tokens"]["stored_tokens"] <= reflections["tokens"]["generated_tokens"]
    stream = read(data / "05_model_input/reflected_stream/ledger.json")["statistics"]
    assert stream["reflected_windows"] == 24 and stream["reflection_tokens"]["1p"] > 24
    assert read(data / "08_reporting/evaluation_metrics.json")["total"]["documents"] > 50


@pytest.mark.parametrize(
    ("env", "family", "check"),
    [
        ("mamba_small", "mamba3", of_shards),
        ("mythos_small", "open_mythos", of_chat),
        ("spp_small", "llama", of_corpus),
    ],
)
def test_a_stand_in_runs_to_its_end_and_makes_nothing_again(
    env: str, family: str, check: Callable[[Path], None], tmp_path: Path
) -> None:
    project = Project(tmp_path / "project")
    shutil.copytree(ROOT / "tests/tokens/canary_documents", project.folder / "tests/tokens/canary_documents")
    reflections = project.folder / "conf/spp_small/parameters_reflection.yml"
    reflections.write_text(reflections.read_text().replace("[0, 200]", "[0, 24]"))  # minutes less
    before = cpu_seconds()
    output = project.kedro("run", "--env", env, PYTHONHASHSEED="1")
    assert cpu_seconds() - before < _CPU_SECONDS
    assert f"model        {family}" in output, "the contract comes first"
    check(tmp_path / "project/data" / env)
    assert made(project.kedro("run", "--env", env)) == []
    assert "step 0, sequence 0" in project.everytoken("trace", "--env", env, "--step", "0")
    if env == "mamba_small":
        assert "padding: " in project.everytoken("trace", "--env", env, "--stream", "raw_shards", "--window", "195")
        assert " checks hold" in project.everytoken("verify", "--env", env, "--full")
        assert "tokens of padding at the ends of the raw_shards" in project.everytoken("summary", "--env", env)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
