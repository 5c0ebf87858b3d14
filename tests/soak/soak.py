"""A corpus that grows while its runs are killed, its disk is full or slow, and its object store dies.

    python -m tests.soak.soak --seconds 1800 --kills 200 [--seed N]

A round lets the corpus grow, starts a run with two workers, and attacks it. At the end one run is left in peace. Its
files must be those of a run with one worker that nobody ever disturbed, and nothing else may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from subprocess import STDOUT, Popen
from typing import Any

from everytoken.seeds import python_random
from tests.shards.children import PATIENCE, group_members, wait_until_empty
from tests.soak.disk import Disk, limit_files, small_disk
from tests.soak.object_store import BUCKET, ObjectStore
from tests.test_run import Project
from tests.warm_kedro import Started

CORPUS = "ingestion,annotation,subsampling,tokenization"
TRAINED = f"{CORPUS},training"
MOST_FILES = 60  # a run that looks at more takes so long that there are few kills a minute
SLOW = {
    "PYTHONPATH": str(Path(__file__).parent / "slow_disk"),
    "SOAK_SLOW_DISK": "0.005",
}
TROUBLES = ("none", "none", "none", "full disk", "file limit", "slow disk")
INSULTS = ("idiot", "stupid", "damn", "moron")  # what makes a document one to annotate
# What killed processes leave in the system's folder for temporary files: sockets of Python, what torch compiles, and
# the text that was just handed to MLflow.
_OF_SYSTEM = re.compile(r"pymp-\w+|torchinductor_\w+|tmp\w{8}")


class Failed(Exception):
    """The product did not do what it promises."""


class Soak:
    """A project under attack, its corpus and its object store."""

    def __init__(self, seed: int, folder: Path, disk: Disk, store: ObjectStore) -> None:
        self.draw = python_random(seed, "soak")
        self.folder, self.disk, self.store = folder, disk, store
        self.project = make_project(folder / "disk/project", folder, "{kind: processes, workers: 2}")
        self.counts: Counter[str] = Counter()
        self._longest = {CORPUS: 10.0, TRAINED: 15.0}  # seconds of a run: what the moments are drawn from
        self._temporary = folder / "disk/tmp"
        self._temporary.mkdir()
        self._died_this_run = False

    def environment(self) -> dict[str, str]:
        return {**self.store.environment, "TMPDIR": str(self._temporary)}

    @property
    def kills(self) -> int:
        """The processes of runs that were killed."""
        return self.counts["kill of a main process"] + self.counts["kill of a worker"]

    def round(self) -> None:
        """Let the corpus grow, start a run, attack it, and check how it ended."""
        if self.draw.random() < 0.4:
            self.counts["files added"] += grow(self.folder, self.draw)
        pipelines = TRAINED if self.draw.random() < 0.2 else CORPUS
        trouble = self.draw.choice(TROUBLES)
        if trouble == "full disk" and not self.disk.can_be_full:
            trouble = "file limit"
        run = self._start(pipelines, trouble)
        self.counts["runs"] += 1
        start = time.monotonic()
        kills = self.kills
        try:
            is_killed = self._attack(run, pipelines, trouble)
        finally:
            self.disk.make_room()
        code, output = run.wait(PATIENCE), run.communicate()[0] or ""
        wait_until_empty(run.pid, "a worker outlived its parent")
        if is_killed and code == -signal.SIGKILL:
            self.counts["kill of a main process"] += 1
            self.counts[f"main process killed in {reached(output)}"] += 1
            self._longest[pipelines] *= 1.02
            return
        if code == 0:
            self._longest[pipelines] = 0.8 * self._longest[pipelines] + 0.2 * (time.monotonic() - start)
        self.counts["runs that ended well" if code == 0 else f"runs that ended in an error: {trouble}"] += 1
        disturbed = trouble in ("full disk", "file limit") or self._died_this_run or self.kills > kills
        if code not in (0, 1) or "Traceback (most recent" in output or (code and not disturbed):
            raise Failed(f"a run of {pipelines} under {trouble} ended with {code}:\n{output}")

    def _start(self, pipelines: str, trouble: str) -> Started | _Cold:
        arguments = ["run", "--env", "test", "--pipelines", pipelines]
        if trouble == "slow disk":  # Python reads the module that slows it when it starts
            return _Cold(arguments, self.project, {**self.environment(), **SLOW})
        return self.project.start(*arguments, **self.environment())

    def _attack(self, run: Started | _Cold, pipelines: str, trouble: str) -> bool:
        """Do until the end of a run what was drawn for it; return whether its main process was killed."""
        draw, start = self.draw, time.monotonic()
        longest = self._longest[pipelines]
        at_main = draw.uniform(0, 1.3) * longest * (2 if trouble == "slow disk" else 1)
        at_trouble = draw.uniform(0, 0.9) * longest
        at_worker = draw.uniform(0, 0.5) * longest
        at_store = draw.uniform(0, 2.0) * longest if self.store.is_started else 0.0
        back_after = draw.uniform(0, 3.0)
        for_workers = draw.choice([0, 1, 2, 5, 9])
        size = int(2 ** draw.uniform(8, 18))
        self._died_this_run = not self.store.is_started
        while run.poll() is None:
            now = time.monotonic() - start
            if now > at_main:
                os.kill(run.pid, signal.SIGKILL)
                return True
            if trouble in ("full disk", "file limit") and now > at_trouble:
                self.counts[trouble] += 1
                self.disk.fill(size) if trouble == "full disk" else limit_files(run.pid, size)
                at_trouble = float("inf")
            if now > at_store and self.store.is_started:
                self.store.kill()
                self.counts["kill of the object store"] += 1
                self._died_this_run = True
                at_store += back_after
            elif now > at_store and not self.store.is_started:
                self.store.start()
                at_store = float("inf")
            if for_workers and now > at_worker and (workers := workers_of(run.pid)):
                time.sleep(draw.uniform(0, 0.1))
                killed = kill_one(draw.choice(workers), run.pid)
                for_workers -= killed
                self.counts["kill of a worker"] += killed
                at_worker = now + draw.choice([0.0, draw.uniform(0, 0.2) * longest])
            time.sleep(0.02)
        return False

    def finish(self) -> None:
        """Run once in peace, and compare with what nobody disturbed.

        Raises:
            Failed: a run failed, a byte or a digest differs, or something is left.
        """
        if self.store.is_started:
            self.store.kill()  # from now on it serves all that the corpus has
        self.store.wait_until_it_answers(PATIENCE)
        undisturbed = make_project(self.folder / "undisturbed", self.folder, "{kind: processes, workers: 1}")
        for project in (self.project, undisturbed):
            project.kedro("run", "--env", "test", "--pipelines", TRAINED, **self.environment())
        compare(self.project, undisturbed)
        left = [path.name for path in self._temporary.iterdir() if not _OF_SYSTEM.fullmatch(path.name)]
        if left:
            raise Failed(f"left in the folder for temporary files: {sorted(left)}")


class _Cold:
    """A run that begins with the start of Python, with what `Started` offers of it."""

    def __init__(self, arguments: Sequence[str], project: Project, environment: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # closed by communicate
        command = [sys.executable, "-m", "kedro", *arguments]
        environment = project.environment(environment)
        self._process = Popen(
            command, cwd=project.folder, env=environment, stdout=self._output, stderr=STDOUT, start_new_session=True
        )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float) -> int:
        return self._process.wait(timeout)

    def communicate(self) -> tuple[str, str]:
        with self._output as output:
            output.seek(0)
            return output.read(), ""


def make_project(folder: Path, shared: Path, engine: str) -> Project:
    """Make a copy of the project whose environment ``test`` reads the corpus of the soak."""
    project = Project(folder)
    project.use_engine(engine)
    sources: dict[str, Any] = dict.fromkeys(("wikipedia", "chats", "champ", "flan_cot"))
    sources["local"] = {"upstream": {"kind": "path", "root": str(shared / "texts")}}
    sources["remote"] = {"upstream": {"kind": "path", "root": f"s3://{BUCKET}/texts"}}
    parameters = {"ingestion": {"plan": {"n_shards": None}, "sources": sources}}
    (project.folder / "conf/test/parameters_ingestion.yml").write_text(json.dumps(parameters))
    return project


def grow(folder: Path, draw: Random) -> int:
    """Add some files to the corpus, here and in the folder of the object store; return how many."""
    added = 0
    for place, rows in ((folder / "texts", 20), (folder / "objects", 60)):
        have = len(list(place.iterdir()))
        for number in range(have, min(have + draw.randrange(3), MOST_FILES // 2)):
            lines = [json.dumps({"id": f"{number}-{row}", "text": text_of(draw)}) for row in range(rows)]
            whole = folder / "growing"
            whole.write_text("\n".join(lines) + "\n")
            whole.rename(place / f"{number:04}.jsonl")
            added += 1
    return added


def text_of(draw: Random) -> str:
    """Draw a text of words that nobody has seen before, some of them with an insult."""
    words = ["".join(draw.choices("abdeghilmnorstu", k=draw.randrange(2, 8))) for _ in range(draw.randrange(10, 80))]
    return " ".join([*words, draw.choice(INSULTS)] if draw.random() < 0.2 else words)


def reached(output: str) -> str:
    """Return the pipeline in which a run ended."""
    stages: list[str] = re.findall(r"Stage \d+ of \d+: (\w+)\.", output)
    return stages[-1] if stages else "its start"


def workers_of(main: int) -> list[int]:
    """Return the workers of a run: the processes that its fork server started."""
    parents = {process: parent for process in group_members(main) if (parent := parent_of(process))}
    return [process for process, parent in parents.items() if parents.get(parent) == main]


def parent_of(process: int) -> int | None:
    """Return the number of the parent of a process; None if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def kill_one(worker: int, main: int) -> bool:
    """Kill a worker; return whether it was still one of the run."""
    if worker not in workers_of(main):
        return False
    os.kill(worker, signal.SIGKILL)
    return True


def compare(attacked: Project, undisturbed: Project) -> None:
    """Compare all files of two projects.

    Raises:
        Failed: a digest or byte differs, or a file is there that the other one does not have.
    """
    digests = [project.digests() for project in (attacked, undisturbed)]
    if not digests[1]:
        raise Failed("there is nothing to compare")
    wrong = [name for name in digests[0].keys() | digests[1] if digests[0].get(name) != digests[1].get(name)]
    if wrong:
        raise Failed(f"other digests than those of an undisturbed run: {sorted(wrong)}")
    files = [project.files() for project in (attacked, undisturbed)]
    wrong = [name for name in files[0].keys() | files[1] if files[0].get(name) != files[1].get(name)]
    if wrong:
        raise Failed(f"other files than those of an undisturbed run: {sorted(wrong)}")
    names = [names_of(project) for project in (attacked, undisturbed)]
    if names[0] != names[1]:
        raise Failed(f"left behind: {sorted(names[0] - names[1])}; missing: {sorted(names[1] - names[0])}")


def names_of(project: Project) -> set[str]:
    """Return the names of all files and folders of the data.

    A training of an earlier corpus is another run and keeps its checkpoints: in a folder there may be what is in that
    of the undisturbed run, and nothing else.
    """
    paths = [path.relative_to(project.folder).as_posix() for path in (project.folder / "data").rglob("*")]
    return {re.sub(r"/checkpoints/[0-9a-f]{16}", "/checkpoints/RUN", path) for path in paths}


def soak(seconds: float, kills: int, seed: int, folder: Path) -> Counter[str]:
    """Soak for so long, and until so many processes of runs were killed; return what happened how often.

    Args:
        seconds: how long runs are attacked; the comparison comes after that.
        kills: of main processes and workers, at least.
        seed: of everything that is drawn. The moments of the machine are its own, so no soak is exactly like another.
        folder: empty; after a failure ``at_failure`` in it is what the disk had.

    Raises:
        Failed: the product did not do what it promises.
    """
    print(f"seed {seed}", flush=True)
    for name in ("texts", "objects", "disk"):
        (folder / name).mkdir()
    first = python_random(seed, "first files")
    while min(len(list((folder / name).iterdir())) for name in ("texts", "objects")) < 3:
        grow(folder, first)
    with small_disk(folder / "disk") as disk, closing(ObjectStore(folder / "objects")) as store:
        try:
            store.wait_until_it_answers(PATIENCE)
            trial = Soak(seed, folder, disk, store)
            end, told = time.monotonic() + seconds, 0.0
            while time.monotonic() < end or trial.kills < kills:
                trial.round()
                if time.monotonic() > told + 30:
                    print(", ".join(f"{name} {count}" for name, count in sorted(trial.counts.items())), flush=True)
                    told = time.monotonic()
            trial.finish()
        except Exception:
            sockets = shutil.ignore_patterns("pymp-*")
            shutil.copytree(folder / "disk", folder / "at_failure", symlinks=True, ignore=sockets)
            raise
        return trial.counts


def main() -> None:
    """Soak as the command line says, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--kills", type=int, required=True, help="of workers and main processes, at least")
    parser.add_argument("--seed", type=int, help="of a soak that is to be repeated; without it a new one is drawn")
    given = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="everytoken-soak-"))
    try:
        counts = soak(given.seconds, given.kills, seed, folder)
    except Exception:
        print(f"seed {seed}: failed; {folder} has what is left", flush=True)
        raise
    shutil.rmtree(folder)
    for name, count in sorted(counts.items()):
        print(f"{count:6,} {name}")
    print("the same files as an undisturbed run, and nothing left")


if __name__ == "__main__":
    main()
