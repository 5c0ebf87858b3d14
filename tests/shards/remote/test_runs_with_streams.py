"""A whole ``kedro run`` whose streams, indexes, release and checkpoint are in a bucket, with a login of the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.s3_server import KEY, SECRET, S3Server
from tests.test_run import Project

_CACHE = "_cache: {path: data/cache, bytes: 50_000_000}\n"
_ENTRY = """
{name}:
  type: everytoken.datasets.{kind}
  filepath: s3://corpora/{url}
  engine: ${{globals:engine}}
  credentials: bucket
  cache: ${{_cache}}
  block_bytes: 16384
"""
_ENTRIES = {
    '"{kind}_stream"': ("TokenStream", "run/{kind}_stream"),
    '"{indexed}_index"': ("ArtifactFolder", "run/{indexed}_index"),
    "tokenizer": ("TokenizerFile", "run/tokenizer"),
    "checkpoint": ("Checkpoint", "run/checkpoint"),
    "release": ("ReleaseFolder", "run/release"),
}
_WHEN_MADE = """
"{kind}_stream_when_made":
  type: everytoken.datasets.WhenMade
  dataset:
    type: everytoken.datasets.TokenStream
    filepath: "s3://corpora/run/{kind}_stream"
    credentials: bucket
    cache: ${_cache}
"""
_REMOTE = ("annotated_stream", "compact_stream", "annotated_index", "compact_index", "tokenizer", "checkpoint")


def in_bucket(project: Project, address: str) -> None:
    """Let the catalog of a project have its streams, indexes, tokenizer, release and checkpoint in the bucket."""
    conf = project.folder / "conf/test"
    entries = [_ENTRY.format(name=name, kind=kind, url=url) for name, (kind, url) in _ENTRIES.items()]
    (conf / "catalog.yml").write_text(_CACHE + "".join(entries) + _WHEN_MADE)
    login = {"key": KEY, "secret": SECRET, "endpoint_url": address, "client_kwargs": {"region_name": "us-east-1"}}
    (conf / "credentials.yml").write_text(json.dumps({"bucket": login}))


@pytest.mark.slow
@pytest.mark.sensitive
def test_a_run_with_streams_and_checkpoint_in_a_bucket_has_the_digests_of_a_local_one(
    bucket: Any,
    server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}")
    local, project = Project(tmp_path / "local"), Project(tmp_path / "remote")
    for one in (local, project):
        if one is project:
            in_bucket(one, server.address)
        one.kedro("run", "--env", "test")
        one.kedro("run", "--env", "test", "--pipelines", "release")
    expected = local.digests()
    found = {name: json.loads(bucket.cat_file(f"corpora/run/{name}/ledger.json")) for name in (*_REMOTE, "release")}
    assert {name: found[name]["root_digest"] for name in _REMOTE} == {name: expected[name] for name in _REMOTE}
    assert found["compact_stream"]["blocks"], "it is read in blocks"
    rest = project.digests()
    assert not {*_REMOTE, "release"} & set(rest), "none of them is a folder here"
    assert rest == {name: digest for name, digest in expected.items() if name in rest}

    server.puts()
    said = project.kedro("run", "--env", "test")
    assert server.puts() == [] and "making it with" not in said and "parts to make" not in said

    traced = ("trace", "--env", "test", "--step", "3")
    assert project.everytoken(*traced) == local.everytoken(*traced)
    for full in ([], ["--full"]):
        said = project.everytoken("verify", "--env", "test", *full)
        assert "failed" not in said
        for name in _REMOTE:
            assert f"  {name}" in said
    assert "compact_stream" in project.everytoken("summary", "--env", "test")
    plan = ("plan", "--env", "test")
    assert project.everytoken(*plan).splitlines()[0] == local.everytoken(*plan).splitlines()[0]
    for secret in (SECRET, KEY):
        kept = [path for path in project.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
        assert [path.name for path in kept] == ["credentials.yml"]
