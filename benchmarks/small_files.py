"""CPU seconds of ``kedro run --pipelines ingestion`` over many small files, several of them in a part.

``python benchmarks/small_files.py [--files 100000] [--bytes 1000] [--together 1000] [--workers 2]`` writes the files (a
text of words each) and runs the pipeline on them in a new process. The figures are user and system time of the process
and all that it starts (on Linux), and the files of the store that has what was read. Then the run is repeated, which
finds all made, and once more after one file has changed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from everytoken.seeds import python_random

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphans become children of this process, and count as such
ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = """\
ingestion:
  sources:
    wikipedia: null
    chats: null
    champ: null
    flan_cot: null
    small: {{upstream: {{kind: path, root: {root}}}, files_per_shard: {together}}}
"""


def write_files(folder: Path, files: int, size: int) -> None:
    """Write texts of drawn words, a thousand files in a folder."""
    draw = python_random(5, "small files")
    words = ["".join(draw.choices("abcdefghijklmnopqrst", k=2 + number % 9)) for number in range(4_000)]
    for number in range(files):
        place = folder / f"{number // 1_000:04d}"
        place.mkdir(parents=True, exist_ok=True)
        text = " ".join(draw.choices(words, k=size // 5))
        (place / f"{number:07d}.txt").write_text(text[:size])


def run(project: Path) -> tuple[float, float, int]:
    """Run the pipeline; return CPU seconds of all processes, seconds, and the largest memory of one of them in MB."""
    command = [sys.executable, "-m", "everytoken", "--env", "small", "--conf-source", "conf"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "DO_NOT_TRACK": "1"}
    done = subprocess.run(
        [*command, "--pipelines", "ingestion"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    with contextlib.suppress(ChildProcessError):  # the server of the workers, which ends after the run
        while True:
            os.wait()
    if done.returncode != 0:
        raise SystemExit(f"the run ended with {done.returncode}:\n{done.stderr[-3000:]}{done.stdout[-3000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, seconds, after.ru_maxrss // 1024


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--files", type=int, default=100_000)
    arguments.add_argument("--bytes", type=int, default=1_000)
    arguments.add_argument("--together", type=int, default=1_000)
    arguments.add_argument("--workers", type=int, default=2)
    given = arguments.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as temporary:
        texts, project = Path(temporary, "texts"), Path(temporary, "project")
        write_files(texts, given.files, given.bytes)
        shutil.copytree(ROOT / "conf", project / "conf")
        own = project / "conf/small"
        own.mkdir()
        engine = f"{{kind: processes, workers: {given.workers}}}"
        (own / "globals.yml").write_text(f"data: data/small\nengine: {engine}\n")
        (own / "parameters_ingestion.yml").write_text(ENVIRONMENT.format(root=texts, together=given.together))
        taken = {"all": run(project), "again": run(project)}
        (texts / "0000/0000000.txt").write_text("Another text, of some sixty characters, in the first file.")
        taken["one file changed"] = run(project)
        store = project / "data/small/02_intermediate/upstream_documents"
        parts = json.loads((store / "ledger.json").read_text())["parts"]
        kept, rows = sum(1 for _ in store.iterdir()), sum(part["rows"] for part in parts)
    print(f"{given.files:,} files of {given.bytes:,} bytes, {given.together:,} a part, {given.workers} workers")
    print(f"{rows:,} documents in {len(parts):,} parts, {kept:,} files in the store")
    print(f"{'run':<20}{'CPU s':>9}{'s':>9}{'MB':>7}")
    for name, (cpu, seconds, megabytes) in taken.items():
        print(f"{name:<20}{cpu:>9.1f}{seconds:>9.1f}{megabytes:>7}")


if __name__ == "__main__":
    main()
