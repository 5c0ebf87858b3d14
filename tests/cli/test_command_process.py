"""Commands as processes: logging in a subfolder of the project, Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from everytoken.cli.process import Commands, jupyter_command
from tests.warm_kedro import run_everytoken

ROOT = Path(__file__).resolve().parents[2]
LOGGED = """
import logging, sys
from kedro.framework.cli.cli import KedroCLI
from kedro.framework.project import settings
from kedro.utils import find_kedro_project
from pathlib import Path
KedroCLI(find_kedro_project(Path.cwd()))
settings.HOOKS
names = (None, "kedro", "kedro.io", "kedro.framework", "everytoken")
print([type(handler).__name__ for handler in logging.getLogger().handlers])
print([logging.getLogger(name).getEffectiveLevel() for name in names], sys.excepthook.__module__)
"""


def test_kedro_logs_the_same_in_a_subfolder() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KEDRO_LOGGING_CONFIG"}
    said = [
        subprocess.run(
            [sys.executable, "-c", LOGGED], cwd=folder, env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()[-2:]
        for folder in (ROOT, ROOT / "tests" / "vectors")
    ]
    assert said[0] == ["['StreamHandler']", "[30, 20, 30, 30, 20] everytoken.redaction.output"]
    assert said[1] == said[0]


def test_a_command_names_the_logging_of_the_project_in_a_subfolder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEDRO_LOGGING_CONFIG", raising=False)

    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command()
    def show() -> None:
        click.echo(os.environ.get("KEDRO_LOGGING_CONFIG", "none"))

    for folder, expected in ((ROOT, "none"), (ROOT / "tests", str(ROOT / "conf/logging.yml")), (Path("/"), "none")):
        monkeypatch.chdir(folder)
        assert CliRunner().invoke(group, ["show"]).output.strip() == expected
    assert "KEDRO_LOGGING_CONFIG" not in os.environ


@pytest.mark.parametrize(
    ("command", "package"), [("lab", "jupyterlab"), ("notebook", "notebook"), ("setup", "ipykernel")]
)
def test_jupyter_names_the_package_that_is_not_installed(command: str, package: str) -> None:
    without = f"import sys\nsys.modules[{package!r}] = None\nfrom kedro.framework.cli.cli import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", without, "jupyter", command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    told = f"Error: kedro jupyter {command} needs {package}, which is not installed: pip install {package}\n"
    assert (done.returncode, done.stderr, done.stdout) == (1, told, "")


def test_jupyter_goes_on_to_kedro_where_the_package_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from kedro.framework.cli import jupyter as kedro_jupyter

    created: list[str] = []
    monkeypatch.setattr(kedro_jupyter, "validate_settings", lambda: None)  # of a project that Kedro has opened
    monkeypatch.setattr(kedro_jupyter, "_create_kernel", lambda name, _: created.append(name) or name)
    metadata = SimpleNamespace(package_name="everytoken")
    done = CliRunner().invoke(jupyter_command(), ["setup"], obj=metadata)
    assert (done.exit_code, created) == (0, ["kedro_everytoken"]), done.output


def test_an_error_outside_a_project_leaves_standard_output_clean(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    environment = {name: value for name, value in os.environ.items() if name != "KEDRO_LOGGING_CONFIG"}
    for arguments in (["summary"], ["chat", str(tmp_path)], ["export", str(tmp_path), "--out", str(tmp_path / "x")]):
        done = run_everytoken(arguments, folder=tmp_path, environment=environment, timeout=600)
        assert done.returncode != 0
        assert done.stdout == ""
        assert "Error: " in done.stderr and "logging configuration" not in done.stderr


def test_an_interrupted_command_says_one_line_and_exits_with_130() -> None:
    @click.group(cls=Commands)
    def group() -> None: ...

    @group.command()
    def work() -> None:
        raise KeyboardInterrupt

    done = CliRunner().invoke(group, ["work"])
    assert (done.exit_code, done.output) == (130, "Interrupted. The same command resumes.\n")
