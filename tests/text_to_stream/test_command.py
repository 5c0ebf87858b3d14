"""The command ``everytoken tokenize``, as the command line runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from everytoken.cli import cli
from tests.shards.children import wait_until_empty
from tests.text_to_stream.files import (
    EOS,
    documents_in,
    expected,
    make,
    parameters,
    stream_bytes,
    texts,
    write,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def command(files: list[Path], out: Path, tokenizer: Path, *options: str) -> list[str]:
    given = ["tokenize", *map(str, files), "--out", str(out), "--tokenizer", str(tokenizer), "--eos", EOS]
    return [*given, "--cases", "50", *options]


def test_no_project_is_needed_and_the_counts_are_printed(tmp_path: Path, tokenizer: Path) -> None:
    files = [write(tmp_path / f"in/{i}.jsonl.zst", [*texts(40, i), "", EOS]) for i in range(3)]
    run = [sys.executable, "-c", "from everytoken.cli import cli; cli()"]
    once, twice = (
        subprocess.run(
            [*run, *command(files, Path("out"), tokenizer, "--workers", "2", "--max-tokens", "20")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        for _ in range(2)
    )
    assert once.returncode == 0, once.stderr
    rows = {line.split()[0]: line.split()[1:] for line in once.stdout.splitlines() if line}
    documents, tokens, empty, truncated, lossy, special = rows["total"]
    made = documents_in(tmp_path / "out")
    assert (documents, empty, lossy, special) == ("126", "3", "0", "3")
    assert int(tokens.replace(",", "")) == sum(len(ids) - 1 for ids in made)
    assert int(truncated) == sum(len(ids) > 20 for text in range(3) for ids in expected(texts(40, text), tokenizer))
    assert rows["2.jsonl.zst"][0] == "42"
    assert len(rows["digest"][0]) == 64
    assert "nothing to do" in twice.stdout and rows["digest"][0] in twice.stdout


def test_errors_are_one_message(tmp_path: Path, tokenizer: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n\n')
    ran = CliRunner().invoke(cli, command([bad], tmp_path / "out", tokenizer))
    assert ran.exit_code == 1
    assert f"{bad}, line 2: the line is blank" in ran.output
    assert "Traceback" not in ran.output
    ran = CliRunner().invoke(cli, command([bad], tmp_path / "out", tokenizer, "--max-tokens", "many"))
    assert ran.exit_code == 1 and "--max-tokens is 'many'; give a number from 2 to 2147483647, or none" in ran.output


KILLED = """
import os, signal
from everytoken.cli import cli
from everytoken.shards import WorkerProcesses

run = WorkerProcesses.run

def killed_after_the_first_part(self, function, tasks):
    for outcome in run(self, function, tasks):
        yield outcome
        os.kill(os.getpid(), signal.SIGKILL)

WorkerProcesses.run = killed_after_the_first_part
cli()
"""


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_killed_run_goes_on(tmp_path: Path, tokenizer: Path) -> None:
    files = [write(tmp_path / f"in/{i}.jsonl", texts(6000, i)) for i in range(12)]
    out = tmp_path / "out"
    given = command(files, out, tokenizer, "--workers", "2", "--engine", "tokenizers")
    running = subprocess.Popen([sys.executable, "-c", KILLED, *given], start_new_session=True)
    assert running.wait() == -signal.SIGKILL
    wait_until_empty(running.pid, "workers outlived their parent")
    assert not out.exists(), "killed before the end"
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out.parts").glob("[!.]*.json")}
    assert kept
    seen: dict[Path, int] = {}

    class Watching:
        def run(self, function, tasks):  # type: ignore[no-untyped-def]
            for task in tasks:
                yield task, function(task)
            seen.update({path: path.stat().st_mtime_ns for path in kept})

    make(files, out, parameters(tokenizer), Watching())  # type: ignore[arg-type]
    assert seen == kept, "what was finished is not made again"
    make(files, tmp_path / "fresh", parameters(tokenizer))
    assert stream_bytes(out) == stream_bytes(tmp_path / "fresh")
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["fresh", "in", "out"]
