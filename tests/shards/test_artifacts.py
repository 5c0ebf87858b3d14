"""An artifact is a folder that appears whole, says what is in it, and is made again only when something changed."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest

from everytoken.shards import (
    Artifact,
    ArtifactStore,
    DamagedStore,
    IncompleteStore,
    Inline,
    ShardsError,
    Store,
    StoreBusy,
    file_sha256,
    plan_artifact,
    table_digest,
)
from everytoken.shards.atomic import sole_writer
from tests.shards.folders import content
from tests.shards.functions import (
    SCHEMA,
    batch,
    build_badly,
    build_folder,
    build_nothing,
    count_up,
    given,
    version_of,
)

Ran = Callable[[], list[str]]


def make(root: Path, planned: Artifact) -> Artifact:
    return ArtifactStore(root).save(planned)


def test_a_made_artifact_says_what_is_in_it(tmp_path: Path) -> None:
    made = make(tmp_path / "a", plan_artifact(build_folder, factor=3))
    assert made.path("deep/er/numbers.bin").read_bytes() == b"\x03" * 1000
    assert made.path("name.txt").read_text() == "factor 3\n"
    assert made.statistics == {"factor": 3}
    assert set(made.measured) == {"seconds"}
    names = ["deep/er/numbers.bin", "name.txt", "table.parquet"]
    assert list(content(tmp_path / "a")) == ["deep/er/numbers.bin", "ledger.json", "name.txt", "table.parquet"]
    assert made.bytes == sum(made.path(name).stat().st_size for name in names)
    files = made.ledger["files"]
    assert {name: files[name]["sha256"] for name in names} == {name: file_sha256(made.path(name)) for name in names}
    assert files["table.parquet"]["content_digest"] == table_digest(SCHEMA, [batch(3, 20)])
    assert ArtifactStore(tmp_path / "a").load() == made
    with pytest.raises(DamagedStore, match=r"has no file 'other', only \['deep/er/numbers.bin'"):
        made.path("other")


def test_measurements_are_no_part_of_the_digest(tmp_path: Path) -> None:
    first, second = (make(tmp_path / name, plan_artifact(build_folder, factor=3)) for name in "ab")
    assert first.measured != second.measured
    assert first.root_digest == second.root_digest
    assert first.root_digest != make(tmp_path / "c", plan_artifact(build_folder, factor=4)).root_digest


def test_nothing_to_do_leaves_every_byte_and_time(tmp_path: Path, ran: Ran) -> None:
    make(tmp_path / "a", plan_artifact(build_folder, factor=3))
    times = {path: path.stat().st_mtime_ns for path in [tmp_path / "a", *(tmp_path / "a").rglob("*")]}
    before = content(tmp_path / "a")
    assert ran() == ["artifact"]
    make(tmp_path / "a", plan_artifact(build_folder, factor=3))
    assert ran() == []
    assert content(tmp_path / "a") == before
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_whatever_decides_the_output_makes_it_again(tmp_path: Path, ran: Ran) -> None:
    def again(**inputs: Any) -> bool:
        make(tmp_path / "a", plan_artifact(build_folder, **inputs))
        return ran() != []

    source = ArtifactStore(tmp_path / "source")
    rows = Store(tmp_path / "rows")
    rows.save(given(2).map(count_up), Inline())
    first = source.save(plan_artifact(build_folder, factor=1))
    ran()
    assert again(factor=1)
    assert again(factor=2)
    assert again(factor=2, source=first)
    assert not again(factor=2, source=source.load())
    assert again(factor=2, source=source.save(plan_artifact(build_folder, factor=5)))
    assert again(factor=2, source=rows.load())
    assert not again(factor=2, source=rows.load())
    rows.save(given(2, changed=1).map(count_up), Inline())
    assert again(factor=2, source=rows.load())
    with version_of(build_folder, 2):
        assert again(factor=2, source=rows.load())
    assert "old.tmp" not in str(content(tmp_path))


@pytest.mark.parametrize("name", ["name.txt", "deep/er/numbers.bin", "table.parquet", "ledger.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "delete"])
def test_a_damaged_artifact_is_made_again(tmp_path: Path, ran: Ran, name: str, how: str) -> None:
    if (name, how) == ("ledger.json", "delete"):
        pytest.skip("a folder without ledger is refused: see below")
    made = make(tmp_path / "a", plan_artifact(build_folder))
    path = tmp_path / "a" / name
    data = path.read_bytes()
    ran()
    if how == "delete":
        path.unlink()
        assert not ArtifactStore(tmp_path / "a").exists()
        with pytest.raises(IncompleteStore, match=r"lacks files\. Run the pipeline"):
            ArtifactStore(tmp_path / "a").load()
    else:
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:] if how == "flip" else data[:-4])
    again = make(tmp_path / "a", plan_artifact(build_folder))
    assert ran() == ["artifact"]
    assert again.root_digest == made.root_digest


@pytest.mark.parametrize("key", ["root_digest", "fingerprint", "statistics", "measured", "recipe", "files"])
def test_an_edited_ledger_is_refused(tmp_path: Path, key: str) -> None:
    make(tmp_path / "a", plan_artifact(build_folder))
    ledger = json.loads((tmp_path / "a" / "ledger.json").read_text())
    ledger[key] = {} if isinstance(ledger[key], dict) else "0" * 64
    (tmp_path / "a" / "ledger.json").write_text(json.dumps(ledger))
    with pytest.raises(DamagedStore, match="it was edited"):
        ArtifactStore(tmp_path / "a").load()
    make(tmp_path / "a", plan_artifact(build_folder))
    assert ArtifactStore(tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "after a file"),
        ("none", "returned a NoneType, not Built"),
        ("ledger", r"wrote ledger\.json"),
        ("link", "wrote link"),
        ("broken link", "wrote link"),
        ("nan", r"statistics\['loss'\] is nan"),
        ("measured nan", r"measured\['loss'\] is nan"),
        ("int key", r"statistics\['histogram'\] has the key 1"),
    ],
)
def test_a_failure_leaves_the_old_artifact_and_nothing_else(tmp_path: Path, how: str, message: str) -> None:
    make(tmp_path / "a", plan_artifact(build_folder))
    before = content(tmp_path)
    with pytest.raises((ValueError, ShardsError), match=message):
        make(tmp_path / "a", plan_artifact(build_badly, how=how))
    assert content(tmp_path) == before


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            make(tmp_path / "a", plan_artifact(build_folder))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(content(tmp_path)) == [".a.lock/"]


def test_an_artifact_may_be_empty(tmp_path: Path) -> None:
    made = make(tmp_path / "a", plan_artifact(build_nothing))
    assert (made.bytes, made.statistics, list(content(tmp_path / "a"))) == (0, {}, ["ledger.json"])
    assert make(tmp_path / "a", plan_artifact(build_nothing)) == made


def test_a_planned_artifact_says_that_it_is_not_made(tmp_path: Path) -> None:
    planned = plan_artifact(build_folder)
    for use in (
        lambda: planned.path("x"),
        lambda: planned.root_digest,
        lambda: planned.bytes,
        lambda: planned.measured,
    ):
        with pytest.raises(IncompleteStore, match=r"planned with .*build_folder is not made yet"):
            use()
    assert not ArtifactStore(tmp_path / "a").exists()
    with pytest.raises(IncompleteStore, match="has not been made"):
        ArtifactStore(tmp_path / "a").load()
    with pytest.raises(ShardsError, match="only a planned artifact"):
        make(tmp_path / "b", make(tmp_path / "a", planned))


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "a", plan_artifact(build_folder))
    with sole_writer(tmp_path / ".a.lock"), pytest.raises(StoreBusy):
        make(tmp_path / "a", plan_artifact(build_folder))


def test_a_folder_that_is_no_artifact_is_never_deleted(tmp_path: Path) -> None:
    """A wrong path in the catalog must not cost what lies there."""
    Store(tmp_path / "shards").save(given(1).map(count_up), Inline())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.txt").touch()
    before = content(tmp_path / "shards") | content(tmp_path / "mine")
    for name in ("shards", "mine"):
        with pytest.raises(ShardsError, match="no artifact, and making one there would delete them"):
            make(tmp_path / name, plan_artifact(build_folder))
    assert content(tmp_path / "shards") | content(tmp_path / "mine") == before
    (tmp_path / "empty").mkdir()
    make(tmp_path / "empty", plan_artifact(build_folder))


def test_two_artifacts_whose_names_begin_alike_leave_each_other_alone(tmp_path: Path) -> None:
    other = tmp_path / ".a.v2.123.tmp"  # the temporary of a living writer of a.v2
    other.mkdir()
    make(tmp_path / "a", plan_artifact(build_folder))
    assert other.is_dir()


def test_a_linked_folder_stays_linked(tmp_path: Path) -> None:
    """The artifact lies on another disk: it is replaced there."""
    (tmp_path / "disk" / "a").mkdir(parents=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").symlink_to(tmp_path / "disk" / "a")
    for factor in (1, 2):
        made = make(tmp_path / "data" / "a", plan_artifact(build_folder, factor=factor))
        assert made.statistics == {"factor": factor}
    assert (tmp_path / "data" / "a").is_symlink()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == [".a.lock", "a"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["a"]


@pytest.mark.parametrize("damage", [b"", b'{"bytes": 1'])
def test_an_artifact_with_a_damaged_ledger_is_made_again(tmp_path: Path, damage: bytes) -> None:
    store = ArtifactStore(tmp_path / "artifact")
    digest = store.save(plan_artifact(build_folder)).root_digest
    (tmp_path / "artifact" / "ledger.json").write_bytes(damage)
    assert store.save(plan_artifact(build_folder)).root_digest == digest


def test_what_is_made_from_a_damaged_input_is_refused(tmp_path: Path) -> None:
    """The size is right and nothing else has looked: the output would be recorded as made from the right content."""
    source = ArtifactStore(tmp_path / "source")
    source.save(plan_artifact(build_folder))
    loaded = source.load()
    path = next(tmp_path.glob("source/*.*"))
    path = next(
        path for path in sorted((tmp_path / "source").rglob("*")) if path.is_file() and path.name != "ledger.json"
    )
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    target = ArtifactStore(tmp_path / "target")
    with pytest.raises(DamagedStore, match="is not the file that was written"):
        target.save(plan_artifact(build_folder, source=loaded))
    assert not target.exists()


class _Noted(TypedDict):
    length: int


class _NotedTwice(_Noted):
    times: int


def test_statistics_are_read_as_the_record_of_their_writer(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    made = Artifact(folder=folder, ledger={"statistics": {"length": 3, "more": True}})
    assert made.statistics_as(_Noted)["length"] == 3
    with pytest.raises(DamagedStore, match=r"made: its statistics are no _NotedTwice: they lack \['times'\]"):
        made.statistics_as(_NotedTwice)
