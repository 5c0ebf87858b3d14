"""A tokenizer inside an archive: a ``tokenizer.json``, or GPT-2's pair of a vocabulary and its merges.

A zip file (a wheel is one) and a tar file (plain, gz, bz2, xz) are told by their first bytes. A member is read into
memory, at most `MAX_MEMBER_BYTES` of it, and nothing is unpacked: no name of the archive becomes a path here.
"""

from __future__ import annotations

import json
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ConfigDict
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from everytoken.tokens.errors import TokenizerError

MAX_MEMBER_BYTES = 1 << 27  # the largest published tokenizer.json has a quarter of that
_ZIP = b"PK\x03\x04"
_SHOWN = 10
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, OSError, RuntimeError, ValueError)
_OTHER = "Correct tokenizer.member, or pin another archive."


class BpeFiles(BaseModel):
    """Paths of GPT-2's two files: ``vocab``, JSON of token to id, and ``merges``, one pair of tokens a line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab: str
    merges: str


def tokenizer_of_archive(archive: Path, member: str | BpeFiles, eos_token: str) -> bytes:
    """Return the ``tokenizer.json`` that a member is, or that GPT-2's pair makes.

    Raises:
        TokenizerError: a member is missing, there twice, no plain file, too large or damaged; or the pair is none.
    """
    if isinstance(member, str):
        return read_member(archive, member)
    vocab, merges = read_member(archive, member.vocab), read_member(archive, member.merges)
    return _byte_level_bpe(f"{archive}, {member.vocab} and {member.merges}", vocab, merges, eos_token)


def read_member(archive: Path, member: str) -> bytes:
    """Return the bytes of the one plain file that has this name in a zip or tar file.

    Raises:
        TokenizerError: there is none or more than one, or it cannot be read whole.
    """
    try:
        with archive.open("rb") as stream:
            is_zip = stream.read(len(_ZIP)) == _ZIP
        return _of_zip(archive, member) if is_zip else _of_tar(archive, member)
    except _DAMAGE as error:
        raise TokenizerError(
            f"{archive} cannot be read as a zip or tar file up to the end of {member!r} ({type(error).__name__}: "
            f"{error}). Its SHA-256 is the one that is pinned: pin a whole archive that is not encrypted."
        ) from None


def _of_zip(archive: Path, member: str) -> bytes:
    with zipfile.ZipFile(archive) as opened:
        names = opened.namelist()
        found = _the_one(archive, member, [info for info in opened.infolist() if info.filename == member], names)
        kind = stat.S_IFMT(found.external_attr >> 16)
        _require_plain(archive, member, kind in (0, stat.S_IFREG), found.file_size)
        with opened.open(found) as stream:
            return _whole(archive, member, stream)


def _of_tar(archive: Path, member: str) -> bytes:
    with tarfile.open(archive) as opened:
        every = opened.getmembers()
        found = _the_one(archive, member, [one for one in every if one.name == member], [one.name for one in every])
        _require_plain(archive, member, found.isreg(), found.size)
        stream = opened.extractfile(found)
        assert stream is not None, "a regular file"
        return _whole(archive, member, stream)


def _the_one(archive: Path, member: str, found: Sequence[Any], names: Sequence[str]) -> Any:
    if len(found) == 1:
        return found[0]
    if found:
        raise TokenizerError(f"{archive} has {len(found)} members {member!r}, expected one. Pin another archive.")
    suffix = Path(member).suffix
    similar = sorted(name for name in names if name.endswith(suffix))[:_SHOWN]
    raise TokenizerError(f"{archive} has no {member!r} among its {len(names)} members, but {similar}. {_OTHER}")


def _require_plain(archive: Path, member: str, is_plain: bool, size: int) -> None:
    if not is_plain:
        raise TokenizerError(f"{member!r} of {archive} is a link, a folder or a device, expected a file. {_OTHER}")
    if size > MAX_MEMBER_BYTES:
        raise _too_large(archive, member, f"{size:,}")


def _whole(archive: Path, member: str, stream: IO[bytes]) -> bytes:
    content = stream.read(MAX_MEMBER_BYTES + 1)
    if len(content) > MAX_MEMBER_BYTES:
        raise _too_large(archive, member, "more")
    return content


def _too_large(archive: Path, member: str, size: str) -> TokenizerError:
    return TokenizerError(f"{member!r} of {archive} has {size} bytes, at most {MAX_MEMBER_BYTES:,} are read. {_OTHER}")


def _byte_level_bpe(where: str, vocab: bytes, merges: bytes, eos_token: str) -> bytes:
    """Return GPT-2's tokenizer of a vocabulary and merges, with ``eos_token`` as its special token."""
    try:
        ids = json.loads(vocab, object_pairs_hook=_each_once)
        pairs = _pairs(merges)
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(
            f"{where} are no vocabulary (JSON, token to id) and merges (lines of two tokens) of a byte-level BPE: "
            f"{error}. {_OTHER}"
        ) from error
    if eos_token not in ids:
        raise TokenizerError(f"{where} have no token {eos_token!r}. Set tokenization.eos_token to one that they have.")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(eos_token, special=True, normalized=False)])
    return tokenizer.to_str(pretty=False).encode()


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) or len(set(found.values())) < len(found):
        raise ValueError("a token or an id is there twice")
    return found


def _pairs(merges: bytes) -> list[tuple[str, str]]:
    """Return the pairs by rank; a first line that begins with ``#version`` is none."""
    lines = merges.decode("utf-8").removesuffix("\n").split("\n")
    pairs = []
    for number, line in enumerate(lines, start=1):
        if number == 1 and line.startswith("#version"):
            continue
        left, space, right = line.removesuffix("\r").partition(" ")
        if not (left and space and right) or " " in right:
            raise ValueError(f"line {number} of the merges is {line[:60]!r}, expected two tokens and a space")
        pairs.append((left, right))
    return pairs
