"""A minute of `make soak`, and the tools that it works with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.soak.disk import small_disk
from tests.soak.object_store import BUCKET, ObjectStore
from tests.soak.soak import Failed, compare, soak
from tests.test_run import Project


@pytest.mark.slow
@pytest.mark.sensitive
def test_the_same_files_after_a_minute_of_kills_and_troubles(tmp_path: Path) -> None:
    counts = soak(seconds=60, kills=5, seed=26, folder=tmp_path)
    assert counts["kill of a main process"] + counts["kill of a worker"] >= 5


def test_a_comparison_finds_a_changed_byte_another_digest_and_a_file_that_is_left(tmp_path: Path) -> None:
    projects = []
    for name in ("attacked", "undisturbed"):
        (tmp_path / name / "data/test/documents").mkdir(parents=True)
        (tmp_path / name / "data/test/documents/ledger.json").write_text('{"root_digest": "1"}')
        (tmp_path / name / "data/test/documents/part.parquet").write_bytes(b"PAR1")
        project = object.__new__(Project)
        project.folder = tmp_path / name
        projects.append(project)
    compare(*projects)
    folder = tmp_path / "attacked/data/test/documents"
    (folder / "part.parquet").write_bytes(b"PAR2")
    with pytest.raises(Failed, match=r"other files than those of an undisturbed run: \['documents/part\.parquet'\]"):
        compare(*projects)
    (folder / "part.parquet").write_bytes(b"PAR1")
    (folder / ".part.parquet.7.tmp").touch()
    with pytest.raises(Failed, match=r"left behind: \['data/test/documents/\.part\.parquet\.7\.tmp'\]; missing: \[\]"):
        compare(*projects)
    (folder / ".part.parquet.7.tmp").unlink()
    for name, run in (("attacked", "0" * 16), ("attacked", "1" * 16), ("undisturbed", "1" * 16)):
        (tmp_path / name / f"data/test/checkpoints/{run}/step_000000008").mkdir(parents=True)
    compare(*projects)
    left = tmp_path / "attacked/data/test/checkpoints" / ("0" * 16) / ".step_000000008.7.tmp"
    left.mkdir()
    with pytest.raises(Failed, match=r"left behind: \['data/test/checkpoints/RUN/\.step_000000008\.7\.tmp'\]"):
        compare(*projects)
    left.rmdir()
    (folder / "ledger.json").write_text('{"root_digest": "2"}')
    with pytest.raises(Failed, match=r"other digests than those of an undisturbed run: \['documents'\]"):
        compare(*projects)


@pytest.mark.sensitive
def test_the_object_store_comes_back_with_its_objects_and_with_new_ones(tmp_path: Path) -> None:
    import boto3

    (tmp_path / "a.txt").write_text("one")
    store = ObjectStore(tmp_path)
    try:
        store.wait_until_it_answers(180)
        client = boto3.client(
            "s3",
            endpoint_url=store.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="key",
            aws_secret_access_key="none",
            region_name="us-east-1",
        )

        def tags() -> dict[str, str]:
            listed = client.list_objects_v2(Bucket=BUCKET)["Contents"]
            return {found["Key"]: found["ETag"] for found in listed}

        before = tags()
        assert list(before) == ["texts/a.txt"]
        store.kill()
        (tmp_path / "b.txt").write_text("two")
        store.wait_until_it_answers(180)
        after = tags()
        assert list(after) == ["texts/a.txt", "texts/b.txt"] and after["texts/a.txt"] == before["texts/a.txt"]
    finally:
        store.close()


def test_a_small_disk_becomes_full_and_roomy_again(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        if not disk.can_be_full:
            pytest.skip("this user may not mount a tmpfs")
        disk.fill(8192)
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "x").write_bytes(bytes(1 << 20))
        disk.make_room()
        (tmp_path / "x").write_bytes(bytes(1 << 20))
    assert subprocess.run(["mountpoint", "-q", str(tmp_path)], check=False).returncode != 0
