"""Each message of docs/troubleshooting.md is printed here, by the fault that its row names, and its remedy helps."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner
from kedro.io import MemoryDataset
from kedro.runner import SequentialRunner

from everytoken.cli import cli
from everytoken.cli.project import cause_of, known_errors
from everytoken.corpus import ExpectParameters
from everytoken.corpus.ingestion import find_files
from everytoken.corpus.upstreams import HubUpstream, PathUpstream
from everytoken.locks import TRUST_VARIABLE, require_locks
from everytoken.parameters import ProvenanceParameters
from everytoken.pipelines import annotation, ingestion, provenance, subsampling, tokenization
from everytoken.provenance.lookup import Places
from everytoken.provenance.lookup.stream_documents import documents_of
from everytoken.reflections import ReflectionParameters
from everytoken.reflections.generators import ServerCommand, task_server
from everytoken.reflections.prompts import read_prompt
from everytoken.shards import file_sha256, sole_writer
from everytoken.system_errors import explained
from everytoken.training.run.launch import run_job
from tests.corpus.upstreams.hub_server import COMMIT, Hub, serve_hub
from tests.provenance.small_job import SmallJob, write_upstream
from tests.reflections.test_merging import SIDECAR, merged, result, run_folder, stream
from tests.shared_assets import shared_folder
from tests.test_run import Project
from tests.text_to_stream.files import EOS, texts, write, write_tokenizer
from tests.training.tiny import newest, tiny_job, write_inputs

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/troubleshooting.md"


@dataclass(frozen=True)
class Place:
    """Where a fault is made: an empty folder, and a job with streams to copy."""

    folder: Path
    made: Path
    project: Project
    patch: pytest.MonkeyPatch

    def job(self, **changes: Any) -> SmallJob:
        """Return a copy of the job, in which parameters are changed."""
        if not (self.folder / "job").exists():
            shutil.copytree(self.made, self.folder / "job")
        return SmallJob(self.folder / "job", changes=changes)


Fault = Callable[[Place], Iterator[str]]
"""Yields what is printed; then applies the remedy, and checks that it helps."""

FAULTS: dict[Fault, str] = {}
"""The symptom of each fault, as its row has it."""


def fault(symptom: str) -> Callable[[Fault], Fault]:
    def add(made: Fault) -> Fault:
        FAULTS[made] = symptom
        return made

    return add


def everytoken(*arguments: object, code: int = 1) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def refused(function: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """Return what the command line prints of the error."""
    with pytest.raises(Exception) as caught:
        function(*arguments, **named)
    assert isinstance(cause_of(caught.value), known_errors()), caught.value
    return str(cause_of(caught.value))


@fault("`SPP_DATA_ROOT: not set`")
def no_data_root(place: Place) -> Iterator[str]:
    job = place.job()
    (job.folder / "upstream").rename(job.folder / "elsewhere")
    upstream = PathUpstream(kind="path", root=str(job.folder / "upstream"), pattern="*.jsonl", checksums=None)
    yield refused(find_files, "articles", upstream, place.folder)
    elsewhere = upstream.model_copy(update={"root": str(job.folder / "elsewhere")})
    assert find_files("articles", elsewhere, place.folder)


@fault("Rebuilt `.idx` differs from corpus-verification on nearly every document")
def another_tokenizer(place: Place) -> Iterator[str]:
    published = place.folder / "published"
    published.mkdir()
    for name in ("annotated.idx", "token_lengths.npy"):
        shutil.copy(place.made / "data/05_model_input/annotated_stream" / name, published)
    changed = place.job(**{"tokenization.tokenizer.vocab_size": 300})
    changed.run(tokenization)
    stream = changed.data / "05_model_input/annotated_stream"
    yield everytoken("verify", stream, "--against", published)
    place.job().run(tokenization)
    everytoken("verify", stream, "--against", published, code=0)


@fault("`token_lengths.npy` max is 1920, not 1919")
def longest_document(place: Place) -> Iterator[str]:
    job = place.job()
    lengths = np.load(job.data / "05_model_input/annotated_stream/token_lengths.npy")

    def expecting(longest: int) -> None:
        value = ExpectParameters.model_validate({"fatal": {"longest_document": longest}})
        job.catalog["params:expect"] = MemoryDataset(value)
        SequentialRunner().run(tokenization.create_pipeline().only_nodes_with_tags("report"), job.catalog)

    yield refused(expecting, int(lengths.max()) - 1)
    expecting(int(lengths.max()))


def sidecar(place: Place, change: Callable[[pa.Table], pa.Table]) -> Iterator[str]:
    job = place.job()
    folder = job.data / "05_model_input/annotated_stream"
    path = folder / "sidecar.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    yield everytoken("verify", folder, "--full")
    job.run(tokenization)
    everytoken("verify", folder, "--full", code=0)


@fault("Reflections attach to the wrong documents: a row was inserted or dropped")
def sidecar_without_a_row(place: Place) -> Iterator[str]:
    yield from sidecar(place, lambda table: table.slice(1))


@fault("Reflections attach to the wrong documents: a row was inserted or dropped")
def sidecar_with_a_row_twice(place: Place) -> Iterator[str]:
    yield from sidecar(place, lambda table: pa.concat_tables([table.slice(0, 1), table]))


@fault("The same: rows were sorted again")
def sorted_sidecar(place: Place) -> Iterator[str]:
    yield from sidecar(place, lambda table: table.sort_by("doc_id"))


@fault("The same: rows of equal lengths were exchanged")
def rows_of_one_length_exchanged(place: Place) -> Iterator[str]:
    def exchanged(table: pa.Table) -> pa.Table:
        lengths = table["token_length"].to_pylist()
        first = next(i for i, length in enumerate(lengths) if length in lengths[i + 1 :])
        second = lengths.index(lengths[first], first + 1)
        order = [*range(len(lengths))]
        order[first], order[second] = second, first
        return table.take(order)

    yield from sidecar(place, exchanged)


def reflection_parameters() -> ReflectionParameters:
    tree = yaml.safe_load((ROOT / "conf/base/parameters_reflection.yml").read_text())["reflection"]
    folder = str(ROOT / "conf/base/reflections/prompts")
    return ReflectionParameters.model_validate({**tree, "prompts": {**tree["prompts"], "folder": folder}})


@fault("`Final prompt not found`")
def no_prompt_of_the_model(place: Place) -> Iterator[str]:
    prompts = reflection_parameters().prompts
    yield refused(read_prompt, prompts, "reflection", "no-such-model")
    assert read_prompt(prompts, "reflection", "qwen3.5-35b-a3b").text


@fault("`Prompt file not found`")
def no_prompt_of_the_version(place: Place) -> Iterator[str]:
    prompts = reflection_parameters().prompts
    later = prompts.model_copy(update={"versions": prompts.versions.model_copy(update={"summary": "v9"})})
    yield refused(read_prompt, later, "summary", "qwen3.5-35b-a3b")
    assert read_prompt(prompts, "summary", "qwen3.5-35b-a3b").text


def started(place: Place, code: str) -> None:
    given = ServerCommand((sys.executable, "-c", code, "{port}"), 0, "/health", 0.05, 0.6, {})
    with task_server(given, place.folder / "log"):
        pytest.fail("it does not start")


@fault("`FATAL: sglang process died`")
def server_that_dies(place: Place) -> Iterator[str]:
    yield refused(started, place, "raise SystemExit('no such model')")


@fault("`FATAL: sglang failed to start after 20 minutes`")
def server_that_does_not_answer(place: Place) -> Iterator[str]:
    yield refused(started, place, "import time; time.sleep(1000)")


@fault("`Missing N rows in results`")
def rows_without_a_result(place: Place) -> Iterator[str]:
    built = stream(place.folder, SIDECAR)
    root = run_folder(place.folder / "run", "reflections", 6, 6, {"00000": [result(0), result(2)]})
    yield refused(merged, place.folder / "columns", root, "reflections", built)
    assert merged(place.folder / "columns", root, "reflections", built, allow_missing=True)


def hub_of(place: Place, hub: Hub, dataset: str) -> HubUpstream:
    place.patch.setenv("HF_ENDPOINT", hub.url)
    place.patch.delenv("HF_TOKEN", raising=False)
    hub.files = {"data/0.jsonl": b'{"text": "a row"}\n'}
    return HubUpstream(kind="hub", dataset=dataset, revision=COMMIT, pattern="data/*.jsonl")


@fault("A dataset id 404s")
def a_dataset_that_was_renamed(place: Place) -> Iterator[str]:
    with serve_hub() as hub:
        yield refused(find_files, "dolma3", hub_of(place, hub, "org/former-name"), place.folder)
        assert find_files("dolma3", hub_of(place, hub, hub.dataset), place.folder)


@fault("A gated dataset is refused")
def a_gated_dataset(place: Place) -> Iterator[str]:
    with serve_hub() as hub:
        hub.token, hub.gated = "hf_mine", True
        yield refused(find_files, "code", hub_of(place, hub, hub.dataset), place.folder)
        place.patch.setenv("HF_TOKEN", "hf_mine")
        hub.gated = False
        assert find_files(
            "code", HubUpstream(kind="hub", dataset=hub.dataset, revision=COMMIT, pattern="**"), place.folder
        )


@fault("`kedro run` ends at once, with exit code 2")
def no_environment(place: Place) -> Iterator[str]:
    yield place.project.kedro("run", "--env", "nowhere", expect=2)


@fault("A run is refused before its first node")
def a_commit_to_look_up(place: Place) -> Iterator[str]:
    yield place.project.kedro("run", "--env", "mamba", expect=1)
    place.patch.chdir(ROOT)
    path, said = "ingestion.sources.arxiv.upstream.revision", ["plan", "--env", "mamba", "--vocab-size", "49152"]
    assert f"to look up   {path} is ???" in everytoken(*said, code=0)
    assert "to look up" not in everytoken(*said, "--params", f"{path}={COMMIT}", code=0)


@fault("The disk is full")
def a_full_disk(place: Place) -> Iterator[str]:
    (place.folder / "stream.bin").symlink_to("/dev/full")
    with pytest.raises(OSError, match="space") as caught:
        (place.folder / "stream.bin").write_bytes(b"tokens")
    yield explained(caught.value) or ""


@fault("A data folder is in use")
def another_run_writes(place: Place) -> Iterator[str]:
    job = place.job(**{"tokenization.tokenizer.vocab_size": 300})
    with sole_writer(job.data / "05_model_input/annotated_tokens"):
        yield refused(job.run, tokenization)
    job.run(tokenization)


@fault("A file differs from its plan")
def a_changed_file(place: Place) -> Iterator[str]:
    job = place.job()
    job.run(ingestion)
    planned = job.folder / "upstream/notes.jsonl"
    shutil.rmtree(job.data / "02_intermediate")
    planned.write_bytes(planned.read_bytes().replace(b"day", b"eve", 1))
    reading = ingestion.create_pipeline().only_nodes("ingestion.read_documents")
    yield refused(SequentialRunner().run, reading, job.catalog)
    job.run(ingestion)


@fault("A mixture ends too early")
def a_source_that_runs_dry(place: Place) -> Iterator[str]:
    mixture: dict[str, Any] = {
        "weights": {"articles": 0.5, "notes": 0.25, "open": 0.25},
        "target_total_tokens": 10_000,
        "chars_per_token": 4.0,
        "allow_repeat": {},
        "tolerance": 0.1,
        "documents_per_part": 100,
    }
    yield refused(place.job(**{"ingestion.mixture": mixture}).run, ingestion)
    mixture["allow_repeat"] = dict.fromkeys(mixture["weights"], 20)
    place.job(**{"ingestion.mixture": mixture}).run(ingestion)


@fault("A token cannot be traced")
def a_stream_of_another_run(place: Place) -> Iterator[str]:
    job = place.job()
    places = Places({path.name: path for path in job.data.glob("*/*")}, "test")
    stream = places.path("compact_stream")
    yield refused(documents_of, places, "compact", stream, 64)
    value = ProvenanceParameters.model_validate(job.parameters["provenance"])
    job.catalog["params:provenance"] = MemoryDataset(value)
    job.run(provenance)
    places = Places({path.name: path for path in job.data.glob("*/*")}, "test")
    assert documents_of(places, "compact", stream, 64).index is not None


@fault("The corpus is not the published one")
def another_corpus(place: Place) -> Iterator[str]:
    job = place.job()
    job.catalog["params:expect"] = MemoryDataset(ExpectParameters.model_validate({"fatal": {"shards": 63_911}}))
    yield refused(job.run, ingestion)
    job.catalog["params:expect"] = MemoryDataset(ExpectParameters())
    job.run(ingestion)


@fault("A checkpoint does not verify")
def a_damaged_checkpoint(place: Place) -> Iterator[str]:
    write_inputs(place.folder)
    job = tiny_job(place.folder, place.folder / "checkpoints", steps=3)
    run_job(job, lambda _: None)
    folder = newest(job).folder
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    yield everytoken("verify", folder, "--full")
    (folder / "model.safetensors").write_bytes(weights)
    everytoken("verify", folder, "--full", code=0)


@fault("A training cannot resume")
def no_checkpoint_verifies(place: Place) -> Iterator[str]:
    write_inputs(place.folder)
    job = tiny_job(place.folder, place.folder / "checkpoints", steps=3)
    run_job(job, lambda _: None)
    (newest(job).folder / "model.safetensors").write_bytes(b"")
    yield refused(run_job, job, lambda _: None)
    job.folder.rename(place.folder / "away")
    run_job(job, lambda _: None)
    assert newest(job).step == 3


@fault("A training is refused after its job was edited")
def an_edited_job(place: Place) -> Iterator[str]:
    write_inputs(place.folder)
    job = tiny_job(place.folder, place.folder / "checkpoints", steps=3)
    run_job(job, lambda _: None)
    edited = tiny_job(place.folder, place.folder / "checkpoints", steps=3, learning_rate=1e-3)
    yield refused(run_job, edited, lambda _: None)
    run_job(job, lambda _: None)


@fault("A fast engine is refused")
def an_unknown_engine(place: Place) -> Iterator[str]:
    files, out = write(place.folder / "in.jsonl", texts(9)), place.folder / "out"
    tokenizer = write_tokenizer(place.folder / "tokenizer.json")
    given = ["tokenize", files, "--out", out, "--tokenizer", tokenizer, "--eos", EOS]
    yield everytoken(*given, "--engine", "nosuch")
    everytoken(*given, "--engine", "fastest", code=0)


@fault("The tokenizer is refused")
def another_tokenizer_file(place: Place) -> Iterator[str]:
    file = write_tokenizer(place.folder / "tokenizer.json")

    def with_sha(value: str) -> SmallJob:
        return place.job(**{"tokenization.tokenizer": {"kind": "file", "path": str(file), "sha256": value}})

    yield refused(with_sha("9ca9acdd" * 8).run, tokenization)
    with_sha(file_sha256(file)).run(tokenization)


@fault("The MLflow server does not start")
def a_port_in_use(place: Place) -> Iterator[str]:
    server = [
        str(Path(sys.executable).with_name("mlflow")),
        "server",
        "--backend-store-uri",
        f"sqlite:///{place.folder}/mlflow.db",
    ]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [*server, "--host", "127.0.0.1", "--port", port], capture_output=True, text=True, timeout=120
        )
        yield done.stdout + done.stderr


@fault("Locks are refused")
def a_network_file_system(place: Place) -> Iterator[str]:
    place.patch.delenv(TRUST_VARIABLE, raising=False)
    place.patch.setattr("everytoken.locks.file_system_type", lambda _: 0x6969)
    yield refused(require_locks, place.folder)
    place.patch.setenv(TRUST_VARIABLE, "trust")
    assert require_locks(place.folder) == "nfs, trusted"


@dataclass(frozen=True)
class Row:
    """A row of a table of the page: its symptom, and the message; None where it cannot occur."""

    symptom: str
    message: str | None

    def is_of(self, printed: str) -> bool:
        """Return whether the message was printed, on whatever lines."""
        assert self.message is not None
        pattern = ".*?".join(re.escape(text) for text in self.message.split("..."))
        return any(re.search(pattern, said) for said in messages_in(printed))


def messages_in(printed: str) -> list[str]:
    """Return the checks that were printed, each as one line; and all of it, where it is no list of checks."""
    joined = re.sub(r"\n +", " ", printed)
    checks = re.findall(r"^(?:FAIL|ok|--) .*$", joined, re.MULTILINE)
    return checks or [" ".join(printed.split())]


def rows_of_page() -> list[Row]:
    """Return the rows of all tables, without their heads."""
    rows = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        for line in table.splitlines()[2:]:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            rows.append(Row(cells[0], cells[1].strip("`") if len(cells) == 4 else None))
    return rows


ROWS = rows_of_page()
EXCHANGED = FAULTS[rows_of_one_length_exchanged]
CAN_OCCUR = [row for row in ROWS if row.message is not None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "job"
    write_upstream(folder)
    SmallJob(folder).run(ingestion, annotation, subsampling, tokenization)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("troubles") / "project", database=False)


def _marked(one: Fault) -> Any:
    marks = [pytest.mark.sensitive] if one in (a_port_in_use, a_dataset_that_was_renamed, a_gated_dataset) else []
    return pytest.param(one, marks=[*marks, *[pytest.mark.slow] * (one is a_port_in_use)], id=one.__name__)


@pytest.mark.parametrize("one", [_marked(one) for one in FAULTS])
def test_the_message_of_a_fault_finds_its_row_and_no_other(
    one: Fault, made: Path, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = one(Place(tmp_path, made, project, monkeypatch))
    printed = next(steps)
    found, *more = [row.symptom for row in CAN_OCCUR if row.is_of(printed)]
    assert found == FAULTS[one] and set(more) <= {EXCHANGED}, printed  # whatever changes a file changes its SHA-256
    assert next(steps, None) is None, "the remedy helps"


def test_every_row_has_a_fault_that_is_made_here() -> None:
    symptoms = [row.symptom for row in CAN_OCCUR]
    assert set(symptoms) == set(FAULTS.values()) and len(symptoms) == len(set(symptoms)) >= 20


def test_no_symptom_of_the_published_account_is_left_out() -> None:
    (account,) = shared_folder("seeds").glob("004_*.txt")
    table = account.read_text(encoding="utf-8").split("| Symptom | Likely cause |\n|---|---|\n")[1]
    lines = "\n".join(takewhile(lambda line: line.endswith("|"), table.splitlines()))
    cells = [cell.strip() for cell in lines.split("|") if cell.strip()]  # a symptom, then its cause
    symptoms = [cell.replace("`", "") for cell in cells[::2]]
    told = [row.symptom.replace("`", "") for row in ROWS]
    assert len(symptoms) == 13
    assert not [one for one in symptoms if not any(row[:16] == one[:16] for row in told)]
