"""``everytoken verify``: one line a check, exit code 1 for any fault, and the fault by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from everytoken.cli import cli
from everytoken.corpus.upstreams import PathUpstream
from everytoken.datasets import UpstreamFiles
from everytoken.shards import ArtifactStore, plan_artifact
from everytoken.tokens import write_annotated_stream, write_compact_stream
from everytoken.training.checkpoints import CheckpointStore
from tests.test_run import Project
from tests.tokens.corpora import encoded, stored, tokenizer_of
from tests.tokens.packing_inputs import pack
from tests.warm_kedro import run_everytoken

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two streams and raw shards where the project of the environment ``test`` has them."""
    folder = tmp_path / "data/test/05_model_input"
    common = {"tokenizer": tokenizer_of(), "seq_length": 8, "seed": 1, "shuffle_memory": 1 << 20}
    tokens = stored(tmp_path / "in", [encoded([0, 3, 8, 7] * 20)])
    compact = plan_artifact(write_compact_stream, tokens=tokens, shuffle_block=None, **common)
    ArtifactStore(folder / "compact_stream").save(compact)
    ArtifactStore(folder / "annotated_stream").save(plan_artifact(write_annotated_stream, tokens=tokens, **common))
    pack(tmp_path / "packing")
    shutil.move(tmp_path / "packing/raw_shards", folder / "raw_shards")
    return folder


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["verify", *map(str, arguments)])


def test_whole_streams_pass_with_one_line_a_check(data: Path) -> None:
    sampled = verify(data)
    assert sampled.exit_code == 0, sampled.output
    *lines, last, verdict = sampled.output.splitlines()
    assert all(line.startswith(f"ok    {data}/") for line in lines)
    assert f"ok    {data}/compact_stream  sizes: 48 windows, 9 tokens each, 2 bytes a token" in lines
    assert last == "sizes and samples only; --full reads every byte" and verdict == f"all {len(lines)} checks hold"
    full = verify(data, "--full")
    assert full.exit_code == 0
    assert len(full.output.splitlines()) > len(lines) + 5
    size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
    assert re.fullmatch(rf"read {size:,} bytes in [\d.]+ s \([\d.]+ GB/s\)", full.output.splitlines()[-2])


def test_a_flipped_bit_is_found_in_full_and_named(data: Path) -> None:
    path = data / "compact_stream/compact.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert verify(data).exit_code == 0, "a bit that still is an id, in a window outside the sample"
    found = verify(data, "--full")
    assert found.exit_code == 1
    (failed,) = [line for line in found.output.splitlines() if line.startswith("FAIL")]
    assert failed.startswith(f"FAIL  {data}/compact_stream  digests: {path}: expected SHA-256 ")


def test_each_of_several_faults_has_its_line(data: Path) -> None:
    os.truncate(data / "raw_shards/shard_00001.bin", 8)
    (data / "annotated_stream/token_lengths.npy").unlink()
    (data / "compact_stream/ledger.json").write_text("{")
    found = verify(data / "absent", *sorted(data.glob("[!.]*")))
    assert found.exit_code == 1
    failed = "\n".join(line for line in found.output.splitlines() if line.startswith("FAIL"))
    for named in (
        "absent holds nothing to verify",
        "shard_00001.bin is truncated: 8 bytes",
        "token_lengths.npy: expected",
        "is no ledger",
    ):
        assert named in failed


def test_what_has_lost_its_ledger_is_said_to(data: Path) -> None:
    (data / "compact_stream/ledger.json").unlink()
    found = verify(data, "--full")
    assert found.exit_code == 0
    assert f"--    {data}/compact_stream  has no ledger.json: nothing says which digests" in found.output


@pytest.mark.parametrize("garbage", [b"", b"{}", b'{"files": 3}', b"\x00\xff"])
def test_garbage_is_a_fault_and_no_traceback(data: Path, garbage: bytes) -> None:
    for name in ("compact_stream/ledger.json", "raw_shards/manifest.json", "annotated_stream/token_lengths.npy"):
        (data / name).write_bytes(garbage)
    found = verify(data, "--full")
    assert found.exit_code == 1 and isinstance(found.exception, SystemExit)
    for name in ("compact_stream", "raw_shards", "annotated_stream"):
        assert f"FAIL  {data}/{name}" in found.output


def test_a_manifest_with_another_key_is_a_fault(data: Path) -> None:
    path = data / "raw_shards/manifest.json"
    for key in ("shard_size_tokens", "documents", "tokens_by_source", "eos_tokens"):
        intact = path.read_text()
        path.write_text(intact.replace(f'"{key}"', f'"{key}_"', 1))
        found = verify(data, "--full")
        assert found.exit_code == 1 and isinstance(found.exception, SystemExit), found.output
        path.write_text(intact)


def test_a_path_that_holds_nothing_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        found = verify(path)
        assert found.exit_code == 1
        assert f"FAIL  {path} holds nothing to verify" in found.output
    assert verify(tmp_path, "--env", "test").exit_code == 2


def test_what_is_made_is_never_said_not_to_be(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", database=False)
    data = project.folder / "data/test"
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.jsonl").write_text("{}\n")
    texts = PathUpstream(kind="path", root=str(tmp_path / "texts"), pattern="*.jsonl", checksums=None)
    for name in ("upstream_files", "score_files"):
        UpstreamFiles(filepath=str(data / f"01_raw/{name}.json"), files=str(tmp_path)).save({"mine": texts})

    def lines(code: int) -> list[str]:
        environment = project.environment({})
        found = run_everytoken(["verify", "--env", "test"], folder=project.folder, environment=environment, timeout=600)
        assert found.returncode == code, found.stdout + found.stderr
        printed = found.stdout.splitlines()
        checks = [line for line in printed if line[:4] in ("ok  ", "FAIL", "--  ")]
        return [*sorted(line for line in checks if not line.endswith("  not made")), *printed[len(checks) :]]

    assert lines(0) == [
        "ok    score_files  list: 1 files, 1 sources",
        "ok    upstream_files  list: 1 files, 1 sources",
        "sizes and samples only; --full reads every byte",
        "all 2 checks hold",
    ]
    kept = CheckpointStore(data / "06_models/checkpoints/run", mirror=None, milestone_steps=None)
    kept.save(4, lambda folder: (folder / "model.safetensors").write_bytes(b"weights") and None, {"seed": 1})
    assert "ok    data/test/06_models/checkpoints/run/step_000000004  checkpoint: 4 steps, 2 files" in lines(0)
    shutil.rmtree(data / "06_models/checkpoints")
    (data / "01_raw/score_files.json").write_text('{"mine": [3]}')
    (data / "01_raw/shard_plan.json").write_text('{"shards": [')
    (data / "05_model_input/annotated_stream").mkdir(parents=True)
    (data / "05_model_input/compact_stream").mkdir()
    (data / "05_model_input/compact_stream/notes.txt").write_text("no stream")
    other, damaged, plan, whole, _, verdict, remedy = lines(1)
    assert whole.startswith("ok    upstream_files") and damaged.startswith("FAIL  score_files  list: ")
    assert plan.startswith("FAIL  shard_plan  file: ") and "kedro run" in remedy
    assert other.startswith("FAIL  data/test/05_model_input/compact_stream holds nothing to verify: no ledger.json")
    assert verdict == "3 of 4 checks do not hold"


def test_checkpoints_that_a_run_keeps_are_checked(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints/run", mirror=None, milestone_steps=None)
    for step in (4, 8):
        store.save(step, lambda folder: (folder / "model.safetensors").write_bytes(b"weights") and None, {"seed": 1})
    assert verify(tmp_path, "--full").output.splitlines()[-1] == "all 2 checks hold"
    damaged = tmp_path / "checkpoints/run/step_000000008"
    (damaged / "model.safetensors").write_bytes(b"weighty")
    assert verify(tmp_path).exit_code == 0
    found = verify(tmp_path, "--full")
    assert found.exit_code == 1 and f"FAIL  {damaged}  checkpoint: {damaged}/model.safetensors: expected SHA-256" in (
        found.output
    )
    (damaged / "state.json").unlink()
    assert "FAIL" in verify(damaged).output


@pytest.mark.slow
def test_without_a_path_it_is_what_the_environment_has(data: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))

    def run(env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from everytoken.cli import cli; cli()", "verify", "--env", env, "--full"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    found = run("test")
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert "--    tokenizer  not made" in lines
    assert "--    canary_stream  not made" in lines
    documents = json.loads((data / "raw_shards/manifest.json").read_text())["documents"]
    for name in ("compact_stream", "annotated_stream", "raw_shards"):
        assert any(re.match(rf"ok    {name}  digests: \d+ files with their SHA-256", line) for line in lines), name
    assert any(line.startswith("ok    raw_shards") and f"{documents:,} EOS" in line for line in lines)
    nothing = run("spp")
    assert nothing.returncode == 1
    assert "there is nothing to verify: run the pipelines that make it" in nothing.stderr
