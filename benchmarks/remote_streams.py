"""Training batches from a stream in a bucket: through a warm cache, and cold, next to local files and s3fs's reading.

``python benchmarks/remote_streams.py [--megabytes 512] [--rounds 7] [--window 2049] [--batch 64] [--folder FOLDER]``

A server (moto) runs on this machine in a process of its own, so cold figures measure it as much as the reader: compare
them with ``s3fs``, which reads the same object from it with one ``cat_file`` for each 16 MiB, one after the other, and
checks nothing. Ours checks the SHA-256 of each block, writes it to the cache with fsync, maps it, and makes batches.

``local`` is the mapped file in the page cache; ``warm`` are blocks that are in the cache and mapped when they are read;
``warm, first`` is a new process's first look at them, in which each is checked by its SHA-256. ``shuffled`` reads
windows in a random order, where more blocks are wanted than a process keeps mapped. ``quarter`` has a cache that holds
a quarter of the stream, in order. MB/s are of tokens in the files; medians over the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.seeds import numpy_generator
from everytoken.shards import Artifact, ArtifactStore, Built, plan_artifact, versioned
from everytoken.shards.remote import REQUEST_BYTES, FileCache, RemoteArtifactStore, forget_mapped
from everytoken.tokens.order import WindowStream, open_window_stream
from everytoken.tokens.streams import WindowWriter

URL = "s3://streams/stream"


@versioned("benchmarked_stream", 1)
def benchmarked_stream(folder: Path, *, windows: int, window: int) -> Built:
    generator = numpy_generator(0, windows)
    with WindowWriter(folder / "stream", window, np.uint16) as writer:
        for start in range(0, windows, 4096):
            writer.write(generator.integers(0, 50_000, (min(4096, windows - start), window)).astype(np.uint16))
    return Built({"windows": windows})


@contextmanager
def server() -> Iterator[Any]:
    """Start a server, and give s3fs's file system on it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    login = {"ACCESS_KEY_ID": "benchmark", "SECRET_ACCESS_KEY": "benchmark", "DEFAULT_REGION": "us-east-1"}
    os.environ.update({f"AWS_{name}": value for name, value in login.items()})
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    import s3fs

    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        filesystem = s3fs.S3FileSystem(use_listings_cache=False)
        filesystem.mkdir("streams")
        yield filesystem
    finally:
        child.terminate()
        child.wait()


def opened(artifact: Artifact) -> WindowStream:
    return open_window_stream(artifact, "sizes")


def read(stream: WindowStream, order: np.ndarray, batch: int) -> None:
    for start in range(0, len(order), batch):
        np.asarray(stream.tokens(order[start : start + batch])).astype(np.int64)


def read_by_s3fs(filesystem: Any) -> int:
    name = next(name for name in filesystem.find("streams") if name.endswith(".bin"))
    size = filesystem.info(name)["size"]
    return sum(
        len(filesystem.cat_file(name, start=at, end=min(at + REQUEST_BYTES, size)))
        for at in range(0, size, REQUEST_BYTES)
    )


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(megabytes: float, rounds: int, window: int, batch: int, folder: Path) -> None:
    windows = int(megabytes * 1e6 / (2 * window))
    size = windows * window * 2
    planned = plan_artifact(benchmarked_stream, windows=windows, window=window)
    local = ArtifactStore(folder / "local").save(planned)
    block = min(REQUEST_BYTES, size // 8)
    bound = 4 * size + (1 << 20)
    in_order = np.arange(windows)
    shuffled = numpy_generator(1).permutation(windows)
    taken: dict[str, list[float]] = {}

    def note(name: str, work: Callable[[], Any]) -> None:
        taken.setdefault(name, []).append(seconds(work))

    with server() as filesystem:
        RemoteArtifactStore(URL, FileCache(folder / "made", 1), block).save(planned)
        warm = RemoteArtifactStore(URL, FileCache(folder / "warm", bound), block).load()
        read(opened(warm), in_order, batch)
        for number in range(rounds):
            note("local, in order", lambda: read(opened(local), in_order, batch))
            forget_mapped()
            note("warm, first", lambda: read(opened(warm), in_order, batch))
            note("warm, in order", lambda: read(opened(warm), in_order, batch))
            note("local, shuffled", lambda: read(opened(local), shuffled, batch))
            note("warm, shuffled", lambda: read(opened(warm), shuffled, batch))
            note("s3fs", lambda: read_by_s3fs(filesystem))
            cold = RemoteArtifactStore(URL, FileCache(folder / f"cold{number}", bound), block).load()
            note("cold, in order", lambda cold=cold: read(opened(cold), in_order, batch))
            place = FileCache(folder / f"quarter{number}", max(size // 4, 5 * block))
            part = RemoteArtifactStore(URL, place, block).load()
            note("quarter, in order", lambda part=part: read(opened(part), in_order, batch))
            forget_mapped()
    print(f"{windows:,} windows of {window:,} tokens, {size / 1e6:,.0f} MB, batches of {batch}, {rounds} rounds")
    for name, all_of in taken.items():
        median = statistics.median(all_of)
        per_batch = 1e6 * median / -(-windows // batch)
        print(f"{name:20} {size / 1e6 / median:9,.0f} MB/s  {per_batch:9,.0f} us a batch")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=float, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--window", type=int, default=2049)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        measure(given.megabytes, given.rounds, given.window, given.batch, Path(scratch))


if __name__ == "__main__":
    importlib.import_module(Path(__file__).stem).main()  # not __main__: its function has a module to be imported from
