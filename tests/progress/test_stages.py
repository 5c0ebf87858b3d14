"""Every stage shows how far it is: the pipelines of the test environment under a clock that jumps 6 seconds a look."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from everytoken.datasets import WhenMade
from tests.reflections.fault_server import fault_server
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
    **dict.fromkeys(("ngram_matches", "ngram_counts", "contamination"), "decontamination is off"),
    "document_sketches": "near duplicates are not looked for",
}
"""What is made without a count, and why it takes no 5 seconds however large the corpus is."""

_SLOW = {
    *("reflections", "reflection_end", "refusal_reflection", "summaries", "preflections", "rephrasing_safelm"),
    *("reflections_columns", "reflection_end_columns", "refusal_reflection_columns", "summaries_columns"),
    *("preflections_columns", "rephrasing_safelm_columns"),
    *("reflected_stream", "reflected_end_stream", "reflected_refusals_stream", "reflected_summaries_stream"),
    *("reflected_index", "reflected_end_index", "reflected_refusals_index", "reflected_summaries_index"),
    *("located_documents", "document_matches", "manifest_contradictions", "memorisation_evaluation"),
}
"""What the slow test runs: generation runs, a replay, a probe of what was memorised."""

_NOT_RUN = {
    "counting_certificate": "the function of engine_certificate",
    "counting_tokenizer": "one file is read",
    "languages": "parts of rows: the store counts them",
    "pretrained_checkpoint": "the function of checkpoint",
    "published_reflections_index": "tests/reflections/published has no project",
    "reflections_manifest": "parts of rows: the store counts them",
    "sft": "the ranks of reflections",
    "sft_chats": "no pool of prompts comes along",
    "sft_prompts": "no pool of prompts comes along",
    "token_counts": "parts of rows: the store counts them",
    **dict.fromkeys(("upstream_files", "score_files", "reflection_files", "sft_files"), "a list of files"),
}
"""What no run here makes, and why."""

_COUNTED = re.compile(r"\d of [\d,]+ \w+s, .*(/s|\d (s|min|h) a \w+), .*\d (s|min|h) (left|so far)")
_MADE = re.compile(r"(\w+): (?:[1-9]\d* of \d+ (?:parts|ranks) to make|making it with \w+)$")


def _run(project: Project, *arguments: str, env: str = "test") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _FAKED, "run", "--env", env, *arguments],
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


def test_no_stage_of_any_pipeline_is_forgotten(lines: list[str]) -> None:
    bootstrap_project(ROOT)
    with KedroSession.create(project_path=ROOT, env="test") as session:
        catalog = session.load_context().catalog
        made = {name for pipeline in dict(pipelines).values() for node in pipeline.nodes for name in node.outputs}
    datasets = {name: catalog.get(name) for name in made}
    stages = {
        name.removesuffix("_replies")
        for name, dataset in datasets.items()
        if hasattr(dataset, "ledger_summary") and not isinstance(dataset, WhenMade)
    }
    seen = set(_of_stages(lines))
    assert stages - seen - set(_QUICK) == _SLOW | set(_NOT_RUN), "let a run here make it, or say why none does"


@pytest.mark.slow
def test_stages_on_request_show_how_much_their_rate_and_the_time_left(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    (project.folder / "tests").symlink_to(ROOT / "tests")
    lines = _run(project, "--pipelines", "corpus,canary,release")
    with fault_server() as server:
        given = f"reflection.generator.kind=openai,reflection.generator.endpoint={server.address}"
        given += ",reflection.generator.first_pause_seconds=0.01,reflection.allow_missing=true"
        runs = "reflection,reflection_end,refusal_reflection,summaries,preflections,rephrasing_safelm"
        lines += _run(project, "--pipelines", runs, "--params", f"{given},reflection.rows_per_task=10")
    released = project.folder / "data/test/08_reporting/release"
    lines += _run(project, "--params", f"replay.release={released}", env="replay")
    few = "training.optimisation.steps=24,training.checkpoints.every_steps=12,evaluation.memorisation.controls=20"
    lines += _run(project, "--params", few, env="memorisation_small")
    stages = _of_stages([line[9:] for line in lines])
    assert set(stages) >= _SLOW
    silent = {name for name, said in stages.items() if not any(map(_COUNTED.search, said))}
    refused = {"summaries", "preflections"}  # this server writes other fields: no row has a result
    assert silent - set(_QUICK) == refused and all("0 of 28 rows" in stages[name][0] for name in refused)


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
