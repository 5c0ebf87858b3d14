"""What the operating system refuses ends a command or a run with one line: what, where, and what to do."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everytoken.shards import DamagedStore, ShardsError
from everytoken.system_errors import _REMEDIES, explained

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534
BEGIN = """
import os, pathlib, resource, sys
from everytoken.cli import cli
from everytoken.shards import Store, atomic_file, write_text
place = pathlib.Path(sys.argv[1])
@cli.command()
def act():
    if {user}:
        os.setgroups([]), os.setgid({user}), os.setuid({user})
    {act}
cli(["act"])
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; those of pytest are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="everytoken-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def command(act: str, place: Path, user: int = 0) -> str:
    """Run statements as a command of everytoken, as ``user`` (who may be unable to import); return what it printed."""
    script = BEGIN.format(act=act, user=user)
    ran = subprocess.run([sys.executable, "-c", script, str(place)], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    return ran.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_missing_right_names_the_folder_its_mode_and_the_user(open_folder: Path) -> None:
    told = command('write_text(place / "x.json", "{}")', open_folder, user=NOBODY)
    assert told.startswith(f"Error: Permission denied ([Errno 13], {open_folder}/.x.json.")
    assert f"{open_folder} has the mode 0755 and the owner 0; this process is user {NOBODY}. Give that user" in told
    (open_folder / "secret").touch(mode=0o600)
    told = command('(place / "secret").read_text()', open_folder, user=NOBODY)
    assert f"{open_folder}/secret has the mode 0600 and the owner 0" in told


REAL = {
    "files": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40)); held = [open('/dev/null') for _ in range(99)]",
        "Too many open files ([Errno 24], /dev/null). This process may have 40 files open at a time. Raise that in the "
        "shell (ulimit -n 4096",
    ),
    "length": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); write_text(place / 'x.json', 'x' * 9999)",
        "x.json). The file would be longer than this process (ulimit -f)",
    ),
    "name": ("write_text(place / ('x' * 300), '')", "A name on the path has too many bytes. Shorten it"),
    "disk": (
        "(place / 'x').symlink_to('/dev/full'); (place / 'x').write_text('x')",
        "No space left on device ([Errno 28]). The system does not name the file: df -h and df -i show which disk",
    ),
}


@pytest.mark.parametrize("kind", REAL)
def test_what_a_limit_refuses_says_which_and_how_to_raise_it(tmp_path: Path, kind: str) -> None:
    act, expected = REAL[kind]
    told = command(act, tmp_path)
    assert told.startswith("Error: ") and expected in told
    assert "globals.yml: data" in told or "run the same command again" in told


@pytest.mark.parametrize("code", sorted(_REMEDIES))
def test_every_error_has_a_remedy_and_the_place_where_it_is_known(tmp_path: Path, code: int) -> None:
    told = explained(OSError(code, os.strerror(code), str(tmp_path / "absent/x")))
    assert told is not None and told.startswith(f"{os.strerror(code)} ([Errno {code}], {tmp_path}/absent/x). ")
    assert len(told) > 120
    try:
        try:
            raise OSError(code, os.strerror(code))
        except OSError as error:
            raise RuntimeError("Failed while saving data to dataset x.\nmore") from error
    except RuntimeError as error:
        told = explained(error)
    assert told is not None and told.startswith(f"Failed while saving data to dataset x. {os.strerror(code)} ([Errno")


def test_our_own_messages_and_other_errors_stay_as_they_are() -> None:
    ours = ShardsError("the store says what to do")
    ours.__cause__ = OSError(errno.EACCES, "Permission denied")
    assert explained(ours) is None
    assert explained(ValueError("No space left on device")) is None
    assert explained(FileNotFoundError(errno.ENOENT, "No such file or directory")) is None


def test_too_many_open_files_are_no_damage(tmp_path: Path) -> None:
    """A part that cannot be opened for want of descriptors must not be made again."""
    from everytoken.shards import Inline, Store
    from tests.shards.functions import count_up, given

    Store(tmp_path / "s").save(given(1).map(count_up), Inline())
    act = (
        "(part,) = Store(place / 's').load(); resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60)); held = []\n"
        "    try:\n        while True: held.append(open('/dev/null'))\n    except OSError: part.table()"
    )
    told = command(act, tmp_path)
    assert "Too many open files" in told and "ulimit -n" in told and "is not the file that was written" not in told
    assert DamagedStore.__name__ not in told


@pytest.mark.slow
@pytest.mark.sensitive
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="only root can become another user")
def test_a_run_without_rights_or_files_ends_with_what_to_do(open_folder: Path) -> None:
    project = open_folder / "project"
    project.mkdir()
    shutil.copy(ROOT / "pyproject.toml", project)
    for name in ("conf", "src"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in (project, *project.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    (project / "data/test/01_raw").mkdir(parents=True)
    os.chown(project / "data", NOBODY, NOBODY)
    kedro = [sys.executable, "-m", "kedro", "run", "--env", "test"]
    environment = {**os.environ, "HOME": str(project), "PYTHONPATH": str(project / "src")}
    as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *kedro]
    ran = subprocess.run(as_nobody, cwd=project, capture_output=True, text=True, env=environment)
    last = ran.stderr.strip().splitlines()[-1]
    assert ran.returncode == 1 and "Permission denied ([Errno 13]" in last and "chmod, chown" in last
    limited = ["sh", "-c", 'ulimit -n 16; exec "$@"', "sh", *kedro]
    ran = subprocess.run(limited, cwd=project, capture_output=True, text=True, env=environment)
    assert (
        ran.returncode == 1 and "ulimit -n 4096" in ran.stderr and "is not the file that was written" not in ran.stderr
    )
