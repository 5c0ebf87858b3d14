"""The job of an environment: the same for ``kedro run``, a session, kedro-viz; the registry knows no environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from kedro.config import MissingConfigException, OmegaConfigLoader
from kedro.framework.cli.cli import KedroCLI
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.pipeline import Pipeline
from kedro_viz.integrations.kedro.data_loader import load_data

from everytoken import settings
from everytoken.configuration import ConfigurationError, JobConfigLoader
from everytoken.pipeline_registry import JOBS, register_pipelines
from everytoken.settings import CONFIG_LOADER_ARGS
from tests.configuration.environments import ENVIRONMENTS
from tests.recording_runner import RecordingRunner
from tests.warm_kedro import Started

ROOT = Path(__file__).resolve().parents[2]


def names(pipeline: Pipeline) -> set[str]:
    return {node.name for node in pipeline.nodes}


@pytest.fixture(autouse=True, scope="module")
def project() -> Iterator[None]:
    """The project without hooks, as kedro-viz loads it: what they refuse and record is tested elsewhere.

    Once for all tests: Dynaconf looks through each module for the settings, half a second among a test's many.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "HOOKS", ())
        patch.chdir(ROOT)
        bootstrap_project(ROOT)
        yield
    bootstrap_project(ROOT)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(env, marks=[] if env in ("base", "test", "replay", "spp") else pytest.mark.slow)
        for env in ENVIRONMENTS
    ],
)
def test_command_session_and_viz_have_the_job_of_an_environment(env: str) -> None:
    other = "test" if env == "replay" else "replay"
    with KedroSession.create(project_path=ROOT, env=other) as session:
        session.load_context()  # what another environment left in this process does not matter
    given: list[Pipeline] = RecordingRunner.given
    given.clear()
    arguments = ["run", "--env", env, "--runner", "tests.recording_runner.RecordingRunner"]
    done = CliRunner().invoke(KedroCLI(ROOT), arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    with KedroSession.create(project_path=ROOT, env=env) as session:
        session.run(runner=RecordingRunner())
    _, shown, _ = load_data(ROOT, env=env)
    configured = yaml.safe_load((ROOT / "conf/base/globals.yml").read_text())
    if (own := ROOT / "conf" / env / "globals.yml").exists():
        configured |= yaml.safe_load(own.read_text())
    registered = register_pipelines()
    job = names(registered[configured["job"]])
    assert len(job) > 20 or configured["job"] == "pretraining"
    if env in ("spp", "spp_scored"):  # canary documents are trained on
        job |= names(registered["canary"])
    if env in ("spp", "spp_scored", "mamba", "mamba_universal"):  # nothing is held out
        job -= names(registered["evaluation"])
    if env == "spp_small":  # canary documents and reflections are trained on
        job |= names(registered["canary"]) | names(registered["reflection"])
    if env == "memorisation_small":  # canary documents are trained on, and probed
        job |= names(registered["canary"]) | names(registered["memorisation"])
    if env == "mamba_small":  # its budgets are in tokens
        job |= {f"ingestion.{name}" for name in names(registered["counting"])}
    assert [names(one) for one in (*given, shown["__default__"])] == [job] * 3
    assert set(JOBS) <= set(shown)


def test_pipelines_that_are_named_run_in_every_environment() -> None:
    for env in ("replay", "test"):
        with KedroSession.create(project_path=ROOT, env=env) as session:
            session.run(pipeline_names=["packing", "tokenization"], runner=RecordingRunner())
        assert names(RecordingRunner.given[-1]) == names(pipelines["packing"] + pipelines["tokenization"])


@pytest.mark.parametrize("env", ["test", "replay"])
def test_the_registry_is_the_same_in_every_environment(env: str) -> None:
    bootstrap_project(ROOT)  # a run of pipelines by name has registered no others
    listed = Started(["kedro", "registry", "list"], ROOT, {**os.environ, "KEDRO_ENV": env}, one_output=False).run(600)
    assert listed.returncode == 0, listed.stderr
    assert yaml.safe_load(listed.stdout) == sorted(register_pipelines())
    with KedroSession.create(project_path=ROOT, env=env) as session:
        session.load_context()
    made = register_pipelines()
    assert {*JOBS, "__default__"} <= set(made)
    assert names(made["__default__"]) == names(made["corpus"]) != names(made["replay"])


def test_an_environment_names_a_job_that_exists(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "base/globals.yml").write_text("job: build\n")
    loader = JobConfigLoader(str(tmp_path), **CONFIG_LOADER_ARGS)
    with pytest.raises(ConfigurationError, match=r"globals.yml: job .* has build, .* Known are chat, corpus,"):
        loader.default_pipelines()


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_parameters_merge_as_kedro_merges_them_but_for_what_is_not_looked_up(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # this project may have a release, whose parameters a replay takes
    given = {"subsampling": {"seed": 77}, "ingestion": {"sources": {"champ": None}}}
    arguments = (str(ROOT / "conf"), env, given)
    own = JobConfigLoader(*arguments, **CONFIG_LOADER_ARGS)["parameters"]
    kedro = OmegaConfigLoader(*arguments, **CONFIG_LOADER_ARGS)["parameters"]
    ours, theirs = leaves(own), leaves(kedro)
    different = {path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path)}
    # a model of another family than base's is whole: of base's it has no key
    of_base = {path for path in different if path.startswith(".training.model.") and path not in ours}
    assert bool(of_base) == (own["training"]["model"]["family"] != "llama")
    assert {ours.get(path) for path in different - of_base} <= {"???"}
    assert list(own) == list(kedro)
    with pytest.raises(MissingConfigException, match="nowhere"):
        JobConfigLoader(str(ROOT / "conf"), "nowhere", **CONFIG_LOADER_ARGS)["parameters"]


def leaves(tree: object, path: str = "") -> dict[str, object]:
    if not isinstance(tree, dict) or not tree:
        return {path: tree}
    return {key: leaf for name, value in tree.items() for key, leaf in leaves(value, f"{path}.{name}").items()}
