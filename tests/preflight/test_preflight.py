"""What a configuration names is looked for before the job: each fault is a line in the words of the run itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kedro.framework.startup import bootstrap_project

from everytoken.checks import Check
from everytoken.cli import cli
from everytoken.corpus.scoring import EmbeddedScorer, HubModel
from everytoken.corpus.upstreams import HubUpstream, PathUpstream, WheelUpstream
from everytoken.parameters import GivenStreamParameters
from everytoken.preflight import Ahead, BytesAhead, preflight_checks
from everytoken.reflections import OpenAiGenerator, ServerGenerator
from everytoken.training import DistributionParameters
from tests.configuration.environments import ROOT, groups_of_job
from tests.corpus.upstreams.hub_server import COMMIT, Hub, serve_hub
from tests.project.test_troubleshooting import ROWS

OTHER = "0" * 40
bootstrap_project(ROOT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as hub:
        hub.files["data/texts.jsonl"] = b'{"text": "a"}\n' * 100
        hub.token = "hf_right"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "hf_right")
        yield hub


def checked(
    folder: Path, *, is_offline: bool = False, written: list[BytesAhead] | None = None, **named: Any
) -> list[Check]:
    ahead = Ahead(named, None, folder / "data", folder / "raw", is_offline=is_offline)
    ahead.written += written or []
    return list(preflight_checks(ahead))


def of(checks: list[Check], covers: str, name: str) -> Check:
    (found,) = [one for one in checks if (one.covers, one.name) == (covers, name)]
    return found


def row_of(check: Check) -> str:
    """Return the symptom of the troubleshooting page whose message a check prints."""
    (found,) = [row.symptom for row in ROWS if row.message is not None and row.is_of(check.text)]
    return found


def dataset(revision: str = COMMIT, name: str = "org/texts") -> HubUpstream:
    return HubUpstream(kind="hub", dataset=name, revision=revision)


@pytest.mark.sensitive
def test_a_commit_of_the_hub_is_listed_and_its_bytes_count(hub: Hub, tmp_path: Path) -> None:
    checks = checked(tmp_path, texts=dataset())
    assert of(checks, "the hub", "account").text == "HF_TOKEN is of the account somebody"
    assert of(checks, "texts", "files").text == f"1 files, 1,400 bytes at {COMMIT[:12]}"
    assert all(check.outcome == "passed" for check in checks)
    assert hub.asked("storage", "resolve") == [], "no file is fetched"


@pytest.mark.sensitive
def test_faults_of_the_hub_have_the_words_of_the_troubleshooting_page(hub: Hub, tmp_path: Path) -> None:
    gone = of(checked(tmp_path, texts=dataset(name="org/renamed")), "texts", "files")
    assert gone.outcome == "failed" and row_of(gone) == "A dataset id 404s"
    hub.token = "hf_another"
    refused = checked(tmp_path, texts=dataset(OTHER))
    assert "does not accept it" in of(refused, "the hub", "account").text
    assert of(refused, "texts", "files").outcome == "not made", "the hub is not asked again"


def test_a_hub_that_is_not_there_is_one_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    checks = checked(tmp_path, texts=dataset(), more=dataset(OTHER))
    assert [check.covers for check in checks if check.outcome == "failed"] == ["the hub"]
    assert of(checks, "more", "files").text == "not checked: see the hub"


def test_offline_asks_nothing_and_says_what_it_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    wheel = WheelUpstream(kind="wheel", project="no-such", version="1", sha256="0" * 64, member="x")
    url = PathUpstream(kind="path", root="https://127.0.0.1:9/texts")
    checks = checked(tmp_path, is_offline=True, texts=dataset(), wheel=wheel, url=url)
    left = {check.covers for check in checks if check.outcome == "not made"}
    assert left == {"the hub", "texts", "wheel", "url"}
    assert not [check for check in checks if check.outcome == "failed"]


def test_a_revision_that_nobody_looked_up_and_a_folder_that_is_missing(tmp_path: Path) -> None:
    groups, streams = groups_of_job("spp")
    checks = list(preflight_checks(Ahead(groups, streams, tmp_path / "data", tmp_path, is_offline=True)))
    looked_up = of(checks, "parameters", "looked up")
    assert row_of(looked_up) == "A run is refused before its first node"
    assert of(checks, "tokenization", "tokenizer").outcome == "not made"
    missing = checked(tmp_path, mine=PathUpstream(kind="path", root=str(tmp_path / "nothing")))
    assert row_of(of(missing, "mine", "files")) == "`SPP_DATA_ROOT: not set`"
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("text")
    found = checked(tmp_path, mine=PathUpstream(kind="path", root=str(tmp_path / "texts")))
    assert of(found, "mine", "files").text == "1 files, 4 bytes"


def test_another_tokenizer_than_the_pinned_one(tmp_path: Path) -> None:
    groups, streams = groups_of_job("test")
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    tokenization = groups["tokenization"]
    chosen = {"kind": "file", "path": str(file), "sha256": "0" * 64}
    changed = type(tokenization).model_validate({**tokenization.model_dump(), "tokenizer": chosen})
    ahead = Ahead({"tokenization": changed}, streams, tmp_path, tmp_path, is_offline=True)
    wrong = of(list(preflight_checks(ahead)), "tokenization", "tokenizer")
    assert row_of(wrong) == "The tokenizer is refused"
    assert hashlib.sha256(b"{}").hexdigest() in wrong.text


def test_a_disk_without_room_for_what_is_forecast(tmp_path: Path) -> None:
    full = of(checked(tmp_path, written=[BytesAhead("checkpoints", tmp_path / "new", 1 << 60)]), "disk", "space")
    assert full.outcome == "failed" and "checkpoints 1,152,921,504,606,846,976" in full.text
    assert "free space, or choose another folder" in full.remedy
    groups, streams = groups_of_job("spp")
    ahead = Ahead(groups, streams, tmp_path, tmp_path, is_offline=True)
    list(preflight_checks(ahead))
    sizes = {one.what: one.size for one in ahead.written}
    assert sizes == {"checkpoints": 28 * 12 * 2_969_742_336, "tokens": 2 * 10**12}


def test_packages_programs_devices_and_paths_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    sampling = {"m": {"temperature": 0, "max_tokens": 9, "thinking": False}}
    common = {"alias": "m", "sampling": sampling}
    scorer = EmbeddedScorer(kind="embedded", version="0.0", max_chars=9, slope=1, thresholds=(1, 2, 3, 4, 5))
    checks = checked(
        tmp_path,
        scorer=scorer,
        server=ServerGenerator.model_validate({"kind": "server", "command": ["no-such-program"], **common}),
        keyless=OpenAiGenerator.model_validate(
            {"kind": "openai", "endpoint": "http://127.0.0.1:9/v1", "api_key_variable": "NO_SUCH_KEY", **common}
        ),
        silent=OpenAiGenerator.model_validate({"kind": "openai", "endpoint": "http://127.0.0.1:9/v1", **common}),
        stream=GivenStreamParameters(path=str(tmp_path / "nothing")),
        gpus=DistributionParameters(processes=64, device="cuda"),
        model=HubModel(kind="hub", repository="org/model", revision="???"),
        is_offline=False,
    )
    failed = {(check.covers, check.name): check.text for check in checks if check.outcome == "failed"}
    assert "pip install" in failed["scorer", "package"] or "Install" in failed["scorer", "package"]
    assert "no-such-program" in failed["server", "program"]
    assert "export NO_SUCH_KEY" in failed["keyless", "endpoint"]
    assert "Is the server running" in failed["silent", "endpoint"]
    assert "expected a stream" in failed["stream", "paths"]
    assert "64 CUDA devices" in failed["gpus", "devices"]
    assert of(checks, "model", "revision").text == "not checked: its revision is ???, see the parameters"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "raw").write_text("a file")
    wrong = of(checked(tmp_path), "raw", "writable")
    assert wrong.outcome == "failed"
    assert not list(tmp_path.glob(".preflight*")), "nothing is left"


def test_the_command_prints_a_line_a_check_and_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(cli, ["preflight", "--env", "test", "--offline"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert all(line.startswith(("ok ", "not looked at ")) for line in lines[:-1])
    assert lines[-1].endswith(f"0 not ok, {sum(line.startswith('not looked at') for line in lines)} not looked at")
    done = CliRunner().invoke(cli, ["preflight", "--env", "spp", "--offline"])
    assert done.exit_code == 1
    assert [line for line in done.stdout.splitlines() if line.startswith("not ok") and "(docs/recipes.md)" in line]


def test_tokens_are_forecast_only_where_documents_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for env, expected in (("test", True), ("mythos", False)):  # which inherits a target that its job never reads
        lines = CliRunner().invoke(cli, ["preflight", "--env", env, "--offline"]).stdout.splitlines()
        assert any(line.split()[1:3] == ["tokens", "plan:"] for line in lines) == expected
