"""Whatever happens to a process or a disk, the newest checkpoint that was whole can be read, and nothing else is."""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everytoken.seeds import python_random
from everytoken.training.checkpoints import checkpoint_folder
from everytoken.training.checkpoints.checkpoint_folder import look_alike
from everytoken.training.checkpoints.store import CheckpointStore, ValidCheckpoint
from everytoken.training.errors import CheckpointError
from tests.shards.children import Nursery, nursery, wait_until
from tests.shards.folders import content
from tests.training.checkpoints.checkpoint_children import save, write_files

FILES = ["SHA256SUMS", "config.json", "history.parquet", "model.safetensors", "optimizer.safetensors", "state.json"]


def store_of(folder: Path, *, milestone_steps: int | None = None, mirror: bool = False) -> CheckpointStore:
    return CheckpointStore(
        folder / "run", mirror=folder / "mirror" if mirror else None, milestone_steps=milestone_steps
    )


def saved(folder: Path, *steps: int, milestone_steps: int | None = None, mirror: bool = False) -> CheckpointStore:
    store = store_of(folder, milestone_steps=milestone_steps, mirror=mirror)
    for step in steps:
        save(store, step)
    return store


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def steps(folder: Path) -> list[int]:
    return [int(name.removeprefix("step_")) for name in names(folder)]


def newest(store: CheckpointStore) -> ValidCheckpoint:
    found = store.newest()
    assert found is not None
    return found


def flip(path: Path, position: int = -1, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


# What is written


def test_a_checkpoint_is_a_folder_that_sha256sum_verifies(tmp_path: Path) -> None:
    digest = save(store_of(tmp_path), 10)
    folder = tmp_path / "run" / "step_000000010"
    assert names(folder) == FILES
    checked = subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count(": OK") == len(FILES) - 1
    sums = subprocess.run(["sha256sum", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=True)
    assert sums.stdout.split()[0] == digest


def test_the_newest_is_read_with_its_state(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert store.newest() is None
    state = {"tokens": 7, "nested": {"losses": [0.1, None], "name": "é"}}
    digests = [store.save(step, lambda folder: write_files(folder, 3), {**state, "n": step}) for step in (9, 10)]
    assert newest(store_of(tmp_path)) == ValidCheckpoint(
        10, tmp_path / "run" / "step_000000010", {**state, "n": 10}, digests[1], ()
    )


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    digests = [save(store_of(tmp_path / name, mirror=True), 10) for name in ("a", "b")]
    assert digests[0] == digests[1]
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a" / "run") == content(tmp_path / "a" / "mirror")


def write_a_folder(folder: Path) -> None:
    (folder / "deep").mkdir()


def write_a_link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/hostname")


def write_an_odd_name(folder: Path) -> None:
    (folder / "two words").touch()


def write_a_state(folder: Path) -> None:
    (folder / "state.json").touch()


@pytest.mark.parametrize(
    ("files", "state", "message"),
    [
        (write_a_folder, {}, "deep: a checkpoint holds only files"),
        (write_a_link, {}, "link: a checkpoint holds only files"),
        (write_an_odd_name, {}, "two words: a checkpoint holds only files"),
        (write_a_state, {}, "state.json: this file is written by the store"),
        (write_a_folder, {"loss": float("nan")}, r"step 20 cannot be written: state\['loss'\] is nan"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(
    tmp_path: Path, files: Callable[[Path], None], state: dict[str, float], message: str
) -> None:
    store = saved(tmp_path, 10)
    before = content(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        store.save(20, files, state)
    assert content(tmp_path) == before


def test_an_error_of_the_writer_leaves_the_checkpoints_as_they_were(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, mirror=True)
    before = content(tmp_path)

    def interrupted(folder: Path) -> None:
        write_files(folder, 20)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.save(20, interrupted, {})
    assert content(tmp_path) == before


# Which stay


def test_the_two_newest_and_the_milestones_stay(tmp_path: Path) -> None:
    saved(tmp_path, *range(10, 90, 10), milestone_steps=30, mirror=True)
    assert steps(tmp_path / "run") == steps(tmp_path / "mirror") == [30, 60, 70, 80]
    saved(tmp_path / "without", 10, 20, 30, 40)
    assert steps(tmp_path / "without" / "run") == [30, 40]


@pytest.mark.parametrize("read_first", [False, True])
def test_a_damaged_checkpoint_never_takes_the_place_of_a_good_one(tmp_path: Path, read_first: bool) -> None:
    saved(tmp_path, 20, 30, 40)
    flip(tmp_path / "run" / "step_000000040" / "model.safetensors")
    store = store_of(tmp_path)
    assert not read_first or newest(store).step == 30
    save(store, 50)
    assert steps(tmp_path / "run") == [30, 40, 50]
    save(store, 60)
    assert steps(tmp_path / "run") == [50, 60]


def test_damaged_checkpoints_of_later_steps_delete_no_good_one(tmp_path: Path) -> None:
    saved(tmp_path, 30, 40)
    for step in (30, 40):
        flip(tmp_path / "run" / f"step_0000000{step}" / "model.safetensors")
    saved(tmp_path / "other", 10)
    (tmp_path / "other" / "run" / "step_000000010").rename(tmp_path / "run" / "step_000000010")
    store = store_of(tmp_path)
    assert newest(store).step == 10
    save(store, 15)
    assert steps(tmp_path / "run") == [10, 15, 30, 40]


def test_one_cut_since_it_was_written_does_not_count(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20)
    os.truncate(tmp_path / "run" / "step_000000020" / "model.safetensors", 100)
    save(store, 30)
    assert steps(tmp_path / "run") == [10, 20, 30]
    assert newest(store_of(tmp_path)).step == 30


def test_the_checkpoint_just_written_stays_whatever_its_step(tmp_path: Path) -> None:
    saved(tmp_path, 20, 30, 10)
    assert steps(tmp_path / "run") == [10, 20, 30]


def test_a_save_reads_no_tensor_of_an_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = saved(tmp_path, 10, 20)
    read: list[str] = []
    hash_file = checkpoint_folder.file_sha256
    monkeypatch.setattr(
        checkpoint_folder,
        "file_sha256",
        lambda path: (read.append(f"{path.parent.name}/{path.name}"), hash_file(path))[1],
    )
    save(store, 30)
    assert steps(tmp_path / "run") == [20, 30]
    assert {name for name in read if name.startswith("step_")} == {
        "step_000000030/SHA256SUMS",
        "step_000000020/SHA256SUMS",
    }


# A step that is there already


def test_the_same_bytes_again_change_nothing(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20, mirror=True)
    before = content(tmp_path)
    inode = (tmp_path / "run" / "step_000000020").stat().st_ino
    assert save(store, 20) == newest(store).digest
    assert content(tmp_path) == before
    assert (tmp_path / "run" / "step_000000020").stat().st_ino == inode, "a good one keeps its place"


def test_other_bytes_of_a_step_that_verifies_are_refused(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20)
    before = content(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"step_000000020 is there and verifies: .* found others in state\.json\."
    ):
        store.save(20, lambda folder: write_files(folder, 20), {"tokens": 1})
    assert content(tmp_path) == before


def test_a_damaged_step_is_replaced(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20, mirror=True)
    before = content(tmp_path)
    flip(tmp_path / "run" / "step_000000020" / "optimizer.safetensors")
    (tmp_path / "mirror" / "step_000000020" / "SHA256SUMS").unlink()
    save(store, 20)
    assert content(tmp_path) == before


# Damage


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_seen_and_the_previous_one_read(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 10, 20)
    path = tmp_path / "run" / "step_000000020" / name
    flip(path, position=path.stat().st_size // 2)
    with caplog.at_level(logging.WARNING):
        found = newest(store_of(tmp_path))
    assert found.step == 10
    (reason,) = found.skipped
    assert reason in caplog.text
    assert str(path.parent) in reason and "expected" in reason and "found" in reason
    assert name == "SHA256SUMS" or f"{path}: expected SHA-256 " in reason


def test_no_flipped_bit_of_the_digests_goes_unseen(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    path = tmp_path / "run" / "step_000000010" / "SHA256SUMS"
    whole = path.read_bytes()
    for position in range(len(whole)):
        flip(path, position, mask=1 << position % 8)
        with pytest.raises(CheckpointError, match="none of 1 checkpoints verifies"):
            store_of(tmp_path).newest()
        path.write_bytes(whole)
    assert newest(store_of(tmp_path)).step == 10


def test_no_cut_of_the_digests_goes_unseen(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    path = tmp_path / "run" / "step_000000010" / "SHA256SUMS"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="none of 1 checkpoints verifies"):
            store_of(tmp_path).newest()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_seen(tmp_path: Path, name: str) -> None:
    saved(tmp_path, 10, 20)
    (tmp_path / "run" / "step_000000020" / name).unlink()
    found = newest(store_of(tmp_path))
    assert found.step == 10
    assert name in found.skipped[0]


def test_a_file_too_many_is_seen(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    (tmp_path / "run" / "step_000000020" / "model.bin").touch()
    found = newest(store_of(tmp_path))
    assert found.step == 10
    assert found.skipped[0].endswith("model.bin: expected no such file (SHA256SUMS does not list it), found one")


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    (tmp_path / "run" / "step_000000010").rename(tmp_path / "run" / "step_000000030")
    found = newest(store_of(tmp_path))
    assert found.step == 20
    assert "of step_000000010: another version wrote it, or the folder was renamed" in found.skipped[0]


def test_when_none_verifies_the_error_says_why_of_each(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20)
    flip(tmp_path / "run" / "step_000000010" / "config.json")
    (tmp_path / "run" / "step_000000020" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)none of 2 checkpoints verifies.*model\.safetensors.*config\.json"):
        store_of(tmp_path).newest()


# The mirror


def test_a_good_copy_in_the_mirror_is_used(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20, mirror=True)
    flip(tmp_path / "run" / "step_000000020" / "model.safetensors")
    found = newest(store_of(tmp_path, mirror=True))
    assert found.folder == tmp_path / "mirror" / "step_000000020"
    assert len(found.skipped) == 1
    shutil.rmtree(tmp_path / "run")
    assert newest(store).folder == tmp_path / "mirror" / "step_000000020"
    flip(tmp_path / "mirror" / "step_000000020" / "model.safetensors")
    assert newest(store).folder == tmp_path / "mirror" / "step_000000010"


def test_the_own_folder_comes_before_the_mirror(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20, mirror=True)
    assert newest(store).folder == tmp_path / "run" / "step_000000020"


def test_training_goes_on_from_the_mirror_alone(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20, mirror=True)
    shutil.rmtree(tmp_path / "run")
    save(store, 30)
    assert steps(tmp_path / "run") == [30]
    assert steps(tmp_path / "mirror") == [20, 30]


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A disk of its own in ``folder``, or the test is skipped with the reason."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"no disk can be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def check_that_only_the_mirror_failed(folder: Path, mirror: Path, cause: str) -> None:
    store = CheckpointStore(folder / "run", mirror=mirror, milestone_steps=None)
    with pytest.raises(CheckpointError, match=cause) as caught:
        save(store, 20)
    message = str(caught.value)
    where = f"{folder / 'run' / 'step_000000020'} is written, its copy in the mirror {mirror} is not: "
    assert message.startswith(where)
    assert message.endswith("it goes on from step 20")
    assert newest(store_of(folder)).step == 20


def test_a_read_only_mirror_is_an_error_and_the_checkpoint_whole(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    with mounted(tmp_path / "disk", "ro") as disk:
        check_that_only_the_mirror_failed(tmp_path, disk / "mirror", "Read-only file system")


def test_a_mirror_that_cannot_be_a_folder_is_an_error_and_the_checkpoint_whole(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    (tmp_path / "file").touch()
    check_that_only_the_mirror_failed(tmp_path, tmp_path / "file" / "mirror", "Not a directory")


def test_a_full_mirror_is_an_error_and_the_checkpoint_whole(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    with mounted(tmp_path / "disk", "size=12k") as disk:
        check_that_only_the_mirror_failed(tmp_path, disk / "mirror", "No space left on device")
        assert names(disk / "mirror") == []


def test_a_mirror_that_is_a_file_is_refused_before_training(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    (tmp_path / "mirror").touch()
    with pytest.raises(CheckpointError, match=r"mirror: expected a folder of checkpoints: .*Not a directory"):
        store_of(tmp_path, mirror=True).newest()


def remove(copy: Path) -> None:
    shutil.rmtree(copy)


def cut(copy: Path) -> None:
    os.truncate(copy / "model.safetensors", 100)


@pytest.mark.parametrize("missing", [(50,), (20,), (20, 40, 50)], ids=str)
@pytest.mark.parametrize("damage", [remove, cut])
def test_copies_that_failed_or_were_killed_are_made_up_for(
    tmp_path: Path, missing: tuple[int, ...], damage: Callable[[Path], None]
) -> None:
    saved(tmp_path, 10, 20, 30, 40, 50, mirror=True, milestone_steps=20)
    expected = content(tmp_path)
    for step in missing:
        damage(tmp_path / "mirror" / f"step_{step:09d}")
    (tmp_path / "mirror" / ".step_000000050.7.tmp").mkdir()
    (tmp_path / "mirror" / ".step_000000050.7.tmp" / "model.safetensors").touch()
    store_of(tmp_path, mirror=True, milestone_steps=20).complete_mirror()
    assert content(tmp_path) == expected


def test_temporaries_go_from_a_mirror_that_lacks_nothing_and_no_file_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 10, 20, mirror=True)
    expected = content(tmp_path)
    (tmp_path / "mirror" / ".step_000000030.7.tmp").mkdir()
    monkeypatch.setattr(checkpoint_folder, "file_sha256", lambda path: pytest.fail(f"{path} was read"))
    store_of(tmp_path, mirror=True).complete_mirror()
    assert content(tmp_path) == expected


def test_the_mirror_gets_what_stays_and_nothing_damaged(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20, 30, 40, milestone_steps=10)
    flip(tmp_path / "run" / "step_000000040" / "model.safetensors")
    assert newest(store).step == 30
    store_of(tmp_path, mirror=True).complete_mirror()
    assert steps(tmp_path / "mirror") == [20, 30]


def test_a_mirror_that_cannot_be_completed_is_an_error_that_says_where_the_run_is(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, milestone_steps=10)
    (tmp_path / "file").touch()
    store = CheckpointStore(tmp_path / "run", mirror=tmp_path / "file" / "mirror", milestone_steps=None)
    assert newest(store).step == 20
    with pytest.raises(CheckpointError, match=r"step_000000020 is written, its copy in the mirror .* from step 20$"):
        store.complete_mirror()


@pytest.mark.parametrize("mirror", [".", "mirror", ".."])
def test_a_mirror_within_the_run_is_refused(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(CheckpointError, match="must not hold each other"):
        CheckpointStore(tmp_path / "run", mirror=tmp_path / "run" / mirror, milestone_steps=None)


# Full disks, foreign files, other processes


def check_that_the_earlier_ones_stay(store: CheckpointStore, cause: str, size: int) -> None:
    before = content(store.root)
    with pytest.raises(CheckpointError, match=cause) as caught:
        save(store, 20, size)
    assert str(caught.value).startswith(f"{store.root / 'step_000000020'}: the checkpoint could not be written: ")
    assert "bytes are free" in str(caught.value) and "free space or mend the disk" in str(caught.value)
    assert content(store.root) == before


def test_a_full_disk_leaves_the_checkpoints_as_they_were(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=256k") as disk:
        store = saved(disk, 10)
        check_that_the_earlier_ones_stay(store, "No space left on device", size=100_000)
        save(store, 20)
        assert newest(store).step == 20


def test_a_file_that_grows_too_large_leaves_the_checkpoints_as_they_were(tmp_path: Path) -> None:
    store = saved(tmp_path, 10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        check_that_the_earlier_ones_stay(store, "File too large", size=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "name", ["notes.txt", "step_10", "step_0000000010", ".hidden", "model.safetensors", "step_000000010"]
)
def test_a_folder_with_foreign_files_is_refused(tmp_path: Path, name: str) -> None:
    for place in ("run", "mirror"):
        folder = tmp_path / place
        folder.mkdir()
        (folder / name).touch()
        store = store_of(tmp_path, mirror=True)
        with pytest.raises(CheckpointError, match=f"expected the checkpoints of one run and nothing else.*{name}"):
            store.newest()
        with pytest.raises(CheckpointError, match=f"expected the checkpoints of one run and nothing else.*{name}"):
            save(store, 20)
        assert names(folder) == [name]
        shutil.rmtree(tmp_path / "run")


def test_a_folder_that_cannot_be_made_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with (
        pytest.raises(CheckpointError, match=r"run: no checkpoint can be written: .*give another folder"),
        store_of(tmp_path).writing(),
    ):
        pass


def test_temporaries_of_killed_saves_go_at_the_next_one(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    for name in (".step_000000020.7.tmp", ".step_000000010.7.old.tmp"):
        (tmp_path / "run" / name).mkdir()
        (tmp_path / "run" / name / "model.safetensors").touch()
    assert newest(store_of(tmp_path)).step == 10
    saved(tmp_path, 20)
    assert steps(tmp_path / "run") == [10, 20]


# Processes


@pytest.fixture(scope="module")
def births() -> Iterator[Nursery]:
    with nursery("tests.training.checkpoints.checkpoint_children") as found:
        yield found


@pytest.mark.sensitive
def test_a_second_process_is_refused_until_the_first_ends(births: Nursery, tmp_path: Path) -> None:
    child = births.start(root=str(tmp_path), mirror=False, hold=str(tmp_path / "held"))
    wait_until((tmp_path / "held").exists, "the child did not start")
    with pytest.raises(CheckpointError, match="run: another process trains this run"):
        save(store_of(tmp_path), 10)
    os.kill(child, signal.SIGKILL)
    births.end()
    save(store_of(tmp_path), 10)
    assert steps(tmp_path / "run") == [10]


# Kills


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], str]:
    """Return the digest of a checkpoint of which nobody disturbed the writing."""
    folder = tmp_path_factory.mktemp("undisturbed")
    known: dict[tuple[int, int], str] = {}

    def digest(step: int, size: int) -> str:
        if (step, size) not in known:
            known[step, size] = save(store_of(folder / str(size)), step, size)
        return known[step, size]

    return digest


@pytest.mark.sensitive
@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(False, id="new, with a mirror", marks=pytest.mark.slow),
        pytest.param(True, id="replaces a damaged one"),
    ],
)
def test_killed_before_any_operation_on_files(
    births: Nursery, tmp_path: Path, damaged: bool, digests: Callable[[int, int], str]
) -> None:
    """Every moment between two operations on files, one after the other: step 20 or 30 is there, and whole."""
    mirror = not damaged
    saved(tmp_path / "before", *([10, 20, 30] if damaged else [10, 20]), mirror=mirror)
    if damaged:
        flip(tmp_path / "before" / "run" / "step_000000030" / "model.safetensors")
    saved(tmp_path / "after", 10, 20, 30, mirror=mirror)
    operation, killed, found = 0, True, set()
    attacked = tmp_path / "attacked"
    while killed:
        operation += 1
        shutil.rmtree(attacked, ignore_errors=True)
        shutil.copytree(tmp_path / "before", attacked)
        births.start(root=str(attacked), saves=1, size=1000, mirror=mirror, die_at=operation)
        code = births.end()
        assert code in (0, -signal.SIGKILL)
        killed = code != 0
        left = newest(store_of(attacked, mirror=mirror))
        assert left.step in (20, 30)
        assert left.digest == digests(left.step, 1000)
        found.add((left.step, left.folder.parent.name))
        for folder in attacked.glob("*/step_*"):
            if not (damaged and folder.name == "step_000000030"):
                checkpoint_folder.verify_checkpoint(folder)  # none is half deleted
        save(store_of(attacked, mirror=mirror), 30)
        assert content(attacked) == content(tmp_path / "after")
    assert operation > 30
    assert found == {(20, "run"), (30, "run")}


@pytest.mark.slow
@pytest.mark.sensitive
def test_killed_at_fifty_random_moments(births: Nursery, tmp_path: Path, digests: Callable[[int, int], str]) -> None:
    """A process that resumes and saves, killed again and again: never back behind a checkpoint that was whole."""
    size = 50_000
    save(store_of(tmp_path, mirror=True), 10, size)
    start = time.monotonic()
    save(store_of(tmp_path, mirror=True), 20, size)
    seconds = time.monotonic() - start
    moments, longest = python_random(20, "checkpoints"), 3 * seconds
    last, kills, advances = 20, 0, 0
    while kills < 50:
        child = births.start(root=str(tmp_path), saves=3, size=size, mirror=True)
        time.sleep(moments.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        killed = births.end() != 0
        kills += killed
        longest *= 1.02 if killed else 0.9  # about one process in six ends by itself, on any machine
        left = newest(store_of(tmp_path, mirror=True))
        assert last <= left.step <= last + 30
        assert left.digest == digests(left.step, size)
        advances += left.step > last
        last = left.step
    assert advances > 5
    save(store_of(tmp_path, mirror=True), last + 10, size)
    assert steps(tmp_path / "run") == [last, last + 10]
    save(store_of(tmp_path, mirror=True), last + 20, size)  # the last kill may have come before the copy of its step
    assert steps(tmp_path / "run") == steps(tmp_path / "mirror") == [last + 10, last + 20]


def test_the_state_file_says_its_step(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    document = json.loads((tmp_path / "run" / "step_000000010" / "state.json").read_text())
    assert document == {"format": "everytoken-training-state/1", "step": 10, "state": {"tokens": 1280}}


def test_a_checkpoint_of_no_step_is_one_and_of_fewer_is_none(tmp_path: Path) -> None:
    store = saved(tmp_path, 0)
    assert (newest(store).step, newest(store).state) == (0, {"tokens": 0})
    with pytest.raises(CheckpointError, match="a checkpoint of step -1: expected 0 or more steps done"):
        save(store, -1)
    assert steps(tmp_path / "run") == [0]


def test_folders_look_alike_by_names_sizes_and_sums(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "SHA256SUMS").write_text("sums")
        (folder / "model").write_bytes(b"12")
    assert look_alike(first, second)
    (second / "model").write_bytes(b"123")
    assert not look_alike(first, second)
    (second / "model").write_bytes(b"12")
    (second / "SHA256SUMS").write_text("some")
    assert not look_alike(first, second)
    assert not look_alike(first, tmp_path / "nowhere")
