"""`everytoken prompts` as a user gives it: from the first version to a frozen one, with figures in MLflow."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.reflections.development.scripted_judge import prompt, questions, script
from tests.reflections.fault_server import FaultServer, fault_server
from tests.test_run import Project
from tests.warm_kedro import run_everytoken

pytestmark = pytest.mark.sensitive

ALIAS = "smollm2-mine"
SCORES = {"plain": (4, 4, 4, 3), "careful": (5, 5, 4, 5)}
TEMPLATE = f"{prompt('plain')}\n{{sections}} {{fields}}\n"


def parameters(server: FaultServer, **changes: object) -> str:
    given = {"kind": "openai", "alias": ALIAS, "endpoint": server.address, "concurrency": 4}
    told = {f"reflection.generator.{name}": value for name, value in given.items()}
    return ",".join(f"{name}={value}" for name, value in {**told, **changes}.items())


@pytest.mark.slow
def test_a_prompt_is_seeded_improved_compared_and_frozen(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.kedro("run", "--env", "test", "--pipelines", "ingestion,annotation,subsampling,tokenization")
    prompts = project.folder / "conf/base/reflections/prompts" / ALIAS
    (project.folder / "conf/base/reflections/development/seed_reflection.md").write_text(TEMPLATE)
    with fault_server(script(lambda quality, user: SCORES[quality])) as server:
        given = ("--env", "test", "--params", parameters(server))
        assert "reflection_v1.md is written" in project.everytoken("prompts", "seed", *given)
        told = project.everytoken("prompts", "improve", *given)
        assert "mean 3.750, accepted 0.0%" in told and "2 rejected and 0 accepted" in told
        assert (
            "reflection_v2.md is version v2" in told and "Write careful" in (prompts / "reflection_v2.md").read_text()
        )
        told = project.everytoken("prompts", "eval", *given)
        assert f"Best is {ALIAS}__reflection_v2 with a mean of 4.750 on 3 rows" in told
        assert "100.0% of generating replies, 100.0% of judging replies" in told
        before = questions(server)
        again = json.loads(project.everytoken("prompts", "eval", "--json", *given))
        assert questions(server) == before, "a second start asks nothing"
        runs = again["mlflow_runs"]
        assert again["best"] == [f"{ALIAS}__reflection_v2"] and all(run in told for run in runs)
        compared = project.everytoken("compare", *runs, "--env", "test")
        assert re.search(r"mean_aggregate +3\.75 +\| +4\.75", compared)
        assert re.search(r"prompt +reflection_v1 +\| +reflection_v2", compared)
        page = (project.folder / again["page"]).read_text()
        assert "a careful thought" in page and "a plain thought" in page
        assert "fixes smollm2-mine with reflection v2" in project.everytoken(
            "prompts", "freeze", "--version", "v2", *given
        )
        record = prompts.relative_to(project.folder) / "reflection_v2.frozen.json"
        frozen = {"reflection.frozen": record, "reflection.prompts.versions.reflection": "v2"}
        plan = ("reflections", "plan", "--env", "test", "--params")
        assert "ranks" in project.everytoken(*plan, parameters(server, **frozen))
        refused = run_everytoken(
            (*plan, parameters(server, **{**frozen, "reflection.prompts.versions.reflection": "v1"})),
            folder=project.folder,
            environment=project.environment({}),
            timeout=600,
        )
        assert refused.returncode == 1
        assert "fixes generator and prompt, and these differ" in refused.stdout + refused.stderr
