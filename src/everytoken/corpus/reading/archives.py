"""Decompression by blocks, in bounded memory, that never ends early without a word.

The usual readers of ``.zst`` take the end of the file for the end of the data: a download that was cut gives fewer rows
and no error, and with some all frames but the first are passed over. Here a file is a sequence of whole frames (zst)
or members (gz) and nothing else, and whatever stands against that is `DamagedFile` with the byte where it stands.

isal decompresses gzip in two fifths of the time of zlib. It passes over oddities that zlib refuses (reserved flags in a
header, a code table that nothing uses); what it gives has the CRC and the length that the member tells, always.

What a checksum finds: gzip has a CRC-32 of every member, always. A zst frame has an XXH64 (32 bits of it) only when its
writer asked for one: ``zstd`` itself does, many libraries do not. Without it most flipped bits within compressed blocks
still break the coding, but one in literal bytes changes a character and can be found by nobody: pin such files by the
digest that their upstream tells. Flips that change no content (a file name or a time in the gzip header, the contents
of a skippable frame) are harmless. A file cut exactly between two frames or members is a whole archive with fewer
rows: only the digest or the row count of its upstream can tell.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Iterator
from typing import NoReturn, Protocol

from backports.zstd import DecompressionParameter, ZstdDecompressor, ZstdError
from isal import isal_zlib

from everytoken.corpus.errors import CorpusError

BLOCK_BYTES = 1 << 17  # stays in the processor's cache: larger blocks are slower
_REFETCH = "Fetch the file again; if it stays so, it is damaged at its origin."
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_XZ_MAGIC = b"\xfd7zXZ\x00"
_XZ_OVERHEAD_BYTES = 2 << 20  # that a decompressor takes beyond its dictionary
_SKIPPABLE_MAGIC = b"\x50\x2a\x4d\x18"  # the first of 16
_ZSTD_HEADER_BYTES = 18
_MAGIC = {
    b"\x1f\x8b": "gzip",
    _ZSTD_MAGIC: "Zstandard",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "bzip2",
    _XZ_MAGIC: "xz",
    b"\x04\x22\x4d\x18": "LZ4",
    b"PAR1": "parquet",
    b"ARROW1": "an arrow file",
    b"\x89HDF\r\n\x1a\n": "HDF5",
}


class Readable(Protocol):
    """What is read from begin to end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most ``size``; none at the end."""
        ...


class DamagedFile(CorpusError):
    """A file as a whole cannot be read on; readers make it a `RowError` with the file's name.

    Args:
        reason: what is wrong, with the byte.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}. {remedy}")
        self.reason, self.remedy = reason, remedy


def name_of_magic(head: bytes) -> str | None:
    """Return what a file is by its first bytes, or None when they are those of no binary format."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def decompressed(stream: Readable, compression: str | None, window_log_max: int) -> Iterator[bytes]:
    """Yield what a file holds in blocks of at most `BLOCK_BYTES` bytes, none of them empty.

    Args:
        compression: ``gz``, ``zst``, ``bz2``, ``xz`` or None for a file as it is.

    Raises:
        DamagedFile: the file is cut or corrupt, not what ``compression`` says, or needs a larger window.
    """
    if compression is None:
        return iter(lambda: stream.read(BLOCK_BYTES), b"")
    blocks = _Compressed(stream)
    blocks.require_magic(compression)
    if compression == "gz":
        return _gzip_members(blocks)
    if compression == "bz2":
        return _streams(blocks, "bzip2 stream", b"BZh", bz2.BZ2Decompressor)
    if compression == "xz":
        return _streams(blocks, "xz stream", _XZ_MAGIC, lambda: _xz_decompressor(window_log_max))
    return _zstd_frames(blocks, window_log_max)


class _Compressed:
    """The compressed bytes, and how many were read of them."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.held = b""  # read, not yet used
        self.position = 0  # of the byte after those that are held

    @property
    def used(self) -> int:
        return self.position - len(self.held)

    def take(self) -> bytes:
        """Return the bytes held, or the next of the file; b"" at its end."""
        data, self.held = self.held or self._read(), b""
        return data

    def fill(self, size: int) -> bytes:
        """Hold at least ``size`` bytes if the file has them, and return what is held."""
        while len(self.held) < size and (data := self._read()):
            self.held += data
        return self.held

    def _read(self) -> bytes:
        data = self._stream.read(BLOCK_BYTES)
        self.position += len(data)
        return data

    def require_magic(self, compression: str) -> None:
        head = self.fill(_ZSTD_HEADER_BYTES)
        name = {"gz": "gzip", "zst": "Zstandard", "bz2": "bzip2", "xz": "xz"}[compression]
        if not head:
            raise DamagedFile(f"truncated or corrupt: the file has no bytes, expected {name}", _REFETCH)
        found = name_of_magic(head) or ("Zstandard" if _is_skippable(head) else None)
        if found != name:
            remedy = "Name the file by what it is (.gz, .zst, .bz2, .xz, or none), or fetch it again if it is damaged."
            raise DamagedFile(
                f"truncated or corrupt at byte 0: its name ends in .{compression}, but it holds "
                f"{found or f'no {name}'} (it begins with {head[:8]!r})",
                remedy,
            )


def _gzip_members(blocks: _Compressed) -> Iterator[bytes]:
    while head := blocks.fill(2):
        begin = blocks.used
        if not head.startswith(b"\x1f\x8b"):
            _require_padding(blocks, begin, "gzip member")
            return
        member = isal_zlib.decompressobj(wbits=31)
        while not member.eof:
            data = member.unconsumed_tail or blocks.take()
            if not data:
                _cut("gzip member", begin, blocks.position)
            try:
                block = member.decompress(data, BLOCK_BYTES)
            except isal_zlib.IsalError as error:  # type: ignore[misc]  # its stub has an instance for the class
                _corrupt("gzip member", begin, blocks.position, error)
            if block:
                yield block
        blocks.held = member.unused_data


def _require_padding(blocks: _Compressed, begin: int, what: str) -> None:
    """Let zeros after the last member pass, as gzip and xz do; anything else is no archive."""
    while data := blocks.take():
        if data.strip(b"\0"):
            reason = f"truncated or corrupt: what follows at byte {begin} is neither a {what} nor zero padding"
            raise DamagedFile(f"{reason} (it begins with {data.lstrip(bytes(1))[:8]!r})", _REFETCH)


def _xz_decompressor(window_log_max: int) -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, (1 << window_log_max) + _XZ_OVERHEAD_BYTES)


def _streams(
    blocks: _Compressed,
    what: str,
    magic: bytes,
    decompressor: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor],
) -> Iterator[bytes]:
    """Yield what streams of bzip2 or xz hold; their checksums are verified at the end of each."""
    while head := blocks.fill(len(magic)):
        begin = blocks.used
        if not head.startswith(magic):
            if magic.startswith(head):
                _cut(what, begin, begin + len(head))
            _require_padding(blocks, begin, what)
            return
        stream = decompressor()
        data = blocks.take()
        while True:
            try:
                block = stream.decompress(data, BLOCK_BYTES)
            except (OSError, ValueError, lzma.LZMAError) as error:
                if "limit" in str(error):
                    reason = f"the {what} at byte {begin} needs more memory than zstd_window_log_max allows"
                    remedy = "Raise zstd_window_log_max, or compress the file again with a smaller dictionary (xz -6)."
                    raise DamagedFile(reason, remedy) from None
                _corrupt(what, begin, blocks.position, error)
            if block:
                yield block
            if stream.eof:
                break
            data = b""
            if stream.needs_input and not (data := blocks.take()):
                _cut(what, begin, blocks.position)
        blocks.held = stream.unused_data


def _zstd_frames(blocks: _Compressed, window_log_max: int) -> Iterator[bytes]:
    while head := blocks.fill(_ZSTD_HEADER_BYTES):
        begin = blocks.used
        _require_frame(head, begin, window_log_max)
        frame = ZstdDecompressor(options={DecompressionParameter.window_log_max: window_log_max})
        data = blocks.take()
        while True:
            try:
                block = frame.decompress(data, BLOCK_BYTES)
            except ZstdError as error:
                _corrupt("Zstandard frame", begin, blocks.position, error)
            if block:
                yield block
            if frame.eof:
                break
            data = b""
            if frame.needs_input and not (data := blocks.take()):
                _cut("Zstandard frame", begin, blocks.position)
        blocks.held = frame.unused_data


def _require_frame(head: bytes, begin: int, window_log_max: int) -> None:
    """Refuse what is no frame, or one that cannot be read with these parameters; RFC 8878 gives the layout."""
    if _is_skippable(head):
        return
    magic = head[:4]
    if magic != _ZSTD_MAGIC:
        if len(magic) < 4 and (_ZSTD_MAGIC.startswith(magic) or _is_skippable(magic + _SKIPPABLE_MAGIC[len(magic) :])):
            _cut("Zstandard frame", begin, begin + len(head))
        reason = (
            f"truncated or corrupt: what follows at byte {begin} is no Zstandard frame (it begins with {head[:8]!r})"
        )
        raise DamagedFile(reason, _REFETCH)
    if len(head) < 6:
        return  # cut, and the decompressor says so
    descriptor = head[4]
    single_segment = bool(descriptor & 0x20)
    window_bytes = 0 if single_segment else 1
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    at = 5 + window_bytes
    if int.from_bytes(head[at : at + dictionary_bytes], "little"):
        reason = f"the Zstandard frame at byte {begin} needs a dictionary, which is not at hand"
        raise DamagedFile(reason, "Compress the file again without a dictionary.")
    if single_segment:
        size_bytes = (1, 2, 4, 8)[descriptor >> 6]
        at += dictionary_bytes
        window = int.from_bytes(head[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    else:
        base = 1 << (10 + (head[5] >> 3))
        window = base + (base >> 3) * (head[5] & 7)
    needed = (window - 1).bit_length()
    if needed > window_log_max:
        reason = f"the Zstandard frame at byte {begin} needs a window of {window:,} bytes, over 2**{window_log_max}"
        if needed > 31:
            raise DamagedFile(f"{reason}; no reader has more than 2**31", _REFETCH)
        remedy = f"Set zstd_window_log_max to {needed} and have that much memory for every worker."
        raise DamagedFile(f"{reason} of zstd_window_log_max", remedy)


def _is_skippable(head: bytes) -> bool:
    return head[1:4] == _SKIPPABLE_MAGIC[1:] and head[0] & 0xF0 == _SKIPPABLE_MAGIC[0]


def _cut(what: str, begin: int, end: int) -> NoReturn:
    reason = (
        f"truncated or corrupt: the {what} that begins at byte {begin} is not complete when the file ends at byte {end}"
    )
    raise DamagedFile(reason, _REFETCH)


def _corrupt(what: str, begin: int, end: int, error: Exception) -> NoReturn:
    reason = f"truncated or corrupt before byte {end}, in the {what} that begins at byte {begin} ({error})"
    raise DamagedFile(reason, _REFETCH)
