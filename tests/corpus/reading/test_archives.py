from __future__ import annotations

import gzip
import io
import itertools
import json
import random
import struct
import zlib

import pytest
from backports import zstd
from backports.zstd import CompressionParameter as Option

from everytoken.corpus.reading.archives import BLOCK_BYTES, DamagedFile, decompressed

TEXT = b"".join(
    json.dumps({"id": number, "text": f"tea {number * 7919 % 101} é"}).encode() + b"\n" for number in range(40)
)
SKIPPABLE = struct.pack("<II", 0x184D2A53, 5) + b"\x28\xb5\x2f\xfdx"  # its contents look like a frame


def frame(data: bytes, *, checksum: bool = True, size: bool = True) -> bytes:
    options = {Option.checksum_flag: int(checksum), Option.content_size_flag: int(size)}
    if size:
        return zstd.compress(data, options=options)
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(data) + compressor.flush()


def frames(data: bytes, size: int, **options: bool) -> list[bytes]:
    """Cut data anywhere, inside characters and rows, and compress each piece."""
    return [frame(data[at : at + size], **options) for at in range(0, len(data), size)]


def member(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def unpack(data: bytes, compression: str | None = "zst", window_log_max: int = 27) -> bytes:
    stream = io.BufferedReader(io.BytesIO(data))  # type: ignore[type-var]
    return b"".join(decompressed(stream, compression, window_log_max))


def unpack_far(data: bytes, compression: str) -> tuple[bytes, str | None]:
    """Return what was read, and the message of the error that ended it."""
    found = b""
    try:
        for block in decompressed(io.BufferedReader(io.BytesIO(data)), compression, 27):  # type: ignore[type-var]
            found += block
    except DamagedFile as error:
        return found, str(error)
    return found, None


WHOLE = {
    "one frame": [frame(TEXT)],
    "no checksum": [frame(TEXT, checksum=False)],
    "no content size": [frame(TEXT, size=False)],
    "neither": [frame(TEXT, checksum=False, size=False)],
    "frames of 7 bytes": frames(TEXT, 7),
    "frames of 101 bytes without checksum": frames(TEXT, 101, checksum=False),
    "empty frames": [frame(b""), frame(TEXT), frame(b"", size=False), frame(b"")],
    "skippable frames": [SKIPPABLE, frame(TEXT[:50]), SKIPPABLE, SKIPPABLE, frame(TEXT[50:]), SKIPPABLE],
}


@pytest.mark.parametrize("name", WHOLE)
def test_all_frames_of_a_zst_file_are_read(name: str) -> None:
    assert unpack(b"".join(WHOLE[name])) == TEXT


@pytest.mark.parametrize("name", WHOLE)
def test_a_zst_file_cut_at_any_byte_is_an_error_with_the_byte_unless_whole_frames_are_left(name: str) -> None:
    data = b"".join(WHOLE[name])
    ends = set(itertools.accumulate(len(piece) for piece in WHOLE[name]))
    for size in sorted({1, 2, 3, len(data) // 2, len(data) - 100, *range(max(1, len(data) - 30), len(data))}):
        found, error = unpack_far(data[:size], "zst")
        assert TEXT.startswith(found)
        if size in ends:
            assert error is None  # nothing in the file tells that more frames followed
            continue
        assert error is not None and "truncated or corrupt" in error
        if size > 4:
            begin = max([end for end in ends if end < size], default=0)
            assert f"that begins at byte {begin} is not complete when the file ends at byte {size}" in error


def test_python_zstandard_would_end_a_cut_file_without_a_word() -> None:
    zstandard = pytest.importorskip("zstandard")
    data = b"".join(frames(TEXT, len(TEXT) // 2))[:-100]
    with io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)), encoding="utf-8") as lines:
        assert sum(1 for _ in lines) < 40
    with pytest.raises(DamagedFile, match="is not complete"):
        unpack(data)


@pytest.mark.parametrize("data", [b"".join(frames(TEXT, 900)), frame(TEXT, size=False), SKIPPABLE + frame(TEXT)])
def test_every_flipped_bit_of_a_checksummed_zst_file_is_found_or_harmless(data: bytes) -> None:
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found, error = unpack_far(bytes(damaged), "zst")
        assert error is not None or found == TEXT


def test_a_flipped_bit_of_a_zst_file_without_checksum_can_pass_for_another_text() -> None:
    row = b'{"text": "tea"}\n'  # so short that it is stored as it is
    data = frame(row, checksum=False)
    at = data.index(b"tea")
    assert unpack(data[:at] + b"T" + data[at + 1 :]) == row.replace(b"tea", b"Tea")
    data = frame(row)
    with pytest.raises(DamagedFile, match=r"checksum"):
        unpack(data[:at] + b"T" + data[at + 1 :])


MEMBERS = [member(TEXT[:700]), member(b""), member(TEXT[700:])]


def test_gzip_members_follow_each_other_and_zeros_may_follow_them() -> None:
    assert unpack(b"".join(MEMBERS), "gz") == TEXT
    assert unpack(b"".join(MEMBERS) + bytes(1_000), "gz") == TEXT
    assert unpack(member(b""), "gz") == b""


def test_a_gz_file_cut_at_any_byte_is_an_error_with_the_byte_unless_whole_members_are_left() -> None:
    data = b"".join(MEMBERS)
    ends = set(itertools.accumulate(map(len, MEMBERS)))
    for size in range(1, len(data)):
        found, error = unpack_far(data[:size], "gz")
        assert TEXT.startswith(found)
        if size in ends:
            assert error is None
            continue
        begin = max([end for end in ends if end < size], default=0)
        if size - begin > 1:
            assert error and f"begins at byte {begin} is not complete when the file ends at byte {size}" in error
        else:
            assert error and "truncated or corrupt" in error


def test_every_flipped_bit_of_a_gz_file_is_found_or_harmless() -> None:
    data = b"".join(MEMBERS)
    harmless = 0
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found, error = unpack_far(bytes(damaged), "gz")
        assert error is not None or found == TEXT
        harmless += error is None
    assert harmless <= 3 * 8 * 8  # time, flags and system in the headers of the three members


@pytest.mark.parametrize(
    ("data", "compression", "reason"),
    [
        (b"", "zst", "the file has no bytes"),
        (b"", "gz", "the file has no bytes"),
        (member(TEXT), "zst", r"at byte 0: its name ends in \.zst, but it holds gzip"),
        (frame(TEXT), "gz", r"at byte 0: its name ends in \.gz, but it holds Zstandard"),
        (TEXT, "gz", r"its name ends in \.gz, but it holds no gzip"),
        (TEXT, "zst", r"its name ends in \.zst, but it holds no Zstandard"),
        (b"PK\x03\x04" + TEXT, "gz", "but it holds a zip archive"),
        (frame(TEXT) + b"garbage", "zst", rf"at byte {len(frame(TEXT))} is no Zstandard frame .*b'garbage'"),
        (frame(TEXT) + bytes(8), "zst", rf"at byte {len(frame(TEXT))} is no Zstandard frame"),
        (member(TEXT) + b"garbage", "gz", rf"at byte {len(member(TEXT))} is neither a gzip member nor zero padding"),
        (member(TEXT) + bytes(3) + b"x", "gz", "neither a gzip member nor zero padding"),
        (member(TEXT) + bytes(3) + member(TEXT), "gz", "neither a gzip member nor zero padding"),
        (member(TEXT)[:-8] + bytes(4) + member(TEXT)[-4:], "gz", "Incorrect checksum"),
        (member(TEXT)[:-4] + bytes(4), "gz", "Incorrect checksum"),
    ],
)
def test_what_is_no_archive_of_its_name_is_said(data: bytes, compression: str, reason: str) -> None:
    with pytest.raises(DamagedFile, match=reason):
        unpack(data, compression)


def with_window(log: int) -> bytes:
    """Return a frame whose header asks for a window of 2**log bytes."""
    data = bytearray(frame(TEXT, size=False))
    assert not data[4] & 0x20
    data[5] = (log - 10) << 3
    return bytes(data)


def test_a_large_window_works_with_the_parameter_and_else_says_so() -> None:
    assert unpack(with_window(27)) == TEXT
    with pytest.raises(DamagedFile, match=r"window of 268,435,456 bytes, over 2\*\*27 .*Set zstd_window_log_max to 28"):
        unpack(with_window(28))
    assert unpack(with_window(28), window_log_max=28) == TEXT
    assert unpack(with_window(31), window_log_max=31) == TEXT
    with pytest.raises(DamagedFile, match=r"no reader has more than 2\*\*31"):
        unpack(with_window(32), window_log_max=31)


def test_a_frame_that_needs_a_dictionary_says_so() -> None:
    samples = [TEXT[at : at + 60] for at in range(0, len(TEXT) - 60, 20)]
    dictionary = zstd.train_dict(samples, 512)
    with pytest.raises(DamagedFile, match="needs a dictionary"):
        unpack(zstd.compress(TEXT, zstd_dict=dictionary))


@pytest.mark.parametrize("compression", ["zst", "gz"])
def test_blocks_stay_small_whatever_the_ratio_of_compression(compression: str) -> None:
    zeros = bytes(64 << 20)
    data = zstd.compress(zeros) if compression == "zst" else zlib.compress(zeros, 1, wbits=31)
    sizes = [
        len(block)
        for block in decompressed(io.BufferedReader(io.BytesIO(data)), compression, 27)  # type: ignore[type-var]
    ]
    assert max(sizes) <= BLOCK_BYTES
    assert min(sizes) > 0
    assert sum(sizes) == len(zeros)


@pytest.mark.parametrize("compression", ["zst", "gz", None])
def test_data_that_do_not_compress_are_read_over_many_blocks(compression: str | None) -> None:
    noise = random.Random(5).randbytes(3 * BLOCK_BYTES + 17)
    pieces = [noise[:BLOCK_BYTES], noise[BLOCK_BYTES : BLOCK_BYTES + 1], noise[BLOCK_BYTES + 1 :]]
    pack = {"zst": frame, "gz": member, None: bytes}[compression]
    assert unpack(b"".join(map(pack, pieces)), compression) == noise


@pytest.mark.parametrize("size", [*range(1, 24), 100])
def test_archives_are_read_in_blocks_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header, a trailer or a magic number may lie in two blocks."""
    monkeypatch.setattr("everytoken.corpus.reading.archives.BLOCK_BYTES", size)
    assert unpack(b"".join(MEMBERS) + bytes(5), "gz") == TEXT
    assert unpack(frame(TEXT[:700]) + frame(b"") + frame(TEXT[700:]), "zst") == TEXT


@pytest.mark.parametrize(("flag", "width"), [(1, 1), (2, 2), (3, 4)])
@pytest.mark.parametrize("single_segment", [True, False])
def test_a_dictionary_is_named_in_up_to_four_bytes(flag: int, width: int, single_segment: bool) -> None:
    window = b"" if single_segment else b"\x00"
    head = b"\x28\xb5\x2f\xfd" + bytes([single_segment << 5 | flag]) + window
    for at in range(width):
        number = bytearray(width)
        number[at] = 1
        with pytest.raises(DamagedFile, match="needs a dictionary"):
            unpack(head + bytes(number) + bytes(12))


def test_a_frame_without_window_needs_one_of_its_size() -> None:
    for size, width in ((65_536, 1), (65_537, 1), (65_791, 1), (65_792, 2), (131_072, 2), (131_073, 2)):
        data = zstd.compress(bytes(size))
        assert data[4] & 0x20 and data[4] >> 6 == width, "the size is in two bytes up to 65,791, else in four"
        needed = (size - 1).bit_length()
        assert unpack(data, window_log_max=needed) == bytes(size)
        message = rf"window of {size:,} bytes, over 2\*\*{needed - 1} .*Set zstd_window_log_max to {needed}"
        with pytest.raises(DamagedFile, match=message):
            unpack(data, window_log_max=needed - 1)
