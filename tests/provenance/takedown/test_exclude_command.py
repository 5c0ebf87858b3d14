"""`everytoken exclude`: the documents are gone from every stream, nothing else moves, and what changed is said."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result
from kedro.framework.startup import bootstrap_project
from kedro.runner import SequentialRunner

from everytoken import settings
from everytoken.cli import cli
from everytoken.cli.project import session_of
from everytoken.configuration import ConfigurationError, ConfigurationHook
from everytoken.corpus.exclusion import ExcludedId, read_list, write_list
from everytoken.pipelines import annotation, ingestion, subsampling, tokenization
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.indexes.document_index import index_documents, open_document_index
from everytoken.provenance.lookup.dataset_locations import Places
from everytoken.provenance.lookup.document_records import DocumentRecords
from everytoken.provenance.lookup.runs import TRAINED
from everytoken.provenance.takedown import exclusion_lists as list_in_force_module
from everytoken.provenance.takedown.exclusion_request import InForce, Request, WantedId, find_documents
from everytoken.shards import Ledger, Store, artifact_root_digest, value_digest
from everytoken.tokens import DataParameters, open_indexed, open_training_windows
from everytoken.tokens.checks.integrity import verify
from everytoken.tokens.streams import packed
from tests.provenance.small_job import ROOT, SmallJob, write_upstream
from tests.tokens.corpora import stored

BATCH, STEPS = 3, 60
DATA = {
    "schedule": "integer",
    "weights": None,
    "replay": None,
    "later_epochs": "permuted",
    "seed": 3,
    "check": "sizes",
    "document_mask": False,
}
STORES = ("exclusions", "held_out_documents", "annotated_tokens", "unannotated_tokens")


class Project:
    """A Kedro project whose configuration is that of a small job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.first: dict[str, np.ndarray] = {}  # the windows before anything was excluded
        write_upstream(folder)
        (folder / "upstream/excluded.jsonl").write_text("")
        job = SmallJob(folder)
        job.run(ingestion, annotation, subsampling, tokenization)
        self.data, self.catalog = job.data, job.catalog
        shutil.copy(ROOT / "pyproject.toml", folder)
        shutil.copytree(ROOT / "src/everytoken", folder / "src/everytoken")
        (folder / "conf/base/catalog").mkdir(parents=True)
        for name in ("factories", "ingestion", "annotation", "subsampling", "tokenization", "training", "release"):
            shutil.copy(ROOT / f"conf/base/catalog/{name}.yml", folder / "conf/base/catalog")
        (folder / "conf/local").mkdir()
        shutil.copy(ROOT / "conf/base/mlflow.yml", folder / "conf/base")
        globals_ = yaml.safe_load((ROOT / "conf/base/globals.yml").read_text())
        globals_ |= {"data": str(job.data), "raw": str(folder / "raw"), "engine": {"kind": "inline"}}
        (folder / "conf/base/globals.yml").write_text(yaml.safe_dump(globals_))
        parameters = json.loads(json.dumps(job.parameters))
        parameters["subsampling"]["exclude"] = None
        (folder / "conf/base/parameters.yml").write_text(yaml.safe_dump(parameters))

    def exclude(self, lines: list[str], *options: str, file: str = "ids") -> Result:
        path = self.folder / "asked.txt"
        path.write_text("".join(f"{line}\n" for line in lines))
        result = CliRunner().invoke(cli, ["exclude", f"--{file}", str(path), *options])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.data / "08_reporting/exclusion_report.json").read_text())
        return found

    def files(self) -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_ino, path.read_bytes()) for path in self.data.rglob("*") if path.is_file()}

    def windows(self, name: str) -> np.ndarray:
        return np.array(open_indexed(self.data / f"05_model_input/{name}_stream/{name}").windows())

    def ledger(self, name: str) -> Ledger:
        return Ledger.read(next(self.data.rglob(f"{name}/ledger.json")))

    def train(self) -> np.ndarray:
        """Write the ledger that a training of both streams leaves; return stream and window of each sample."""
        folders = {name: self.data / f"05_model_input/{name}_stream" for name in ("compact", "annotated")}
        digests = {
            name: json.loads((path / "ledger.json").read_text())["root_digest"] for name, path in folders.items()
        }
        recipe = {
            "function": TRAINED,
            "version": 1,
            "parameters": {
                "streams": [[name, {"digest": digest}] for name, digest in digests.items()],
                "data": DATA,
                "special_tokens_in_text": "literal",
                "initial": None,
            },
        }
        statistics = {"steps": STEPS, "batch_size": BATCH, "seq_length": 64, "skipped_steps": 0}
        ledger = {
            "format": "everytoken-artifact/1",
            "fingerprint": "f",
            "recipe": recipe,
            "root_digest": artifact_root_digest({}, statistics),
            "files": {},
            "statistics": statistics,
            "measured": {},
        }
        folder = self.data / "06_models/checkpoint"
        folder.mkdir(parents=True)
        (folder / "ledger.json").write_text(json.dumps({**ledger, "checksum": value_digest(ledger)}))
        opened = open_training_windows(folders, DataParameters(**DATA), BATCH)
        return np.stack(opened.locate(np.arange(STEPS * BATCH)), axis=1)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    logging.disable(logging.INFO)
    folder = tmp_path_factory.mktemp("exclude") / "project"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        # not recorded by MLflow, which takes longer than all else here and is tested for itself
        patch.setattr(settings, "HOOKS", (ConfigurationHook(),))
        # kedro sets these to the project, and the commands go to its folder
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        patch.chdir(folder)
        yield Project(folder)
    bootstrap_project(ROOT)
    logging.disable(logging.NOTSET)


def places_of(project: Project, is_meant: Callable[[dict[str, Any]], bool]) -> dict[str, list[str]]:
    """Return the texts of the documents that are meant, by split."""
    found: dict[str, list[str]] = {}
    for split in ("annotated", "unannotated", "held_out"):
        for part in Store(project.data / f"04_feature/{split}_documents").load():
            rows = part.table(["id", "source", "row", "text"]).to_pylist()
            found.setdefault(split, []).extend(row["text"] for row in rows if is_meant(row))
    return found


def test_what_is_in_no_split_is_an_error_that_says_what_is_known(project: Project) -> None:
    before = project.files()
    result = project.exclude(["shared", "nobody has this"])
    assert result.exit_code == 1
    assert "id 'nobody has this' is in no split: nothing that was read has it" in result.output
    assert "--allow-missing" in result.output
    for spelled in ("articles\t0\t4000", "articles/0/4000"):
        result = project.exclude([spelled], file="addresses")
        assert "address articles/0/4000 is in no split" in result.output
    assert result.exit_code == 1
    assert "no such row" in result.output or "no_such_row" in result.output or "not_planned" in result.output
    result = project.exclude(["articles 0 -4"], file="addresses")
    assert "line 1 is 'articles 0 -4'; expected an address, SOURCE/FILE/ROW" in result.output
    assert project.files() == before


def test_a_dry_run_changes_nothing(project: Project) -> None:
    before = project.files()
    result = project.exclude(["shared"], "--dry-run")
    assert result.exit_code == 0, result.output
    assert "4 documents to exclude; 0 entries are in force already" in result.output
    assert result.output.splitlines()[-1].startswith("nothing was changed; run it without --dry-run")
    assert project.files() == before


@pytest.mark.slow
def test_documents_are_taken_down_even_if_the_first_try_is_stopped(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = project.train()
    ids = ["shared", "open-9", "open-10", "notes-7", *(f"articles-{i}" for i in range(10, 22))]
    gone = places_of(project, lambda row: row["id"] in ids)
    assert all(gone.values()), "some in every split"
    old = {name: project.windows(name) for name in ("compact", "annotated")}
    project.first.update(old)
    ledgers = {name: project.ledger(name) for name in STORES}
    with monkeypatch.context() as patch:
        patch.setattr(packed, "write_padded_stream", _stop)
        result = project.exclude(ids)
    assert result.exit_code == 1
    assert "stopped" in result.output
    assert (old["compact"] != project.windows("compact")).any()
    assert (old["annotated"] == project.windows("annotated")).all()

    result = project.exclude(ids, "--reason", "asked for")
    assert result.exit_code == 0, result.output
    report = project.report()
    assert "an earlier try was stopped" in result.output
    assert report["faults"] == []
    assert len(report["documents"]) == sum(map(len, gone.values()))
    for number, (name, windows) in enumerate(old.items()):
        changed = np.flatnonzero((windows != project.windows(name)).any(axis=1))
        assert report["streams"][name]["changed_windows"] == changed.tolist() != []
        held = {one["window"] for document in report["documents"] for one in document["windows"].get(name, [])}
        assert set(changed.tolist()) <= held
        read = [(i // BATCH, window) for i, (stream, window) in enumerate(samples.tolist()) if stream == number]
        seen = {
            (one["step"], one["window"])
            for document in report["documents"]
            for one in document["exposures"]
            if one["stream"] == name
        }
        assert seen == {one for one in read if one[1] in held}
        faults = [check for check in verify(project.data / f"05_model_input/{name}_stream", "full") if not check.ok]
        assert not faults
    _require_gone(project, gone)
    values = [part.value["addresses"] for part in project.ledger("exclusions").parts]
    touched = {part.name for part, value in zip(project.ledger("exclusions").parts, values, strict=True) if value}
    assert 0 < len(touched) < len(values)
    assert not (project.data / "07_model_output").exists(), "nothing was run that does not hold the documents"
    for name in STORES[1:]:
        again = {
            new.name
            for old_part, new in zip(ledgers[name].parts, project.ledger(name).parts, strict=True)
            if old_part != new
        }
        assert again == touched, name


def _stop(*_: Any, **__: Any) -> None:
    raise RuntimeError("stopped")


def _require_gone(project: Project, gone: dict[str, list[str]]) -> None:
    texts = {text for of_split in gone.values() for text in of_split}
    files = [*project.data.glob("05_model_input/*/*.parquet"), *project.data.glob("04_feature/held_out*/*.parquet")]
    for path in files:
        table = pq.read_table(path)
        if "text" in table.column_names:
            assert not texts & set(table["text"].to_pylist()), path


@pytest.mark.slow
def test_what_a_training_read_of_a_document_that_is_taken_down_stays_known(project: Project) -> None:
    """Its streams are gone; the same steps are told as before, by the indexes that were kept."""
    told = {
        (one["number"], one["split"]): sorted([seen["step"], seen["sequence"]] for seen in one["exposures"])
        for one in project.report()["documents"]
        if one["id"] == "shared" and one["split"] != "held_out"
    }
    result = CliRunner().invoke(cli, ["exposure", "--id", "shared", "--json"])
    assert result.exit_code == 0, result.output
    found = {
        (one["document"]["number"], one["document"]["split"]): sorted(
            [seen["step"], seen["sequence"]] for seen in one["exposures"]
        )
        for one in json.loads(result.output)["documents"]
    }
    assert found == told
    assert any(told.values())


@pytest.mark.slow
def test_lists_add_up_and_earlier_steps_stay_known(project: Project) -> None:
    earlier = project.report()
    old = project.windows("compact")
    row = next(row for row in range(30, 60) if places_of(project, _is("notes", row))["unannotated"])
    gone = places_of(project, _is("notes", row))
    result = project.exclude([f"notes\t0\t{row}"], file="addresses")
    assert result.exit_code == 0, result.output
    assert "1 documents to exclude; 16 entries are in force already and stay so" in result.output
    report = project.report()
    assert report["earlier"][0]["documents"] == earlier["documents"]
    assert report["streams"]["compact"]["before"] == earlier["streams"]["compact"]["after"]
    changed = np.flatnonzero((old != project.windows("compact")).any(axis=1)).tolist()
    assert report["streams"]["compact"]["changed_windows"] == changed != []
    assert report["notes"] == [], "the run is known, although its streams were made again since"
    assert [run["name"] for run in report["runs"]] == ["checkpoint"]
    excluded = sum(len(part.value["addresses"]) for part in project.ledger("exclusions").parts)
    assert excluded == len(earlier["documents"]) + 1
    _require_gone(project, gone)

    before = project.files()
    result = project.exclude([f"notes\t0\t{row}"], file="addresses")
    assert (result.exit_code, result.output) == (0, "all of these are excluded already: there is nothing to do\n")
    assert project.files() == before


def _is(source: str, row: int) -> Callable[[dict[str, Any]], bool]:
    return lambda found: (found["source"], found["row"]) == (source, row)


def list_in_force(project: Project) -> dict[str, str]:
    sha256 = project.ledger("exclusions").recipe["parameters"]["sha256"]
    return {"path": str(project.data / f"04_feature/excluded_documents/{sha256[:16]}.jsonl"), "sha256": sha256}


def exclude_of_run(given: dict[str, Any]) -> dict[str, str] | None:
    with session_of(None, {"subsampling": given} if given else {}) as session:
        listed = session.load_context().params["subsampling"].exclude
        return None if listed is None else listed.model_dump()


@pytest.mark.slow
def test_a_plain_run_keeps_documents_out_and_makes_nothing_again(project: Project) -> None:
    assert exclude_of_run({}) == list_in_force(project)
    before = project.files()
    with session_of(None, {}) as session:
        session.run(
            pipeline_names=["subsampling", "tokenization"],
            to_outputs=["held_out_documents", "compact_stream", "annotated_stream"],
            runner=SequentialRunner(),
        )
    assert {path for path, content in project.files().items() if before.get(path) != content} == set()


@pytest.mark.slow
def test_a_run_that_would_bring_documents_back_is_refused(project: Project) -> None:
    other = project.folder / "other.jsonl"
    in_force = list_in_force(project)
    entries = list(read_list(Path(in_force["path"])))
    shorter = {"path": str(other), "sha256": write_list(entries[1:], other)}
    for given, named in ((shorter, shorter["sha256"]), (None, "null")):
        with pytest.raises(ConfigurationError) as error:
            exclude_of_run({"exclude": given})
        said = str(error.value)
        assert named in said
        assert "conf/local/parameters_subsampling.yml" in said
        assert "--revoke" in said
        lines = said[said.index("\nsubsampling:") :].split("\nor ")[0]
        assert yaml.safe_load(lines) == {"subsampling": {"exclude": in_force}}
        assert exclude_of_run(yaml.safe_load(lines)["subsampling"]) == in_force


@pytest.mark.slow
def test_a_list_of_the_parameters_that_was_not_run_yet_counts_too(project: Project) -> None:
    pending = project.folder / "pending.jsonl"
    sha256 = write_list([ExcludedId("open-30", "string", "asked")], pending)
    given = f"subsampling.exclude.path={pending},subsampling.exclude.sha256={sha256}"
    result = project.exclude(["open-31"], "--dry-run", "--params", given)
    assert result.exit_code == 0, result.output
    assert "2 documents to exclude; 17 entries are in force already and stay so" in result.output
    assert "'open-30'" in result.output


@pytest.mark.slow
def test_documents_are_taken_back_even_if_the_first_try_is_stopped(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = project.exclude(["nobody has this"], "--revoke")
    assert result.exit_code == 1
    assert "id 'nobody has this' is on no list in force" in result.output
    old = {name: project.windows(name) for name in project.first}
    before = project.files()
    result = project.exclude(["shared"], "--revoke", "--dry-run")
    assert "1 entries are taken back, 16 stay in force" in result.output
    assert project.files() == before
    with monkeypatch.context() as patch:
        patch.setattr(packed, "write_padded_stream", _stop)
        assert project.exclude(["shared"], "--revoke").exit_code == 1
    result = project.exclude(["shared"], "--revoke")
    assert result.exit_code == 0, result.output
    report = project.report()
    assert (report["revoked"], report["faults"]) == (True, [])
    assert {one["id"] for one in report["documents"]} == {"shared"}
    for name, windows in old.items():
        held = {one["window"] for document in report["documents"] for one in document["windows"].get(name, [])}
        back = np.array([window in held for window in range(len(windows))])
        assert (project.windows(name)[~back] == windows[~back]).all()
        assert report["streams"][name]["changed_windows"] == np.flatnonzero(back).tolist()

    result = CliRunner().invoke(cli, ["exclude", "--revoke-all"])
    assert result.exit_code == 0, result.output
    for name, windows in project.first.items():
        assert (project.windows(name) == windows).all()
    assert exclude_of_run({}) is None
    assert sum(len(part.value["addresses"]) for part in project.ledger("exclusions").parts) == 0


@pytest.mark.slow
def test_a_take_down_that_is_stopped_amid_a_store_is_finished_by_the_next_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was excluded before both stays so, although no ledger of the store names it meanwhile."""
    ids = ["open-30", "open-31", "open-32"]
    gone = places_of(project, lambda row: row["id"] in ids)
    assert project.exclude(ids[:1]).exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_make", _stop)
        assert project.exclude(ids[1:2]).exit_code == 1
    assert not (project.data / "04_feature/exclusions/ledger.json").exists()
    result = project.exclude(ids[2:], "--dry-run")
    assert result.exit_code == 1
    assert "what it changes is half made: nothing was changed" in result.output
    result = project.exclude(ids[2:])
    assert result.exit_code == 0, result.output
    assert "an earlier try was stopped: this goes on with it" in result.output
    assert [entry.id for entry in read_list(Path(list_in_force(project)["path"]))] == ids
    reports = [*project.report()["earlier"][-2:], project.report()]
    assert [{document["id"] for document in one["documents"]} for one in reports] == [{one} for one in ids]
    assert [one["faults"] for one in reports] == [[], [], []]
    _require_gone(project, gone)


@pytest.mark.slow
def test_of_two_take_downs_at_a_time_one_is_refused(project: Project) -> None:
    before = project.files()
    with list_in_force_module.sole_take_down(project.data / list_in_force_module.LISTS_FOLDER):
        result = project.exclude(["open-33"])
    assert result.exit_code == 1
    assert f"another take-down is running in {project.data}: nothing was changed" in result.output
    assert project.files() == before


@pytest.mark.slow
def test_a_run_that_began_before_a_take_down_brings_nothing_back(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project.exclude(["open-34"]).exit_code == 0  # a run that takes no list has nothing to remember
    lists = project.data / list_in_force_module.LISTS_FOLDER
    old = project.ledger("exclusions")
    # as a take-down does that begins when the run has read its parameters
    monkeypatch.setattr(list_in_force_module, "remember", lambda *_: list_in_force_module.put_in_force(lists, "0" * 64))
    with session_of(None, {}) as session, pytest.raises(ProvenanceError, match="was changed since this run began"):
        session.run(pipeline_names=["subsampling"], to_outputs=["exclusions"], runner=SequentialRunner())
    assert project.ledger("exclusions") == old


def test_an_id_of_two_types_is_asked_back(tmp_path: Path) -> None:
    columns = {"source": ["s"] * 2, "shard_index": pa.array([0, 0], pa.int32()), "row": [0, 1]}
    table = pa.table({"id": ["7", "7"], "id_type": ["integer", "string"], **columns})
    documents = {"annotated": stored(tmp_path / "in", [table])}
    (tmp_path / "index").mkdir()
    index_documents(tmp_path / "index", documents=documents, memory=1 << 20)
    index = open_document_index(tmp_path / "index", documents)
    records = DocumentRecords(Places({}, "test"))

    def found(id_type: str | None) -> Request:
        return find_documents([WantedId("7", id_type)], index, records, InForce((), ()), "asked", False)

    with pytest.raises(ProvenanceError, match=r"'7' belongs to documents .* \['integer', 'string'\].*--id-type"):
        found(None)
    assert found("integer").entries == (ExcludedId("7", "integer", "asked"),)
    assert [document.row for document in found("string").documents] == [1]
