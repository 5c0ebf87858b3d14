"""Files of a release as a stranger may have written them: bounded, regular, and named so that they stay inside.

Nothing of a release is trusted before its checksums are compared: a file may be a link out of the folder, larger than
the memory, JSON that is nested a million times, or have a name with ``..``.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from everytoken.address import SHARD_INDEX
from everytoken.provenance.errors import ProvenanceError

MOST_BYTES = 1 << 28  # of JSON, of sums and of a tokenizer; the plan of 1T tokens has 10 MB
_MOST_NESTED = 64
_LARGEST = 1 << 64

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=@-]{0,199}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}")
_HOSTILE = "This is no release that everytoken wrote: do not trust it. Get it from where it was published."


def read_bounded(path: Path) -> bytes:
    """Return the bytes of a regular file of bounded size.

    Raises:
        ProvenanceError: it is a link or no file, or larger than `MOST_BYTES`.
        OSError: it cannot be read.
    """
    require_regular(path)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ProvenanceError(f"{path} has {size:,} bytes, expected at most {MOST_BYTES:,}. {_HOSTILE}")
    return path.read_bytes()


def require_regular(path: Path) -> None:
    """Check that a path is a file itself, no link, device or pipe.

    Raises:
        ProvenanceError: it is not.
        OSError: it is not there.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        raise ProvenanceError(
            f"{path} is a link, which may lead out of the release. Copy the release with its files in the place of "
            "links (cp -rL; for the Hugging Face hub download it with local_dir)."
        )
    if not stat.S_ISREG(mode):
        raise ProvenanceError(f"{path} is no regular file. {_HOSTILE}")


def require_inside(folder: Path, name: str) -> None:
    """Check that ``folder / name`` is a file inside, and no folder on the way is a link.

    Raises:
        ProvenanceError: it is not.
        OSError: it is not there.
    """
    require_path(name, str(folder))
    for parent in list(PurePosixPath(name).parents)[:-1]:
        if (folder / parent).is_symlink():
            raise ProvenanceError(f"{folder / parent} is a link to a folder, which may lead out of the release.")
    require_regular(folder / name)


def require_name(name: Any, where: str) -> str:
    """Return a name of one part: of a file, a part of a split, a stream; such as every system takes for one.

    Raises:
        ProvenanceError: it could leave its folder, or is none.
    """
    fits = isinstance(name, str) and _NAME.fullmatch(name) and not name.endswith(".") and not _DEVICE.fullmatch(name)
    if not fits:
        raise ProvenanceError(f"{where}: {_short(name)} is no name of a file. {_HOSTILE}")
    return str(name)


def require_path(path: Any, where: str) -> str:
    """Return a relative path that stays in its folder.

    Raises:
        ProvenanceError: it is none.
    """
    if not isinstance(path, str):
        raise ProvenanceError(f"{where}: {_short(path)} is no path. {_HOSTILE}")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise ProvenanceError(f"{where}: {_short(path)} is no path inside the release. {_HOSTILE}")
        require_name(part, where)
    return path


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object whose numbers are finite and of 64 bits, nested a bounded number of times.

    Raises:
        ProvenanceError: it is none.
        ValueError: it is no JSON.
    """
    try:
        data = json.loads(content.decode("utf-8"), parse_constant=_refused, parse_float=_finite, parse_int=_bounded)
    except RecursionError:
        raise ProvenanceError(_nested(where)) from None
    if not isinstance(data, dict):
        raise ProvenanceError(f"{where} holds a {type(data).__name__}, expected an object. Copy the release again.")
    _require_shallow(data, where)
    return data


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is larger than any")
    return number


def _bounded(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= _LARGEST:
        raise ValueError(f"the number {text[:40]} has more than 64 bits")
    return int(text)


def _require_shallow(data: Any, where: str) -> None:
    level = [data]
    for _ in range(_MOST_NESTED):
        level = [one for value in level for one in _inside(value) if isinstance(one, dict | list)]
        if not level:
            return
    raise ProvenanceError(_nested(where))


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _nested(where: str) -> str:
    return f"{where} is nested more than {_MOST_NESTED} times. {_HOSTILE}"


def require_boundaries(boundaries: Mapping[str, Any], splits: Iterable[str], where: str) -> None:
    """Check the form of ``file_boundaries.json``.

    Raises:
        ProvenanceError: it is another, or names a part that would be read outside the release.
    """
    if set(boundaries) != set(splits):
        raise ProvenanceError(f"{where} has the splits {sorted(boundaries)}, expected {sorted(splits)}. {_HOSTILE}")
    for split, said in boundaries.items():
        parts = said.get("parts") if isinstance(said, dict) else None
        if not isinstance(parts, list) or not _is_count(said.get("rows")):
            raise ProvenanceError(f"{where}: {split} has no rows or parts. {_HOSTILE}")
        for part in parts:
            if not isinstance(part, dict):
                raise ProvenanceError(f"{where}: {split} has the part {_short(part)}. {_HOSTILE}")
            name = require_name(part.get("name"), f"{where}: {split}")
            counts = all(_is_count(part.get(key)) for key in ("first_row", "rows", "bytes"))
            if not counts or not all(_is_sha256(part.get(key)) for key in ("sha256", "content_digest")):
                raise ProvenanceError(f"{where}: {split}, part {name} lacks a number or digest. {_HOSTILE}")


def require_upstream(upstream: Mapping[str, Any], where: str) -> None:
    """Check the form of ``upstream.json``.

    Raises:
        ProvenanceError: it is another, or names a file outside its source.
    """
    sources, plan = upstream.get("sources"), upstream.get("plan")
    if not isinstance(sources, dict) or not isinstance(plan, dict):
        raise ProvenanceError(f"{where} has no sources or no plan. {_HOSTILE}")
    for name, source in sources.items():
        if not isinstance(source, dict) or not isinstance(source.get("upstream"), dict):
            raise ProvenanceError(f"{where}: source {_short(name)} has no upstream. {_HOSTILE}")
        for file in _objects(source.get("files"), where):
            _require_file(file, where)
    order, shards = plan.get("order"), _objects(plan.get("shards"), where)
    if not _is_count(plan.get("n_total")) or not isinstance(order, list) or not all(map(_is_count, order)):
        raise ProvenanceError(f"{where}: the plan has no order. {_HOSTILE}")
    for shard in shards:
        _require_file(shard, where)
        rows = shard.get("rows")
        if not isinstance(shard.get("source"), str) or not _is_count(shard.get("first_row")):
            raise ProvenanceError(f"{where}: the plan has the shard {_short(shard)}. {_HOSTILE}")
        if rows is not None and not _is_count(rows):
            raise ProvenanceError(f"{where}: the plan has the shard {_short(shard)}. {_HOSTILE}")


def _require_file(file: Mapping[str, Any], where: str) -> None:
    path, digest = file.get("path"), file.get("digest")
    inside = isinstance(path, str) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))
    if not inside or not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ProvenanceError(
            f"{where}: {_short(path)} with digest {_short(digest)} is no file of a source. {_HOSTILE}"
        )
    if not _is_count(file.get(SHARD_INDEX)):
        raise ProvenanceError(f"{where}: {_short(path)} has no number. {_HOSTILE}")


def _objects(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise ProvenanceError(f"{where}: expected a list of files or shards, found {_short(value)}. {_HOSTILE}")
    return value


def require_recipe(recipe: Mapping[str, Any], where: str) -> None:
    """Check the form of ``recipe.json``; the values of parameters are for their models.

    Raises:
        ProvenanceError: it is another.
    """
    for name in ("parameters", "versions", "tokenizer", "datasets", "functions"):
        if not isinstance(recipe.get(name), dict):
            raise ProvenanceError(f"{where} has no object {name!r}. {_HOSTILE}")
    for name in ("parameters", "datasets"):
        for key, value in recipe[name].items():
            if not isinstance(value, dict):
                raise ProvenanceError(f"{where}: {name} has {_short(value)} for {_short(key)}. {_HOSTILE}")
    second = recipe["parameters"].get("annotation", {}).get("second_scores", {})
    if not isinstance(second, dict):
        raise ProvenanceError(f"{where}: second_scores of annotation is {_short(second)}. {_HOSTILE}")
    if not _is_sha256(recipe["tokenizer"].get("sha256")):
        raise ProvenanceError(f"{where}: the tokenizer has no SHA-256. {_HOSTILE}")


def require_streams(streams: Mapping[str, Any], where: str) -> None:
    """Check the form of ``streams.json``, and that the names of streams and of their files stay in their folders.

    Raises:
        ProvenanceError: one does not, or it is another form.
    """
    for name, stream in streams.items():
        require_name(name, where)
        if not _is_stream(stream):
            raise ProvenanceError(f"{where}: root_digest, statistics or files of {name} are not there. {_HOSTILE}")
        for file in stream["files"]:
            require_path(file, f"{where}: {name}")


def _is_stream(stream: Any) -> bool:
    kinds = {"root_digest": str, "statistics": dict, "files": dict}
    is_one = isinstance(stream, dict) and all(isinstance(stream.get(name), kind) for name, kind in kinds.items())
    return is_one and all(map(_is_entry, stream["files"].values()))


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and _is_count(entry.get("bytes")) and _is_sha256(entry.get("sha256"))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
