"""Whole runs of ``kedro run --env test`` as a user would do them, in a copy of the project."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from backports import zstd

from everytoken.shards import Store
from everytoken.shards.recipe import fingerprint_of, fingerprint_today
from everytoken.tokens import open_tokenizer
from everytoken.tokens.engines import compare_engines, installed_engines
from tests.shards.children import wait_until
from tests.shards.folders import copy_columns
from tests.warm_kedro import HASH_SEED, Started, run_everytoken, run_kedro

ROOT = Path(__file__).resolve().parents[1]


_MEASURED = ("upstream_files.json", "training_metrics.json", "training_history.json", "training_report.json")


@functools.cache
def _empty_database() -> bytes:
    """The bytes of an MLflow database without an experiment, whose tables take a second to create."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
        return (Path(folder) / "mlflow.db").read_bytes()


class Project:
    """A copy of the project in which tests run Kedro; fetched wheels are shared."""

    def __init__(self, folder: Path, *, database: bool = True) -> None:
        self.folder = folder
        folder.mkdir()
        shutil.copy(ROOT / "pyproject.toml", folder)
        for name in ("conf", "src"):
            # with what is compiled already (but for what is being written now)
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*", "*.egg-info"))
        (folder / "data/01_raw").mkdir(parents=True)
        (ROOT / "data/01_raw/wheels").mkdir(parents=True, exist_ok=True)
        (folder / "data/01_raw/wheels").symlink_to(ROOT / "data/01_raw/wheels")
        if database:
            (folder / "mlflow.db").write_bytes(_empty_database())

    def start(self, *arguments: str, **environment: str) -> Started:
        return Started(["kedro", *arguments], self.folder, self.environment(environment))

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        return {**os.environ, "MLFLOW_TRACKING_URI": "", "DO_NOT_TRACK": "1", **more}

    def kedro(self, *arguments: str, expect: int = 0, **environment: str) -> str:
        """Run kedro and return its output. What Python reads as it starts needs a process that starts."""
        if any(name.startswith("PYTHON") for name, _ in environment.items() - {("PYTHONHASHSEED", HASH_SEED)}):
            command = [sys.executable, "-m", "kedro", *arguments]
            done = subprocess.run(
                command, cwd=self.folder, env=self.environment(environment), stdout=PIPE, stderr=STDOUT, text=True
            )
        else:
            done = run_kedro(arguments, folder=self.folder, environment=self.environment(environment), timeout=600)
        assert done.returncode == expect, done.stdout
        return done.stdout

    def everytoken(self, *arguments: str) -> str:
        done = run_everytoken(arguments, folder=self.folder, environment=self.environment({}), timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def notebook(self, name: str) -> str:
        """Run a notebook as a reader does; return all that its cells show."""
        import nbformat
        from nbclient import NotebookClient

        notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        assert all(not cell.get("outputs") for cell in notebook.cells), "commit it without outputs"
        where = {"metadata": {"path": str(self.folder)}}
        NotebookClient(notebook, timeout=600, startup_timeout=600, resources=where).execute()
        return "".join(str(cell.get("outputs")) for cell in notebook.cells)

    def use_engine(self, engine: str) -> None:
        settings = self.folder / "conf/test/globals.yml"
        settings.write_text(settings.read_text().replace("{kind: inline}", engine))

    def ledgers(self) -> dict[str, dict[str, Any]]:
        """Return every ledger by dataset."""
        return {
            path.parent.name: json.loads(path.read_text()) for path in (self.folder / "data/test").rglob("ledger.json")
        }

    def digests(self) -> dict[str, str]:
        return {name: ledger["root_digest"] for name, ledger in self.ledgers().items()}

    def files(self) -> dict[str, bytes]:
        """Return the bytes of every part, stream, tokenizer and checkpoint, and of what describes them."""
        folder = self.folder / "data/test"
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and path.suffix in (".parquet", ".bin", ".idx", ".npy", ".safetensors", ".json")
            # measured speeds and the place of files on this machine may differ between two runs
            and path.name not in _MEASURED
            and "checkpoints" not in path.parts  # the state of runs while they train: that of other seeds stays
            and (path.name != "ledger.json" or "measured" not in path.read_text())
        }

    def runs(self) -> list[Any]:
        """Return the MLflow runs, oldest first."""
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.folder}/mlflow.db")
        experiment = client.get_experiment_by_name("everytoken")
        assert experiment is not None
        return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])


_MODELS_ON_REQUEST = ("finetuned_checkpoint", "finetuned_generations", "pretrained_checkpoint")
_OF_PARTS = "ingestion,annotation,subsampling,tokenization"  # what engines run; training is one process


def made(output: str) -> list[str]:
    """Return what a run made: store names with the number of parts, and artifact names."""
    parts = re.findall(r"(\w+): ([1-9]\d*) of \d+ parts to make", output)
    return [f"{name} {count}" for name, count in parts] + re.findall(r"(\w+): making it with", output)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project after one complete run."""
    project = Project(tmp_path_factory.mktemp("run") / "project", database=False)
    project.kedro("run", "--env", "test", PYTHONHASHSEED=HASH_SEED)
    yield project


@pytest.fixture(scope="module")
def files(project: Project) -> dict[str, bytes]:
    """The bytes that the complete run left."""
    return project.files()


def test_a_run_makes_every_dataset_and_is_tracked(project: Project, files: dict[str, bytes]) -> None:
    assert len(project.digests()) == 30
    (run,) = project.runs()
    assert run.info.status == "FINISHED"
    parameters = run.data.params
    assert parameters["subsampling.seed"] == "42"
    assert parameters["ingestion.plan.seed"] == "42"
    assert parameters["tokenization.tokenizer.vocab_size"] == "700"
    off = {"evaluation_ngrams", "ngram_matches", "ngram_counts", "contamination", "document_sketches"}
    for name, digest in project.digests().items():
        assert parameters.get(f"digest.{name}") == (None if name in off else digest[:16])
    assert run.data.metrics["evaluation.total.bits_per_byte"] > 0
    assert sorted(model.step for model in run.outputs.model_outputs) == [4, 8], "those that the training keeps"
    assert "training.loss" in run.data.metrics


def test_the_digests_are_those_that_the_changelog_promises(project: Project) -> None:
    """All but those of models, which depend on the machine, and of the comparison of engines, on their versions."""
    promised = json.loads((ROOT / "tests/vectors/digests.json").read_text())
    digests = project.digests()
    assert promised.keys() == digests.keys() - {
        *("checkpoint", "generations", "held_out_evaluation", "engine_certificate")
    }
    assert {name: digests[name] for name in promised} == promised


def test_what_version_0_1_0_made_counts_as_made(project: Project, tmp_path: Path) -> None:
    """Its fingerprints: of artifacts, and of the first part of a store. Those that the CHANGELOG names are not here.

    It knew only documents that are cut.
    """
    shutil.copytree(project.folder, tmp_path / "project", symlinks=True)
    project = object.__new__(Project)
    project.folder = tmp_path / "project"
    project.kedro("run", "--env", "test", "--params", "tokenization.long_documents=cut")
    made = json.loads((ROOT / "tests/vectors/fingerprints_0_1_0.json").read_text())
    ledgers = project.ledgers()
    wanted = {name: ledgers[name].get("fingerprint") or ledgers[name]["parts"][0]["fingerprint"] for name in made}
    tokenizer = open_tokenizer(project.folder / "data/test/05_model_input/tokenizer/tokenizer.json", "<|endoftext|>")
    compared: dict[str, Any] = {"special_tokens_in_text": "literal", "documents": [], "cases": 2000, "seed": 42}
    said = compare_engines(tokenizer, engines=installed_engines(), **compared)[0]
    proof = {key: value for key, value in said.items() if not key.startswith("documents")}
    for name in ("annotated_tokens", "unannotated_tokens"):  # recorded the proof of their engine then
        recipe, inputs = ledgers[name]["recipe"], ledgers[name]["parts"][0]["inputs"]
        described = {**recipe, "parameters": {**recipe["parameters"], "proof": proof}}
        assert fingerprint_of(described, inputs) == made[name]
        made[name] = fingerprint_today(made[name], described, inputs)
    assert wanted == made


def test_what_a_version_made_that_copied_texts_counts_as_made(project: Project, tmp_path: Path) -> None:
    shutil.copytree(project.folder, tmp_path / "project", symlinks=True)
    other = object.__new__(Project)
    other.folder = tmp_path / "project"
    scored, drawn = (other.folder / "data/test" / name for name in ("03_primary", "04_feature"))
    for folder in (scored / "scored_documents", drawn / "annotated_documents", drawn / "unannotated_documents"):
        copy_columns(folder)
        assert not list(folder.glob("*.extended.parquet"))
        assert "text" in pq.read_schema(folder / "part_00000.parquet").names
    assert made(other.kedro("run", "--env", "test")) == []
    assert other.digests() == project.digests()
    (scored / "scored_documents/part_00001.parquet").unlink()
    (drawn / "unannotated_documents/part_00002.parquet").unlink()
    remade = ["scored_documents 1", "unannotated_documents 1"]
    assert made(other.kedro("run", "--env", "test")) == remade, "no token is encoded again"
    assert other.digests() == project.digests()


def test_split_files_hold_the_documents_of_the_splits_with_their_texts(project: Project) -> None:
    project.kedro("run", "--env", "test", "--pipelines", "export")
    for split in ("annotated", "unannotated"):
        drawn = Store(project.folder / f"data/test/04_feature/{split}_documents").load()
        folder = project.folder / f"data/test/08_reporting/{split}_split"
        assert sorted(path.name for path in folder.glob("*.parquet")) == [f"{part.name}.parquet" for part in drawn]
        for part in drawn:
            table = pq.read_table(folder / f"{part.name}.parquet")
            assert table.schema.names[:6] == ["text", "id", "source", "safety_score", "has_annotation", "is_bad"]
            assert table == part.table(table.schema.names)
        assert sum(part.rows for part in drawn) > 0
        shutil.rmtree(folder)


def test_rows_in_are_rows_out_and_set_aside(project: Project) -> None:
    def total(dataset: str, key: str) -> int:
        return sum(int(part["statistics"][key]) for part in project.ledgers()[dataset]["parts"])

    rows = {name: ledger["rows"] for name, ledger in project.ledgers().items() if "rows" in ledger}
    aside = [
        part["set_aside"]["rows"] for part in project.ledgers()["upstream_documents"]["parts"] if part["set_aside"]
    ]
    assert total("upstream_documents", "rows_in") == 1_200 == rows["upstream_documents"] + sum(aside)
    assert rows["upstream_documents"] == rows["documents"] + rows["dropped_documents"]
    assert rows["scored_documents"] == rows["documents"]
    drawn = rows["annotated_documents"] + rows["unannotated_documents"] + rows["held_out_documents"]
    assert rows["scored_documents"] == drawn + total("annotated_documents", "not_drawn")
    assert rows["annotated_tokens"] == rows["annotated_documents"]
    assert rows["unannotated_tokens"] == rows["unannotated_documents"]
    streams = project.ledgers()
    assert streams["annotated_stream"]["statistics"]["windows"] == rows["annotated_documents"]
    tokens_in = total("unannotated_tokens", "tokens") + total("unannotated_tokens", "eos")
    compact = streams["compact_stream"]["statistics"]
    assert tokens_in == compact["tokens"] + compact["remainder_tokens"]


def test_held_out_documents_are_in_no_stream(project: Project) -> None:
    def addresses(dataset: str) -> set[tuple[Any, ...]]:
        parts = Store(project.folder / "data/test/04_feature" / dataset).load()
        tables = [part.table(["source", "shard_index", "row"]) for part in parts]
        return {tuple(row.values()) for table in tables for row in table.to_pylist()}

    held_out = addresses("held_out_documents")
    assert held_out
    assert not held_out & (addresses("annotated_documents") | addresses("unannotated_documents"))


def test_a_second_run_makes_nothing(project: Project, files: dict[str, bytes]) -> None:
    output = project.kedro("run", "--env", "test", PYTHONHASHSEED="2")
    assert made(output) == []
    assert project.files() == files
    stages = re.findall(r"Stage (\d+) of (\d+): [\w.]+$", output, re.MULTILINE)
    assert len(stages) > 20 and stages == [(str(k + 1), str(len(stages))) for k in range(len(stages))]


def test_a_deleted_part_is_made_again_alone(project: Project, files: dict[str, bytes]) -> None:
    (project.folder / "data/test/03_primary/scored_documents/part_00002.parquet").unlink()
    assert made(project.kedro("run", "--env", "test")) == ["scored_documents 1"]
    assert project.files() == files


def test_a_run_that_makes_nothing_leaves_no_run(project: Project) -> None:
    before = [run.info.run_id for run in project.runs()]
    assert "Nothing was made: MLflow has no run of it" in project.kedro("run", "--env", "test")
    assert [run.info.run_id for run in project.runs()] == before


def test_another_seed_changes_what_depends_on_it_and_nothing_else(project: Project, files: dict[str, bytes]) -> None:
    project.kedro("run", "--env", "test", "--pipelines", "subsampling", "--params", "subsampling.seed=43")
    project.kedro("run", "--env", "test", "--pipelines", "subsampling")
    after, before = project.runs()[-2:]
    assert before.data.tags["mlflow.runName"] == "test · subsampling"
    assert after.data.tags["mlflow.runName"] == "test · subsampling · subsampling.seed=43"
    differ = {name for name in before.data.params if before.data.params[name] != after.data.params.get(name)}
    assert differ == {
        "subsampling.seed",
        "digest.annotated_documents",
        "digest.unannotated_documents",
        "digest.subsampling_metadata",
        "digest.subsampling_metrics",
        "digest.mixture_by_source",
        "digest.strata_report",
    }
    project.kedro("run", "--env", "test")
    assert project.files() == files


@pytest.mark.slow  # part by part: tests/shards/test_store.py, and the tests of each pipeline
def test_same_bytes_for_any_engine_and_number_of_workers(tmp_path: Path, files: dict[str, bytes]) -> None:
    """Five workers here and two in the runs that are interrupted below; the other runs are inline."""
    other = Project(tmp_path / "project")
    other.use_engine("{kind: processes, workers: 5}")
    other.kedro("run", "--env", "test", "--pipelines", _OF_PARTS, PYTHONHASHSEED="3")
    made = other.files()
    assert made == {name: files[name] for name in made}
    assert {name.split("/")[1] for name in made} >= {"documents", "scored_documents", "compact_stream"}


@pytest.mark.slow  # the same of a toy: tests/tracking/test_runs.py; of a store: tests/shards/test_crash.py
@pytest.mark.sensitive
@pytest.mark.parametrize(
    ("ending", "engine"), [(signal.SIGINT, "{kind: processes, workers: 2}"), (signal.SIGTERM, "{kind: inline}")]
)
def test_an_interrupted_run_is_killed_in_mlflow_and_resumes(
    tmp_path: Path, files: dict[str, bytes], ending: signal.Signals, engine: str
) -> None:
    other = Project(tmp_path / "project")
    other.use_engine(engine)
    process = other.start("run", "--env", "test")
    first_part = other.folder / "data/test/03_primary/scored_documents/part_00000.parquet"
    wait_until(lambda: first_part.exists() or process.poll() is not None, "no part was scored")
    os.killpg(process.pid, ending)
    output, _ = process.communicate()
    assert process.returncode != 0, output
    (run,) = other.runs()
    assert run.info.status == "KILLED"
    other.kedro("run", "--env", "test")
    assert other.runs()[-1].info.status == "FINISHED"
    assert other.files() == files


@pytest.mark.parametrize(
    ("parameter", "named", "code"),
    [
        ("subsampling.sede=43", "sede", 2),
        ("subsampling.seed=many", "seed", 2),
        ("subsamplign.seed=43", "subsamplign", 1),
        ("annotation.scorer.slope=-1", "slope", 2),
    ],
)
def test_a_wrong_parameter_stops_before_any_work(project: Project, parameter: str, named: str, code: int) -> None:
    before = len(project.runs())
    output = project.kedro("run", "--env", "test", "--params", parameter, expect=code)
    assert named in output.splitlines()[-1] or named in output
    assert "Stage 1 of" not in output
    assert len(project.runs()) == before


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("globals.yml", "dat: data/other\n", "has dat, which nothing reads"),
        ("parameters_mine.yml", "ingestions: {min_chars: 3}\n", "has ingestions, which nothing reads"),
        ("globals.yml", "engine: {kind: inlin}\n", "engine.kind is 'inlin'"),
    ],
)
def test_a_mistyped_key_in_a_file_is_refused(project: Project, file: str, text: str, named: str) -> None:
    folder = project.folder / "conf/mistyped"
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(text)
    output = project.kedro("run", "--env", "mistyped", "--pipelines", "annotation", expect=1)
    shutil.rmtree(folder)
    assert named in output
    assert "Stage 1 of" not in output


@pytest.mark.slow
def test_two_processes_train_on_the_same_samples_as_one(project: Project, files: dict[str, bytes]) -> None:
    folder, digest = project.folder / "data/test/06_models", project.digests()["checkpoint"]
    alone = pq.read_table(folder / "checkpoint/history.parquet")
    for name in ("checkpoint", "checkpoints"):
        shutil.rmtree(folder / name)
    before = len(project.runs())
    told = project.everytoken("train", "--env", "test", "--nodes", "2", "--write-job", "job.json")
    job = json.loads((project.folder / "job.json").read_text())
    assert job["distribution"]["nodes"] == 2 and job["training"]["steps"] == len(alone)
    assert (
        Path(job["streams"]["compact"]).is_dir() and Path(job["held_out"]).is_file() and "torchrun --nnodes 2" in told
    )
    output = project.everytoken("train", "--env", "test", "--processes", "2")
    together = pq.read_table(folder / "checkpoint/history.parquet")
    assert together["loss_tokens"].equals(alone["loss_tokens"])
    np.testing.assert_allclose(together["loss"], alone["loss"], rtol=1e-5)
    ledger = json.loads((folder / "checkpoint/ledger.json").read_text())
    assert [segment["processes"] for segment in ledger["measured"]["segments"]] == [2]
    assert len(project.runs()) == before + 1 and project.runs()[-1].info.status == "FINISHED"
    points = {name for name in project.runs()[-1].data.metrics if name.startswith("training.held_out")}
    assert points == {"training.held_out_bits_per_byte.wikipedia"}, output
    shutil.rmtree(folder / "checkpoint")
    for number in (8, 4):  # what two processes left at step 4 is no start for one: their sums differ in the last bits
        shutil.rmtree(next((folder / "checkpoints").glob(f"*/step_{number:09d}")))
    project.kedro("run", "--env", "test", "--pipelines", "training")
    assert project.digests()["checkpoint"] == digest


def test_a_model_is_finetuned_on_chats_and_trained_on_streams_by_path(
    project: Project, files: dict[str, bytes]
) -> None:
    output = project.kedro("run", "--env", "test", "--pipelines", "finetuning,pretraining")
    assert {"chat_windows", "finetuned_checkpoint", "pretrained_checkpoint"} <= set(made(output))
    ledgers = project.ledgers()
    checkpoint, finetuned = ledgers["checkpoint"], ledgers["finetuned_checkpoint"]
    by_path = ledgers["pretrained_checkpoint"]["statistics"]
    assert by_path["parameters_sha256"] == checkpoint["statistics"]["parameters_sha256"], "the same samples by path"
    assert {"digest": checkpoint["root_digest"]} == finetuned["recipe"]["parameters"]["initial"]
    assert 0 < finetuned["statistics"]["loss_tokens"] < finetuned["statistics"]["tokens"]
    assert made(project.kedro("run", "--env", "test", "--pipelines", "finetuning,pretraining")) == []
    checked = project.everytoken("verify", "--full", "data/test/05_model_input/chat_windows")
    assert "FAIL" not in checked
    data = project.folder / "data/test"
    for name in ("chat_windows", "chat_index", "pretrained_generations", *_MODELS_ON_REQUEST):
        shutil.rmtree(next(data.glob(f"*/{name}")))
    for path in (
        *data.glob("08_reporting/*tuning*"),
        *data.glob("08_reporting/pre*"),
        *data.glob("08_reporting/*tuned*"),
        data / "06_models/chat_format.json",
    ):
        path.unlink()
    assert project.files() == files


def test_an_environment_can_give_a_tokenizer_file(project: Project, files: dict[str, bytes]) -> None:
    """Its keys come on top of base's keys for training one."""
    shutil.copytree(project.folder / "conf/test", project.folder / "conf/given", dirs_exist_ok=True)
    tokenizer = project.folder / "data/test/05_model_input/tokenizer/tokenizer.json"
    sha256 = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    (project.folder / "conf/given/parameters_tokenization.yml").write_text(
        "tokenization:\n  seq_length: 64\n  reflection_budget: 4\n  shuffle_block: 200\n  engine: tokenizers\n"
        f"  tokenizer: {{kind: file, path: {tokenizer}, sha256: {sha256}}}\n"
    )
    (project.folder / "conf/given/globals.yml").write_text("data: data/given\nengine: {kind: inline}\n")
    shutil.copytree(project.folder / "data/test", project.folder / "data/given")
    project.kedro("run", "--env", "given", "--pipelines", "tokenization")
    for stream in ("compact_stream/compact.bin", "annotated_stream/annotated.bin"):
        assert (project.folder / "data/given/05_model_input" / stream).read_bytes() == files[f"05_model_input/{stream}"]


def test_of_a_corpus_that_is_too_small_to_pay_for_it_no_engine_is_proven(project: Project) -> None:
    certificate = project.ledgers()["engine_certificate"]
    assert (certificate["statistics"]["engines"], certificate["measured"]["fastest"]) == ({}, "tokenizers")


@pytest.mark.slow
def test_the_engine_changes_no_digest(project: Project, files: dict[str, bytes]) -> None:
    before = project.ledgers()
    run = ["run", "--env", "test", "--pipelines", "tokenization"]
    tokens = [project.folder / "data/test/05_model_input" / name for name in ("annotated_tokens", "unannotated_tokens")]
    for folder in tokens:
        shutil.rmtree(folder)
    output = project.kedro(*run, "--params", "tokenization.engine=splintr-rs")
    remade = {line.split()[0] for line in made(output)}
    assert remade & before.keys() == {"engine_certificate", "annotated_tokens", "unannotated_tokens"}
    proven = project.ledgers()["engine_certificate"]
    assert proven["statistics"]["engines"]["splintr-rs"]["equal"], "the test environment has the extra 'fast'"
    assert proven["measured"]["fastest"] != "tokenizers"
    output = project.kedro(*run, "--params", "tokenization.engine=tokenizers")
    remade = {line.split()[0] for line in made(output)}
    assert remade == {"engine_certificate"}, "tokens do not depend on the engine"
    after = project.ledgers()
    assert after["engine_certificate"]["statistics"]["engines"] == {}
    for name in set(before) - {"engine_certificate"}:
        assert after[name]["root_digest"] == before[name]["root_digest"], name
    refused = project.kedro(*run, "--params", "tokenization.engine=fasttokens", expect=2)
    assert "fasttokens" in refused and "splintr-rs" in refused
    for folder in tokens:  # their ledgers count documents that the reference encoded again
        shutil.rmtree(folder)
    project.kedro("run", "--env", "test")
    assert project.files() == files


@pytest.mark.slow
def test_canary_windows_and_raw_shards_are_made_on_request_and_verified(
    project: Project, files: dict[str, bytes], tmp_path: Path
) -> None:
    shutil.copytree(project.folder / "data/test", tmp_path / "before")
    shutil.copytree(ROOT / "tests/tokens/canary_documents", project.folder / "tests/tokens/canary_documents")
    project.kedro("run", "--env", "test", "--pipelines", "canary")
    project.kedro("run", "--env", "test", "--pipelines", "packing")
    summary, verified = (
        project.everytoken("summary", "--env", "test"),
        project.everytoken("verify", "--env", "test", "--full"),
    )
    assert re.search(r"canary_stream +18 windows", summary)
    assert re.search(r"raw_shards +[0-9,]+ with EOS", summary)
    assert "characters a token" in summary and ", the reference" in summary
    assert "FAIL" not in verified
    for name in ("canary_stream", "raw_shards", "compact_stream", "annotated_stream", "tokenizer", *project.digests()):
        assert re.search(rf"ok +{name} ", verified), name
    shutil.rmtree(project.folder / "data/test")
    (tmp_path / "before").rename(project.folder / "data/test")


@pytest.mark.slow
def test_the_classifications_of_a_run_score_another_one_without_a_model(
    project: Project, files: dict[str, bytes], tmp_path: Path
) -> None:
    published = tmp_path / "published"
    published.mkdir()
    for table in (project.folder / "data/test/03_primary/classifications").glob("*.parquet"):
        shutil.copy(table, published)
    no_model = tmp_path / "no_model/profanity_check"
    no_model.mkdir(parents=True)
    (no_model / "__init__.py").write_text("raise SystemExit('the model was loaded')\n")
    shutil.copytree(project.folder / "conf/test", project.folder / "conf/replayed", dirs_exist_ok=True)
    (project.folder / "conf/replayed/globals.yml").write_text(
        "data: data/replayed\nengine: {kind: processes, workers: 2}\n"
    )
    (project.folder / "conf/replayed/parameters_annotation.yml").write_text(
        f"annotation:\n  scorer:\n    kind: published\n    upstream: {{kind: path, root: {published}, "
        "pattern: '*.parquet', checksums: null}\n    max_missing_share: 0\n"
    )
    for layer in ("01_raw", "02_intermediate"):
        shutil.copytree(project.folder / "data/test" / layer, project.folder / "data/replayed" / layer)
    run = ("run", "--env", "replayed", "--pipelines", "annotation,subsampling")
    project.kedro(*run, PYTHONPATH=str(no_model.parent))
    first, again = (
        {
            path.parent.name: json.loads(path.read_text())["root_digest"]
            for layer in ("03_primary", "04_feature")
            for path in (project.folder / "data" / data / layer).rglob("ledger.json")
        }
        for data in ("test", "replayed")
    )
    assert again == first
    assert len(first) == 7
    assert made(project.kedro(*run)) == []
    tracked = project.runs()[-1].data.params
    assert tracked["annotation.scorer.kind"] == "published"
    assert tracked["annotation.scorer.upstream.root"] == str(published)
    assert tracked["digest.classifications"] == first["classifications"][:16]


@pytest.mark.slow
def test_the_summary_says_what_was_made_from_something_else(project: Project, files: dict[str, bytes]) -> None:
    def lines() -> dict[str, str]:
        summary = project.everytoken("summary", "--env", "test")
        return {line.split()[0]: line for line in summary.splitlines() if line.strip()}

    fresh = lines()
    assert not [line for line in fresh.values() if "another" in line or "outdated" in line]
    project.kedro("run", "--env", "test", "--pipelines", "subsampling", "--params", "subsampling.seed=44")
    redrawn = lines()
    assert "made from another annotated_documents" in redrawn["annotated_tokens"]
    assert "outdated, as annotated_tokens is" in redrawn["annotated_stream"]
    assert "outdated" in redrawn["checkpoint"]
    assert redrawn["held_out_documents"] == fresh["held_out_documents"]
    ledger = project.folder / "data/test/05_model_input/compact_stream/ledger.json"
    ledger.write_text(ledger.read_text()[:50])
    assert "compact_stream:" in lines()
    project.kedro("run", "--env", "test")
    assert lines() == fresh
    assert project.files() == files


def test_a_failing_part_costs_no_other_and_is_named(tmp_path: Path) -> None:
    other = Project(tmp_path / "project")
    texts = tmp_path / "texts"
    texts.mkdir()
    for name in "abc":
        rows = [{"id": f"{name}{i}", "text": f"document {i} of file {name} " * 5} for i in range(9)]
        (texts / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (texts / "b.jsonl").write_text('{"id": "b0", "text": "cut in the mid\n{"id": "b1", "text": null}\n')
    (other.folder / "conf/test/parameters_ingestion.yml").write_text(
        "ingestion:\n  sources:\n    wikipedia: null\n    chats: null\n    champ: null\n    flan_cot: null\n    mine:\n"
        f"      upstream: {{kind: path, root: {texts}, pattern: '*.jsonl', checksums: null}}\n      format: null\n"
        "      records: null\n      rows_per_shard: null\n"
        "      renderer: {kind: document, text_column: text, id_columns: [id], stratum_column: null}\n"
        "      quality: null\n      min_keep_rate: null\n      max_text_bytes: null\n"
    )
    output = other.kedro("run", "--env", "test", "--pipelines", "ingestion", expect=1)
    assert "1 of 3 parts failed, the other 2 are done and kept" in output
    assert "file b.jsonl: 2 of 2 rows are bad (1 not_json, 1 text_null)" in output
    assert other.runs()[-1].info.status == "FAILED"
    output = other.kedro("run", "--env", "test", "--pipelines", "ingestion", "--params", "ingestion.max_bad_share=1.0")
    assert "upstream_documents 1" in made(output), "a larger share makes the failed part, and no other again"
    strict = other.kedro("run", "--env", "test", "--pipelines", "ingestion", expect=1)
    assert "1 parts have more bad rows than the share 0 allowed" in strict
    output = other.kedro("run", "--env", "test", "--pipelines", "ingestion", "--params", "ingestion.max_bad_share=1.0")
    assert made(output) == []
    report = (other.folder / "data/test/08_reporting/ingestion_report.csv").read_text().splitlines()
    assert report[0] == "source,rows_read,kept,keep_rate,characters,utf8_bytes,not_json,text_null"
    assert report[-1].startswith("all sources,20,18,0.9,") and report[-1].endswith(",1,1")
    (texts / "b.jsonl").write_text(json.dumps({"id": "b0", "text": "mended, and long enough to be kept"}) + "\n")
    output = other.kedro("run", "--env", "test", "--pipelines", "ingestion", "--params", "ingestion.max_bad_share=1.0")
    assert "upstream_documents 1" in made(output)


def write_dolma_tree(root: Path) -> None:
    """A tree as Dolma's: rows with ids that repeat, and one subset without ids."""
    for number in range(5):
        subset = "common_crawl-food-0019" if number < 3 else "stack_edu-Python"
        text = f"a document of shard {number}, as long as a document has to be, in row "
        rows: list[dict[str, Any]] = [{"id": f"{number}-{row // 2}", "text": f"{text}{row // 2}"} for row in range(10)]
        if number >= 3:
            rows = [{"repo_name": "r", "path": f"{number}/{row}.py", "text": f"{text}{row}"} for row in range(10)]
        path = root / "data" / subset / f"shard_{number:08d}.jsonl.zst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zstd.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


@pytest.mark.slow
def test_the_recipe_of_the_trillion_token_corpus_reads_a_local_tree(tmp_path: Path) -> None:
    other = Project(tmp_path / "project")
    write_dolma_tree(tmp_path / "dolma")
    (other.folder / "conf/spp/globals.yml").write_text("data: data/spp\nengine: {kind: inline}\n")
    place = {"kind": "path", "root": tmp_path / "dolma", "checksums": "null"}
    upstream = [f"ingestion.sources.dolma3.upstream.{key}={value}" for key, value in place.items()]
    run = ["run", "--env", "spp", "--pipelines", "ingestion", "--params"]
    read_all = ",".join([*upstream, "ingestion.plan.n_shards=4", "ingestion.plan.expect_shards=5"])
    published = "expected [1502, 22656, 56218, 17774, 7487]"
    assert "shards: found 5, expected 63,911; first shards: found [" in (
        stopped := other.kedro(*run, read_all, expect=1)
    )
    assert published in stopped and not (other.folder / "data/spp/02_intermediate/upstream_documents").exists()
    upstream.append("expect.fatal=null")
    output = other.kedro(*run, ",".join([*upstream, "ingestion.plan.n_shards=4"]), expect=1)
    assert "the upstreams have 5 shards, expect_shards pins 63,911" in output
    given = [*upstream, "ingestion.plan.n_shards=4", "ingestion.plan.expect_shards=5"]
    assert "upstream_documents 4" in made(other.kedro(*run, ",".join(given)))
    metrics = json.loads((other.folder / "data/spp/08_reporting/ingestion_metrics.json").read_text())
    assert (metrics["rows_in"], metrics["documents"], metrics["set_aside"]) == (40, 40, {}), "repeated rows stay"
    assert made(other.kedro(*run, ",".join(given))) == []
    seen = set(read_addresses(other))
    rest = [*upstream, "ingestion.plan.n_shards=1", "ingestion.plan.offset=4", "ingestion.plan.expect_shards=5"]
    other.kedro(*run, ",".join(rest))
    assert not seen & set(read_addresses(other)), "two disjoint slices share no document"
    assert len(seen | set(read_addresses(other))) == 50


def read_addresses(project: Project) -> list[tuple[int, int]]:
    import pyarrow.parquet as pq

    parts = sorted((project.folder / "data/spp/02_intermediate/documents").glob("part_?????.parquet"))
    return [
        tuple(row.values()) for part in parts for row in pq.read_table(part, columns=["shard_index", "row"]).to_pylist()
    ]


@pytest.mark.slow
def test_a_mixture_is_interleaved_and_reported(tmp_path: Path) -> None:
    other = Project(tmp_path / "project")
    mixture = "{weights: {wikipedia: 0.7, flan_cot: 0.3}, target_total_tokens: 40000, chars_per_token: 4.0, "
    mixture += "allow_repeat: {flan_cot: 2}, tolerance: 0.05, documents_per_part: 100}"
    parameters = other.folder / "conf/test/parameters_ingestion.yml"
    parameters.write_text(f"{parameters.read_text()}  mixture: {mixture}\n")
    other.kedro("run", "--env", "test", "--pipelines", "ingestion", "--params", "ingestion.plan.n_shards=null")
    metrics = json.loads((other.folder / "data/test/08_reporting/ingestion_metrics.json").read_text())
    tokens = {source: counts["characters"] / 4 for source, counts in metrics["by_source"].items()}
    assert sum(tokens.values()) == pytest.approx(40_000, rel=0.02)
    assert tokens["wikipedia"] / sum(tokens.values()) == pytest.approx(0.7, abs=0.01)
    assert metrics["set_aside"]["beyond_budget"] > 0


def test_every_store_has_a_preview(project: Project, files: dict[str, bytes]) -> None:
    from everytoken.datasets import ShardStore

    ledgers = sorted((project.folder / "data/test").rglob("ledger.json"))
    assert ledgers
    for ledger in ledgers:
        if "parts" in json.loads(ledger.read_text()):
            preview = ShardStore(filepath=str(ledger.parent), engine={"kind": "inline", "workers": 1}).preview()
            assert json.dumps(preview), "kedro-viz sends it as JSON"


@pytest.mark.slow
def test_a_source_of_which_nothing_stays_is_reported_and_an_empty_corpus_is_an_error(tmp_path: Path) -> None:
    other = Project(tmp_path / "project")
    run = ["run", "--env", "test", "--pipelines", "ingestion", "--params"]
    cap = "ingestion.plan.n_shards=null,ingestion.sources.flan_cot.max_text_bytes=10"
    other.kedro(*run, cap)
    metrics = json.loads((other.folder / "data/test/08_reporting/ingestion_metrics.json").read_text())
    assert metrics["by_source"]["flan_cot"] == {"rows": 0, "characters": 0, "utf8_bytes": 0}
    assert metrics["set_aside"]["beyond_payload_cap"] == 282 - metrics["set_aside"].get("duplicate", 0)
    output = other.kedro(*run, f"{cap},ingestion.sources.wikipedia.max_text_bytes=10", expect=1)
    assert "no document is left of 10,315 rows of the sources ['flan_cot', 'wikipedia']; set aside:" in output


def test_kedro_viz_builds(project: Project, files: dict[str, bytes]) -> None:
    project.kedro("viz", "build", "--include-previews")
    graph = json.loads((project.folder / "build/api/main").read_text())
    pipelines = {pipeline["id"] for pipeline in graph["pipelines"]}
    assert {"ingestion", "annotation", "subsampling", "tokenization", "training", "evaluation"} <= pipelines
    assert graph["layers"] == [
        *("raw", "intermediate", "primary", "feature", "model input", "models", "model output", "reporting")
    ]
    nodes = [json.loads(path.read_text()) for path in (project.folder / "build/api/nodes").iterdir()]
    assert {"JSONPreview", "TablePreview"} <= {node.get("preview_type") for node in nodes}


@pytest.mark.sensitive
def test_the_notebook_runs(project: Project, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEDRO_ENV", "test")
    names = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    tested_elsewhere = {"reflections.ipynb", "mamba.ipynb", "chat_model.ipynb"}  # in tests/reflections and tests/models
    assert names == {"what_a_run_left.ipynb", *tested_elsewhere}
    project.notebook("what_a_run_left")


def test_the_python_of_the_guide_runs(project: Project, files: dict[str, bytes]) -> None:
    guide = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(programs) == 4
    for program in programs:
        program = program.replace("data/0", "data/test/0")
        subprocess.run([sys.executable, "-c", program], cwd=project.folder, check=True)
