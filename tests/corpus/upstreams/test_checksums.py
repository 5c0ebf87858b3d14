from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.corpus.errors import UpstreamError
from everytoken.corpus.upstreams.checksums import content_digest, parse_checksums
from everytoken.corpus.upstreams.patterns import is_safe, matches_pattern, parts_of

DIGEST = "0123456789abcdef" * 4


def test_what_sha256sum_writes_is_read(tmp_path: Path) -> None:
    if shutil.which("sha256sum") is None:
        pytest.skip("there is no sha256sum here")
    names = ["a.jsonl", "b/c d.jsonl", "*star", "two  spaces", "back\\slash", "new\nline", "\\n", "é", "tab\t"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    expected = {name: f"sha256:{hashlib.sha256(name.encode()).hexdigest()}" for name in names}
    for options in ([], ["--binary"]):
        written = subprocess.run(["sha256sum", *options, "--", *names], cwd=tmp_path, capture_output=True, check=True)
        assert parse_checksums(written.stdout, "SHA256SUMS") == expected
    found = subprocess.run("find . -type f -exec sha256sum {} +", shell=True, cwd=tmp_path, capture_output=True)
    assert parse_checksums(found.stdout, "SHA256SUMS") == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no digest here",
        f"{DIGEST[:-1]}  a",
        f"{DIGEST} a",
        f"{DIGEST}  ",
        f"{DIGEST}  /etc/passwd",
        f"{DIGEST}  a/../../b",
        f"SHA256 (a) = {DIGEST}",
        f"{DIGEST}  a\r",
        f"\\{DIGEST}  a\\t",
        f"\\{DIGEST}  a\\",
    ],
)
def test_a_malformed_line_is_named_by_its_number(line: str) -> None:
    content = f"# comment\n{DIGEST}  first\n{line}\n{DIGEST}  last\n".encode()
    with pytest.raises(UpstreamError, match=r"SUMS, line 3: expected 64 hex digits.*Write the file again"):
        parse_checksums(content, "SUMS")


def test_bytes_that_are_no_utf8_are_malformed() -> None:
    with pytest.raises(UpstreamError, match="SUMS, line 1: "):
        parse_checksums(f"{DIGEST}  ".encode() + b"caf\xe9\n", "SUMS")


def test_a_path_with_two_digests_is_an_error_and_the_same_line_twice_is_none() -> None:
    other = DIGEST[::-1]
    assert parse_checksums(f"{DIGEST}  a\n{DIGEST.upper()} *./a\n".encode(), "SUMS") == {"a": f"sha256:{DIGEST}"}
    with pytest.raises(UpstreamError, match=f"SUMS, line 2: a is listed with sha256:{other}, an earlier line has"):
        parse_checksums(f"{DIGEST}  a\n{other}  a\n".encode(), "SUMS")


def test_a_git_digest_is_the_name_that_git_gives() -> None:
    assert content_digest(io.BytesIO(b"hello\n"), "git-sha1", 6) == "git-sha1:ce013625030ba8dba906f756967f9e9ca394464a"
    with pytest.raises(ValueError, match="must be sha256 or git-sha1, found 'md5'"):
        content_digest(io.BytesIO(), "md5", 0)


PARTS = st.lists(st.sampled_from(["a", "b", "ab", "a.jsonl"]), min_size=1, max_size=4)


@given(PARTS)
def test_any_path_matches_itself_any_depth_and_each_of_its_folders(path: list[str]) -> None:
    assert matches_pattern(path, path)
    assert matches_pattern(path, ["**"])
    assert matches_pattern(path, ["**", path[-1]])
    assert not matches_pattern(path, [*path, "x"])
    assert all(matches_pattern(path[:depth], [*path[:-1], "*"], within=True) for depth in range(len(path)))


def test_case_and_dots_are_what_they_are() -> None:
    assert not matches_pattern(parts_of("a.JSONL"), parts_of("*.jsonl"))
    assert matches_pattern(parts_of(".hidden/a.jsonl"), parts_of("**/*.jsonl"))
    assert [path for path in ("a", "a/b", "", "/a", "a//b", "../a", "a/./b", "a\0") if is_safe(path)] == ["a", "a/b"]
