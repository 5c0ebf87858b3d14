"""The members of a tar archive as a stream: nothing is written, and no member is held.

Python's ``tarfile`` reads the blocks of headers. Its ``TarFile`` is not used, because it takes a broken header, or the
end of the file, for the end of the archive. Here an archive ends with a block of zeros, and nothing but zeros follows.
Names are labels and never places on this machine, so that ``..`` or a name from the root is read as it is spelled.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import NoReturn

from everytoken.corpus.reading.archives import BLOCK_BYTES, DamagedFile
from everytoken.corpus.reading.parsing import shown_name

_MAX_HEADER_BYTES = 1 << 20  # of a long name, or of further headers
_REFETCH = "Fetch the file again; if it stays so, it is damaged at its origin."
_LINKS = "Make the archive again with the files in place of links (tar --dereference --hard-dereference)."
_SPARSE = "Make the archive again without --sparse."
_PAX = {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE}
_SPARSE_RECORD = "GNU.sparse"  # any of those that begin so
_KNOWN = {"path", "size", _SPARSE_RECORD}
_LABEL = b"V"  # of a volume of GNU tar
_WITHOUT_DATA = {tarfile.DIRTYPE, _LABEL}
_OTHER = {
    tarfile.LNKTYPE: ("a hard link", _LINKS),
    tarfile.SYMTYPE: ("a symbolic link", _LINKS),
    tarfile.CHRTYPE: ("a device", "Make the archive again without it."),
    tarfile.BLKTYPE: ("a device", "Make the archive again without it."),
    tarfile.FIFOTYPE: ("a pipe", "Make the archive again without it."),
    tarfile.GNUTYPE_SPARSE: ("a sparse file", _SPARSE),
}


class DamagedArchive(DamagedFile):
    """The archive itself cannot be read on, or has a member that is no file."""


class TarMember:
    """A file of an archive, read once from begin to end.

    Attributes:
        name: as the archive spells it.
        offset: of its first byte in the archive.
        size: in bytes.
    """

    def __init__(self, archive: _Archive, name: str, size: int) -> None:
        self.name, self.size, self.offset = name, size, archive.position
        self._archive, self._left = archive, size

    def read(self, size: int = BLOCK_BYTES, /) -> bytes:
        """Return the next bytes, at most ``size``; none at the end.

        Raises:
            DamagedArchive: the archive ends within the member.
        """
        data = self._archive.take(min(size, self._left))
        if self._left and not data:
            place = f"byte {self._archive.position:,}, within member {shown_name(self.name)} of {self.size:,} bytes"
            raise DamagedArchive(f"truncated or corrupt: the archive ends at {place}", _REFETCH)
        self._left -= len(data)
        return data

    def pass_over(self) -> None:
        """Read what is left, and the padding behind it."""
        while self.read(BLOCK_BYTES):
            pass
        self._archive.exactly(-self.size % tarfile.BLOCKSIZE, f"the padding of member {shown_name(self.name)}")


def tar_members(blocks: Iterator[bytes]) -> Iterator[TarMember]:
    """Yield the files of an archive in order; the rest of one is passed over before the next. Folders are no files.

    Args:
        blocks: of the archive, without compression.

    Raises:
        DamagedArchive: it is cut or corrupt, something follows its end, or a member is a link, a device or sparse.
    """
    archive = _Archive(blocks)
    general: dict[str, str] = {}  # of the members that follow
    own: dict[str, str] = {}  # of the next member
    while (header := archive.header()) is not None:
        if header.type in _PAX:
            headers = general if header.type == tarfile.XGLTYPE else own
            headers.update({name: value for name, value in _pax_records(archive, header) if name in _KNOWN})
            continue
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
            name = archive.text(header).partition(b"\0")[0].decode("utf-8", "surrogateescape")
            own.setdefault("path" if header.type == tarfile.GNUTYPE_LONGNAME else "linkpath", name)
            continue
        headers, own = {**general, **own}, {}
        name = headers.get("path", header.name)
        if _SPARSE_RECORD in headers:
            header.type = tarfile.GNUTYPE_SPARSE
        if header.type in _OTHER:
            what, remedy = _OTHER[header.type]
            raise DamagedArchive(f"member {shown_name(name)} is {what}, expected a file or folder", remedy)
        if header.type in _WITHOUT_DATA or (name.endswith("/") and not header.size):
            continue
        if header.type not in tarfile.REGULAR_TYPES:
            reason = f"member {shown_name(name)} is of the type {header.type!r}, expected a file or folder"
            raise DamagedArchive(reason, "Make the archive again without it, in the format of GNU tar or pax.")
        member = TarMember(archive, name, _size_of(header, headers, name))
        yield member
        member.pass_over()
    archive.require_end(bool(own))


def _size_of(header: tarfile.TarInfo, headers: dict[str, str], name: str) -> int:
    told = headers.get("size", str(header.size))
    if not (told.isascii() and told.isdigit() and len(told) < 20):
        raise DamagedArchive(f"corrupt: member {shown_name(name)} has the size {told[:40]!r}", _REFETCH)
    return int(told)


def _pax_records(archive: _Archive, header: tarfile.TarInfo) -> Iterator[tuple[str, str]]:
    r"""Yield the records ``<length> <key>=<value>\n`` of POSIX.1-2001, pax."""
    begin, data, at = archive.position, archive.text(header).rstrip(b"\0"), 0
    while at < len(data):
        digits, space, _ = data[at : at + 20].partition(b" ")
        end = at + (int(digits) if digits.isdigit() else 0)
        record = data[at + len(digits) + 1 : end]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not (space and equals and key and record.endswith(b"\n") and end <= len(data)):
            raise DamagedArchive(f"corrupt: the headers at byte {begin:,} are no records of pax", _REFETCH)
        name = _SPARSE_RECORD if key.startswith(b"GNU.sparse.") else key.decode("utf-8", "surrogateescape")
        yield name, value.decode("utf-8", "surrogateescape")
        at = end


class _Archive:
    """The bytes of an archive."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._held, self._at = blocks, b"", 0
        self.position = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``; none at the end."""
        if size and self._at == len(self._held):
            try:
                self._held, self._at = next(self._blocks, b""), 0
            except DamagedFile as error:
                raise DamagedArchive(error.reason, error.remedy) from None
        data = self._held[self._at : self._at + size]
        self._at += len(data)
        self.position += len(data)
        return data

    def exactly(self, size: int, what: str) -> bytes:
        data = b""
        while len(data) < size:
            more = self.take(size - len(data))
            if not more:
                reason = f"truncated or corrupt: the archive ends at byte {self.position:,}, within {what}"
                raise DamagedArchive(reason, _REFETCH)
            data += more
        return data

    def header(self) -> tarfile.TarInfo | None:
        """Return the next header, None at the block of zeros that ends an archive."""
        begin = self.position
        data = self.exactly(tarfile.BLOCKSIZE, "a header, before the zeros that end an archive")
        if not data.strip(b"\0"):
            return None
        try:
            header = tarfile.TarInfo.frombuf(data, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            self._no_header(begin, data, str(error))
        if header.size < 0:
            self._no_header(begin, data, "a negative size")
        return header

    def _no_header(self, begin: int, data: bytes, why: str) -> NoReturn:
        reason = f"truncated or corrupt at byte {begin:,}: expected the header of a member ({why})"
        raise DamagedArchive(f"{reason}, found {data[:8]!r}", _REFETCH)

    def text(self, header: tarfile.TarInfo) -> bytes:
        """Return what a long name or further headers hold, without padding."""
        begin, size = self.position, header.size
        if size > _MAX_HEADER_BYTES:
            reason = f"corrupt: headers at byte {begin:,} have {size:,} bytes, expected at most {_MAX_HEADER_BYTES:,}"
            raise DamagedArchive(reason, _REFETCH)
        return self.exactly(size + -size % tarfile.BLOCKSIZE, "the headers of a member")[:size]

    def require_end(self, headers_left: bool) -> None:
        """Require nothing but zeros to the end of the file."""
        if headers_left:
            reason = f"truncated or corrupt: headers without a member end at byte {self.position:,}"
            raise DamagedArchive(reason, _REFETCH)
        while data := self.take(BLOCK_BYTES):
            if data.strip(b"\0"):
                begin = self.position - len(data.lstrip(b"\0"))
                reason = f"the archive ends before byte {begin:,}, and more follows (it begins with "
                remedy = "If archives were joined, unpack it by tar --ignore-zeros --extract --file FILE, or part them."
                raise DamagedArchive(f"{reason}{data.lstrip(bytes(1))[:8]!r})", remedy)
