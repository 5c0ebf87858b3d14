"""Parts of a run on disk: found by their name when they are whole, and never used when they are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.shards import DamagedStore
from everytoken.text_to_stream.parts import LENGTHS, RECORD, TOKENS, MadePart, SummedFile, find_part

NAME = "ab" * 32


def part(folder: Path) -> MadePart:
    files = {}
    for suffix, values in ((TOKENS, np.arange(1000, dtype="<u2")), (LENGTHS, np.array([400, 600], "<i4"))):
        with SummedFile(folder / f".0.1.tmp{suffix}") as files[suffix]:
            for half in np.array_split(values, 2):
                files[suffix].write(half.data)
            files[suffix].write(values[:0].data)
    record: Any = {
        "bytes": {suffix: file.bytes for suffix, file in files.items()},
        "crc32": {suffix: file.crc32 for suffix, file in files.items()},
        "counts": {"documents": 2},
        "first_lossy": None,
        "tokenizer": {"eos_id": 0},
        "rechecked": 1,
    }
    return MadePart(folder, ".0.1.tmp", record).named(NAME)


def test_a_part_is_found_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    assert find_part(tmp_path, NAME) is None
    made = part(tmp_path)
    assert find_part(tmp_path, NAME) == made
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{NAME}{s}" for s in (RECORD, LENGTHS, TOKENS)]
    assert b"".join(made.blocks(TOKENS)) == np.arange(1000, dtype="<u2").tobytes()
    assert made.record["bytes"] == {TOKENS: 2000, LENGTHS: 8}


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (RECORD, b""),
        (RECORD, b"[]"),
        (RECORD, b'{"rechecked": 1}'),
        (TOKENS, b"short"),
        (LENGTHS, None),
    ],
)
def test_a_damaged_part_is_made_again_with_a_warning(
    tmp_path: Path, suffix: str, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = part(tmp_path).path(suffix)
    path.unlink() if damage is None else path.write_bytes(damage)
    assert find_part(tmp_path, NAME) is None
    assert str(path) in caplog.text and "the part is made again" in caplog.text


def test_an_edited_record_is_not_believed(tmp_path: Path) -> None:
    path = part(tmp_path).path(RECORD)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "rechecked": 2}))
    assert find_part(tmp_path, NAME) is None


def test_a_flipped_bit_is_found_when_a_part_is_read_and_the_part_is_made_again(tmp_path: Path) -> None:
    made = part(tmp_path)
    data = bytearray(made.path(TOKENS).read_bytes())
    data[77] ^= 4
    made.path(TOKENS).write_bytes(data)
    with pytest.raises(DamagedStore, match=r"tokens is not the file that was written \(its CRC-32 differs\)"):
        list(made.blocks(TOKENS))
    assert find_part(tmp_path, NAME) is None
