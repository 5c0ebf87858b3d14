"""An S3 server for the tests of remote stores, and a bucket in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everytoken.shards.remote import FileCache, retries
from tests.s3_server import S3Server, log_in, s3_server


@pytest.fixture(scope="session")
def one_server() -> Iterator[S3Server]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with s3_server() as server:
        yield server


@pytest.fixture
def server(one_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3Server]:
    """The server, to which this process and its children log in by the environment."""
    log_in(one_server, monkeypatch, tmp_path)
    monkeypatch.setattr(retries, "pause", lambda seconds: None)
    yield one_server
    one_server.fail = lambda method, path, query: None
    one_server.asked.clear()


@pytest.fixture
def bucket(server: S3Server) -> Iterator[Any]:
    """The file system of s3fs, in which there is an empty bucket ``corpora``."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    filesystem = s3fs.S3FileSystem(use_listings_cache=False)
    filesystem.mkdir("corpora")
    server.asked.clear()
    yield filesystem
    server.fail = lambda method, path, query: None
    for one in filesystem.call_s3("list_multipart_uploads", Bucket="corpora").get("Uploads", ()):
        filesystem.call_s3("abort_multipart_upload", Bucket="corpora", Key=one["Key"], UploadId=one["UploadId"])
    filesystem.rm("corpora", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    """A folder of local copies that has room for all."""
    return FileCache(tmp_path / "cache", 1 << 30)
