"""The command ``everytoken audit-scores``, in a project with scored documents."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from everytoken.corpus.scoring.audit import AuditParameters, draw_audit
from everytoken.shards import Store
from tests.corpus.scoring.test_audit import scored_store, some_parts

ROOT = Path(__file__).resolve().parents[2]

# several commands in one process, each as the command line would run it
_RUN = """
import json, sys
from click.testing import CliRunner
from everytoken.cli import cli
ran = [CliRunner().invoke(cli, command) for command in json.loads(sys.argv[1])]
print(json.dumps([[result.exit_code, result.output] for result in ran]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit") / "project"
    folder.mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("conf", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    scored_store(folder / "data/test/03_primary/scored_documents", some_parts())
    return folder


def run(project: Path, *commands: list[str]) -> list[tuple[int, str]]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands)],
        cwd=project / "conf",  # anywhere in the project
        env={**os.environ, "DO_NOT_TRACK": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.slow
def test_draw_label_report(project: Path, tmp_path: Path) -> None:
    folder = project / "data/test/08_reporting/score_audit"
    store = Store(project / "data/test/03_primary/scored_documents").load()
    expected = draw_audit(store, AuditParameters(seed=11, per_class=50))
    labels, wrong = tmp_path / "labels.jsonl", tmp_path / "wrong.jsonl"
    labels.write_text("".join(f'{{"item": {k["item"]}, "label": {k["safety_score"]}}}\n' for k in expected.key[:-2]))
    wrong.write_text('{"item": 1, "label": 7}\n')

    command = ["audit-scores", "--env", "test"]
    other = [*command, "--seed", "3", "--per-class", "2", "--out", str(tmp_path / "other")]
    (drew, drawn), (told, report), (refused, why), (drew_other, where), (bad, error), (both, usage), (none, unmade) = (
        run(
            project,
            command,
            [*command, "--labels", str(labels)],
            [*command, "--seed", "3"],
            other,
            [*command, "--labels", str(wrong)],
            [*command, "--labels", str(labels), "--seed", "3"],
            ["audit-scores"],
        )
    )
    assert drew == 0, drawn
    said = json.loads((folder / "audit.json").read_text())
    assert (said["seed"], said["per_class"]) == (11, 50), "from the parameters"
    assert [json.loads(line) for line in (folder / "key.jsonl").read_text().splitlines()] == list(expected.key)
    assert f"0 safe{expected.population[0]:>24,}{50:>8}" in drawn
    assert f"{folder}/label.html" in drawn and "audit-scores --env test --labels labels.jsonl" in drawn

    assert told == 0, report
    items = len(expected.key)
    assert f"{items} items: {items - 2} labelled, 0 cannot tell, 2 not labelled" in report
    assert "3  (used)" in report, "the threshold of the subsampling"
    assert json.loads((folder / "report.json").read_text())["labelled"] == items - 2

    assert refused == 1 and f"Error: {folder} holds another audit (seed 11, 50 a class" in why
    assert drew_other == 0, where
    assert json.loads((tmp_path / "other/audit.json").read_text())["drawn"] == [2] * 6
    assert f"--out {tmp_path / 'other'} --labels" in where
    assert bad == 1 and f"Error: {wrong}, line 1: the label of item 1 is 7" in error
    assert both == 2 and "--seed and --per-class do nothing" in usage
    assert none == 1 and "scored_documents has not been made. Run the pipeline" in unmade
