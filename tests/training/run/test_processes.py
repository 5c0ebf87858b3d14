"""Several processes of one training: what they listen on, how they end, what they leave."""

import getpass
import os
import re
import signal
import socket
import stat
import struct
import tempfile
from pathlib import Path

import pytest

from everytoken.training.errors import TrainingError
from everytoken.training.run.launch import launch
from tests.training.tiny import newest, tiny_job, write_inputs

pytestmark = [
    pytest.mark.sensitive,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are looked up as Linux shows them"),
]

_LISTENS = "0A"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    write_inputs(folder)
    return folder


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files of this process and its children, which is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def left_in(folder):
    """Return what is in a folder, but for the one that torch keeps for each user."""
    return [path.name for path in folder.iterdir() if path.name != f"torchinductor_{getpass.getuser()}"]


def family():
    """Return the pids of this process and of all that come from it."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def sockets(pids):
    """Return the inodes of the sockets of processes."""
    found = set()
    for path in (path for pid in pids for path in Path(f"/proc/{pid}/fd").glob("*")):
        try:
            name = str(path.readlink())
        except (FileNotFoundError, ProcessLookupError):  # closed since
            continue
        if match := re.fullmatch(r"socket:\[(\d+)\]", name):
            found.add(match[1])
    return found


def address(field):
    """Return an address of /proc/net/tcp or tcp6, which are words of the machine's byte order."""
    words = bytes.fromhex(field.partition(":")[0])
    packed = b"".join(struct.pack("=I", word) for word in struct.unpack(f">{len(words) // 4}I", words))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def listened_on(inodes):
    """Return the addresses on which these sockets listen."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [address(fields[1]) for fields in lines if fields[3] == _LISTENS and fields[9] in inodes]


def test_a_server_is_seen_with_its_address():
    with socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0)):
        assert {"0.0.0.0", "127.0.0.1"} <= set(listened_on(sockets({os.getpid()})))


@pytest.mark.parametrize(("processes", "strategy"), [(1, "ddp"), pytest.param(2, "fsdp", marks=pytest.mark.slow)])
def test_nothing_listens_beyond_loopback_and_nothing_temporary_is_left(
    inputs, tmp_path, temporary, monkeypatch, processes, strategy
):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # of another program of this user
    job = tiny_job(inputs, tmp_path / "runs", steps=4, processes=processes, strategy=strategy)
    own, seen, modes = sockets({os.getpid()}), [], []

    def look(records):
        seen.append(listened_on(sockets(family()) - own))
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in job.live_folder.glob("processes_*"))

    launch(job, look)
    assert newest(job).step == 4
    assert seen and {place for places in seen for place in places} <= {"127.0.0.1", "::1"}
    assert left_in(temporary) == []


class Seen(Exception):
    """Enough was seen: the training may end."""


@pytest.mark.slow
def test_processes_listen_for_each_other_on_loopback_in_a_private_folder(inputs, tmp_path, temporary, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    job = tiny_job(inputs, tmp_path / "runs", processes=2, steps=100_000, every_steps=100)  # they train when we look
    own, seen, modes = sockets({os.getpid()}), set(), set()

    def look(records):
        seen.update(listened_on(sockets(family()) - own))
        modes.update(stat.S_IMODE(path.stat().st_mode) for path in job.live_folder.glob("processes_*"))
        if seen:
            raise Seen

    with pytest.raises(Seen):
        launch(job, look)
    assert seen <= {"127.0.0.1", "::1"}
    assert modes == {0o700}
    assert left_in(temporary) == []


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_others_and_is_named(inputs, tmp_path, temporary):
    job = tiny_job(inputs, tmp_path / "runs", processes=2, steps=100_000, every_steps=100)
    before = family()  # other tests may have started servers of processes

    def rank_of(pid):
        return dict(line.partition("=")[::2] for line in Path(f"/proc/{pid}/environ").read_text().split("\0")).get(
            "RANK"
        )

    killed = []

    def kill(records):
        (pid,) = (pid for pid in family() - before if rank_of(pid) == "1")
        killed.append(pid)
        os.kill(pid, signal.SIGKILL)

    with pytest.raises(TrainingError, match=r"ended by signal 9; .*memory was not enough \(in training process 1\)"):
        launch(job, lambda records: None if killed else kill(records))
    assert family() <= before
    assert left_in(temporary) == []
    assert [path.name for path in job.live_folder.iterdir()] == ["job.json"]
