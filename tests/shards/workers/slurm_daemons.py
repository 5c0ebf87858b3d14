"""Real daemons of Slurm on this machine, in a folder of their own: nodes with four CPUs and two devices as GPUs."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PROGRAMS = ("sbatch", "srun", "squeue", "scancel", "slurmctld", "slurmd", "munged")
_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_delay=0
MinJobAge=10
KillWait=2
MaxArraySize=101
ReturnToService=2
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""


def require_slurm() -> None:
    """Skip a test where the daemons cannot be started."""
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]} here: apt-get install slurm-wlm munge")
    if os.getuid() != 0:
        pytest.skip("the daemons of Slurm run as root")


_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=2000 Gres=gpu:2"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def slurm_daemons(folder: Path, nodes: int = 1) -> Iterator[Path]:
    """Start munged, slurmctld and a slurmd a node; give the path of their configuration, for ``SLURM_CONF``."""
    host = socket.gethostname().split(".")[0]
    names = [f"node{number}" for number in range(nodes)]
    for name in ("state", *(f"spool.{name}" for name in names)):
        (folder / name).mkdir()
    for gpu in ("gpu0", "gpu1"):
        os.mknod(folder / gpu, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
    (folder / "gres.conf").write_text(f"NodeName={','.join(names)} Name=gpu File={folder}/gpu[0-1]\n")
    conf = folder / "slurm.conf"
    ports = _free_ports(1 + nodes)
    lines = [_NODE.format(name=name, host=host, port=port) for name, port in zip(names, ports[1:], strict=True)]
    conf.write_text(_CONF.format(host=host, folder=folder, ports=ports, nodes="\n".join(lines)))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{option}={folder}/munge.{name}" for option, name in options.items()]
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    started: list[subprocess.Popen[bytes]] = []
    try:
        daemons = [["slurmd", "-D", "-N", name] for name in names]
        for command in (["munged", "--foreground", "--force", *munge], ["slurmctld", "-D", "-i"], *daemons):
            with (folder / f"{command[0]}.{len(started)}.out").open("wb") as out:
                started.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
            if command[0] == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), folder)
        _wait(lambda: _are_idle(environment, nodes), folder)
        yield conf
    finally:
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _are_idle(environment: dict[str, str], nodes: int) -> bool:
    command = ["sinfo", "--noheader", "--Node", "--format=%T"]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout.split() == ["idle"] * nodes


def _wait(is_ready, folder: Path) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + 30
    while not is_ready():
        if time.monotonic() > end:
            logs = [path.read_text(errors="replace")[-500:] for path in sorted(folder.glob("*.log"))]
            pytest.skip("the daemons of Slurm do not start on this machine: " + " | ".join(logs))
        time.sleep(0.1)
