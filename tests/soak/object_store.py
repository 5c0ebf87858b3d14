"""A local S3 server in a process of its own, which can be killed and comes back at the same address with its objects.

As a program it serves a folder: each file is an object of the bucket `BUCKET`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "soak"
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
}


class ObjectStore:
    """The server of a folder; what is put into the folder is served from the next start on."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, None
        self._port = free_port()
        self.start()

    _process: subprocess.Popen[bytes] | None

    @property
    def environment(self) -> dict[str, str]:
        """What a run needs in its environment to reach the server."""
        return {**SETTINGS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}"}

    @property
    def is_started(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start the server; it answers some seconds later."""
        command = [sys.executable, "-m", "tests.soak.object_store", str(self._folder), str(self._port)]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)

    def kill(self) -> None:
        """Kill the server as it is, in the middle of an answer or while it starts."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()
        self._process = None

    def close(self) -> None:
        """Kill the server if it lives."""
        if self.is_started:
            self.kill()

    def wait_until_it_answers(self, seconds: float) -> None:
        """Start the server if it is dead, and return when it has a connection for us."""
        if not self.is_started:
            self.start()
        end = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except OSError:
                assert time.monotonic() < end, f"the object store did not start in {seconds:.0f} s"
                time.sleep(0.05)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _serve(folder: Path, port: int) -> None:
    """Serve the folder until the standard input ends, which it does when the soak is killed."""
    os.environ.update(SETTINGS)
    import boto3
    from moto.server import ThreadedMotoServer

    private = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    private.start()
    host, private_port = private.get_host_and_port()
    client = boto3.client("s3", endpoint_url=f"http://{host}:{private_port}")
    client.create_bucket(Bucket=BUCKET)
    for path in sorted(folder.iterdir()):
        client.put_object(Bucket=BUCKET, Key=f"texts/{path.name}", Body=path.read_bytes())
    # both servers of this process have the same objects: nobody from outside sees a bucket that is half full
    ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False).start()
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
