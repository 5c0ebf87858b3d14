"""Text in an encoding other than UTF-8 becomes UTF-8, strictly: a byte that the encoding lacks is an error."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from everytoken.corpus.reading.archives import DamagedFile


def known_encoding(name: str) -> str:
    """Return the name of an encoding of text as Python spells it.

    Raises:
        ValueError: Python has no such encoding.
    """
    try:
        "".encode(name)
        return codecs.lookup(name).name
    except LookupError:
        raise ValueError(
            f"encoding is {name!r}, which is no encoding of text. Set it to one, such as cp1252 or utf-16"
        ) from None


def as_utf8(blocks: Iterator[bytes], encoding: str | None) -> Iterator[bytes]:
    """Yield the same text in UTF-8, in blocks.

    Args:
        encoding: of ``blocks``; None for UTF-8, which passes unchanged and is checked row by row.

    Raises:
        DamagedFile: the bytes are not text in this encoding.
    """
    return blocks if encoding is None else _converted(blocks, encoding)


def _converted(blocks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    position = 0
    for block in blocks:
        yield from _decoded(decoder, block, position, encoding, final=False)
        position += len(block)
    yield from _decoded(decoder, b"", position, encoding, final=True)


def _decoded(
    decoder: codecs.IncrementalDecoder, block: bytes, position: int, encoding: str, *, final: bool
) -> Iterator[bytes]:
    held = len(decoder.getstate()[0])  # bytes of a character that began in the block before
    try:
        text = decoder.decode(block, final)
        if text:
            yield text.encode("utf-8")
    except UnicodeDecodeError as error:
        at = position - held + error.start
        reason = f"byte {at:,} is no text in the source's encoding {encoding} ({error.reason})"
        raise DamagedFile(reason, "Set encoding to the file's own, or to null when it is UTF-8.") from None
    except UnicodeError as error:  # utf-16 without a mark, a surrogate in utf-7
        reason = f"near byte {position:,} there is no text in the source's encoding {encoding} ({error})"
        raise DamagedFile(reason, "Set encoding to the file's own, or to null when it is UTF-8.") from None
