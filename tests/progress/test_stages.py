"""Every stage shows how far it is: the pipelines of the test environment under a clock that jumps 6 seconds a look."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.test_run import ROOT, Project

_FAKED = """
import itertools
from everytoken import progress
ticks = itertools.count(0, 6)
progress.clock = lambda: float(next(ticks))
from kedro.framework.cli import main
main()
"""
_QUICK = {
    "evaluation_ngrams": "decontamination is off: nothing is made",
    "scorer": "a digest that the package has",
    "selection": "arrays of the decisions, from the statistics of duplicates where no rule needs more",
    "ngram_matches": "decontamination is off",
}
"""What is made without a count, and why it takes no 5 seconds however large the corpus is."""

_COUNTED = re.compile(r"\d of [\d,]+ \w+s, .*(/s|\d (s|min|h) a \w+), .*\d (s|min|h) (left|so far)")
_MADE = re.compile(r"(\w+): (?:[1-9]\d* of \d+ parts to make|making it with \w+)$")


def _run(project: Project, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _FAKED, "run", "--env", "test", *arguments],
        cwd=project.folder,
        env=project.environment({}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The log of the default job and of pipelines on request."""
    project = Project(tmp_path_factory.mktemp("stages") / "project")
    (project.folder / "tests").symlink_to(ROOT / "tests")  # canary documents
    more = "ingestion,packing,finetuning,canary,export,release"
    return [line[9:] for given in ((), ("--pipelines", more)) for line in _run(project, *given)]


def _of_stages(lines: list[str]) -> dict[str, list[str]]:
    """Return the lines after each that says what is made, until the next stage begins."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        if (made := _MADE.match(line)) is not None:
            name = made[1]
            found.setdefault(name, [])
        elif re.match(r"Stage \d+ of \d+: ", line):
            name = ""
        elif name:
            found[name].append(line)
    return found


def test_every_stage_that_makes_something_shows_how_much_its_rate_and_the_time_left(lines: list[str]) -> None:
    stages = _of_stages(lines)
    assert len(stages) > 25
    silent = {name for name, said in stages.items() if not any(map(_COUNTED.search, said))}
    assert silent - set(_QUICK) == set()


def test_training_evaluation_tokenizer_engines_and_classification_are_among_them(lines: list[str]) -> None:
    stages = _of_stages(lines)
    for name, label in (
        ("checkpoint", "training: "),
        ("held_out_evaluation", "held_out_evaluation: "),
        ("generations", "generating: "),
        ("tokenizer", "tokenizer: "),
        ("engine_certificate", "engine_certificate: "),
        ("scored_documents", "scored_documents: "),
    ):
        assert any(line.startswith(label) and _COUNTED.search(line) for line in stages[name]), (
            name,
            label,
            stages[name],
        )


def test_the_log_has_lines_of_120_columns_and_no_bar(lines: list[str]) -> None:
    assert [line for line in lines if len(line) > 111 and " " in line[9:120] and "/" not in line] == []
    assert not any("\r" in line or "it/s]" in line for line in lines)
    assert not any(re.search(r"everytoken\.\w+\.\w+", line) for line in lines)


def test_what_is_switched_off_makes_no_line_of_its_own(lines: list[str]) -> None:
    assert not any(re.match(r"(evaluation_ngrams|ngram_\w+|contamination|document_sketches): ", line) for line in lines)
