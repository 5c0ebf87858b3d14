"""A configuration that is missing ends `kedro run` with one line and exit code 2, before any work."""

from __future__ import annotations

import pytest

from tests.test_run import Project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("missing") / "project")


def refused(project: Project, *arguments: str) -> str:
    output = project.kedro("run", *arguments, expect=2)
    errors = [line for line in output.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and output.splitlines()[-1] == errors[0], output
    assert "Traceback" not in output and "Stage 1 of" not in output
    return errors[0]


def test_an_environment_that_there_is_not_is_named_with_those_that_there_are(project: Project) -> None:
    said = refused(project, "--env", "nowhere")
    assert f"there is no environment 'nowhere' in {project.folder / 'conf'}, only base, " in said
    assert ", test. Correct --env." in said


@pytest.mark.parametrize(("group", "pipeline"), [("training", None), ("canary", "canary"), ("ingestion", "ingestion")])
def test_a_group_of_parameters_that_no_file_has_is_named_with_its_file(
    project: Project, group: str, pipeline: str | None
) -> None:
    own = project.folder / "conf/test" / f"parameters_{group}.yml"
    files = {file: file.read_bytes() for file in (project.folder / "conf/base" / own.name, own) if file.exists()}
    recorded = (project.folder / "mlflow.db").read_bytes()
    for file in files:
        file.unlink()
    try:
        said = refused(project, "--env", "test", *(() if pipeline is None else ("--pipelines", pipeline)))
    finally:
        for file, content in files.items():
            file.write_bytes(content)
    assert (
        f"the run reads the parameters {group}, which environment 'test' (conf/base, conf/test) does not have" in said
    )
    assert f"put parameters_{group}.yml into one of the two folders" in said
    assert (project.folder / "mlflow.db").read_bytes() == recorded, "no run is recorded"


def test_parameters_that_a_run_does_not_read_may_be_missing(project: Project) -> None:
    (project.folder / "conf/base/parameters_packing.yml").rename(project.folder / "packing.yml")
    try:
        output = project.kedro("run", "--env", "test", "--pipelines", "annotation", expect=1)
    finally:
        (project.folder / "packing.yml").rename(project.folder / "conf/base/parameters_packing.yml")
    assert "documents" in output and "does not have" not in output, "it lacks data, not parameters"
