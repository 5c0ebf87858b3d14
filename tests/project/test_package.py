"""The wheel of the project, installed where its source is not."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _install(folder: Path) -> Path:
    """Build the wheel and install it, with the dependencies of these tests; return the interpreter that has it."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(source)]
    subprocess.run(build, check=True)
    shutil.rmtree(source)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    paths = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(packages), str(wheel)], check=True)
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))  # after what is installed here
    return python


@pytest.mark.slow
@pytest.mark.parametrize("conf", ["folder", "archive"])
def test_the_wheel_runs_the_test_environment(tmp_path: Path, conf: str) -> None:
    python, job = _install(tmp_path), tmp_path / "job"
    (job / "data/01_raw").mkdir(parents=True)
    (ROOT / "data/01_raw/wheels").mkdir(parents=True, exist_ok=True)
    (job / "data/01_raw/wheels").symlink_to(ROOT / "data/01_raw/wheels")  # fetched by other tests, or now
    command = [str(python), "-m", "everytoken", "--env", "test"]
    if conf == "folder":
        shutil.copytree(ROOT / "conf", job / "conf", ignore=shutil.ignore_patterns("local"))
        (job / "conf/local").mkdir()
    else:  # what `kedro package` writes beside the wheel
        archive = tmp_path / "dist/conf-everytoken.tar.gz"
        subprocess.run(["tar", "--exclude=local/*.yml", "-czf", archive, f"--directory={ROOT}", "conf"], check=True)
        command += ["--conf-source", str(archive)]
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**known, "MLFLOW_TRACKING_URI": "", "DO_NOT_TRACK": "1"}
    where = "import everytoken; print(everytoken.__file__)"
    found = subprocess.run([python, "-c", where], cwd=job, env=environment, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(tmp_path / "venv")
    done = subprocess.run(command, cwd=job, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    promised = json.loads((ROOT / "tests/vectors/digests.json").read_text())
    ledgers = {path.parent.name: json.loads(path.read_text()) for path in (job / "data/test").rglob("ledger.json")}
    assert {name: ledgers[name]["root_digest"] for name in promised} == promised
