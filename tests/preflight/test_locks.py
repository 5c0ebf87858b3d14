"""The lock of a file or folder: alone or shared, and of the file that has the name now."""

import os
import subprocess

import pytest

from everytoken.locks import TRUST_VARIABLE, LocksRefused, file_system_type, locked, require_locks
from everytoken.shards import sole_writer


def test_a_lock_is_held_alone_and_free_afterwards(tmp_path):
    with locked(tmp_path), pytest.raises(BlockingIOError), locked(tmp_path, wait=False, shared=True):
        pass
    with locked(tmp_path, wait=False):
        pass


def test_readers_share_a_lock_that_no_writer_gets(tmp_path):
    with (
        locked(tmp_path, shared=True),
        locked(tmp_path, shared=True, wait=False),
        pytest.raises(BlockingIOError),
        locked(tmp_path, wait=False),
    ):
        pass


def test_a_file_that_was_replaced_while_it_was_opened_is_opened_again(tmp_path):
    path, opened = tmp_path / "file", []

    def make():
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        opened.append(descriptor)
        if len(opened) == 1:
            path.unlink()
        return descriptor

    with locked(path, make) as descriptor:
        assert len(opened) == 2
        assert os.path.samestat(os.fstat(descriptor), path.stat())


def test_what_is_missing_cannot_be_locked(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "missing"):
        pass


@pytest.mark.parametrize(
    ("number", "name"), [(0x6969, "nfs"), (0x0BD00BD0, "lustre"), (0x65735546, "fuse"), (0x1234, "unknown, 0x1234")]
)
def test_network_and_unknown_file_systems_refuse_locks_unless_trusted(tmp_path, monkeypatch, number, name):
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    monkeypatch.setattr("everytoken.locks.file_system_type", lambda _: number)
    with pytest.raises(LocksRefused, match=rf"of the type {name}, .*globals.yml.*locks: trust"), locked(tmp_path):
        pass
    with pytest.raises(LocksRefused), sole_writer(tmp_path):
        pass
    monkeypatch.setenv(TRUST_VARIABLE, "trust")
    assert require_locks(tmp_path) == f"{name}, trusted"
    with locked(tmp_path), pytest.raises(BlockingIOError), locked(tmp_path, wait=False):
        pass


@pytest.mark.parametrize("number", [0x01021994, 0xEF53, 0x58465342, 0x9123683E, 0x794C7630, 0x2FC12FC1])
def test_file_systems_of_one_machine_keep_locks(tmp_path, monkeypatch, number):
    monkeypatch.delenv(TRUST_VARIABLE, raising=False)
    monkeypatch.setattr("everytoken.locks.file_system_type", lambda _: number)
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("folder", ["/", "/dev/shm", "/proc"])
def test_the_type_is_that_of_the_system(folder):
    descriptor = os.open(folder, os.O_RDONLY)
    told = subprocess.run(["stat", "-f", "-c", "%t", folder], capture_output=True, text=True, check=True).stdout
    try:
        assert file_system_type(descriptor) == int(told, 16)
    finally:
        os.close(descriptor)


def test_globals_trust_locks_for_the_process_and_its_workers(tmp_path, monkeypatch):
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project

    from tests.configuration.environments import ROOT

    monkeypatch.setenv(TRUST_VARIABLE, "")
    conf = tmp_path / "conf"
    for name in ("base", "test"):
        (conf / name).parent.mkdir(exist_ok=True)
        (conf / name).symlink_to(ROOT / "conf" / name)
    (conf / "mine").mkdir()
    (conf / "mine/globals.yml").write_text("locks: trust\n")
    bootstrap_project(ROOT)
    for env, expected in (("test", ""), ("mine", "trust")):
        with KedroSession.create(project_path=ROOT, env=env, conf_source=str(conf)) as session:
            session.load_context()
        assert os.environ[TRUST_VARIABLE] == expected
