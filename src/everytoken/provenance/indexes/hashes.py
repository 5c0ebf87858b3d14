"""64-bit hashes of ids and addresses, of many at once.

m is the finaliser of SplitMix64 (Steele, Lea, Flood, 2014); sums and products are modulo 2**64.

- Of text: its UTF-8 is filled up with zero bytes to little-endian words w_0, w_1, ... of 64 bits; h is its number of
  bytes at first, and then ``h <- m(h + w_k)`` for each word.
- Of an id: the hash of ``id_type``, U+001F and ``id``, so that the number 1 and the string "1" stay two.
- Of an address: ``m(m(s + shard_index) + row)``, s the hash of the source.

They only propose where to look: who finds a hash compares the record, so nothing depends on whether two are alike.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everytoken.address import Address, AddressColumns

_WORD = 8


def hashes_of_texts(texts: pa.Array) -> np.ndarray:
    """Return the hash of each text, uint64 (n,); none may be null."""
    wide = texts.cast(pa.large_string()).cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    ends = np.frombuffer(offsets, np.int64, len(wide) + 1 + wide.offset)[wide.offset :]
    return _hashes(np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]], ends - ends[0])


def _hashes(data: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the hash of each text, uint64 (n,), text i being the bytes [ends[i], ends[i + 1]) of the data."""
    values = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    starts, lengths = ends[:-1], np.diff(ends)
    hashes, rows, place = lengths.astype(np.uint64), np.flatnonzero(lengths), 0
    while len(rows):  # a word of each text that has one
        words = values[(starts[rows] + place)[:, None] + np.arange(_WORD)]
        left = lengths[rows] - place
        words[np.arange(_WORD) >= left[:, None]] = 0
        hashes[rows] = mixed(hashes[rows] + words.view("<u8")[:, 0])
        place += _WORD
        rows = rows[left > _WORD]
    return hashes


def hashes_of_ids(id_types: pa.Array, ids: pa.Array) -> np.ndarray:
    """Return the hash of each id, uint64 (n,); none may be null."""
    separator = pa.scalar("\x1f", pa.large_string())
    typed = pc.binary_join_element_wise(id_types.cast(pa.large_string()), ids.cast(pa.large_string()), separator)
    return hashes_of_texts(typed)


def hashes_of_addresses(addresses: AddressColumns) -> np.ndarray:
    """Return the hash of each address, uint64 (n,)."""
    sources = hashes_of_texts(addresses.sources)[addresses.source]
    return _of_addresses(sources, addresses.shard_index, addresses.row)


def _of_addresses(sources: np.ndarray, shard_indexes: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return mixed(mixed(sources + shard_indexes.astype(np.uint64)) + rows.astype(np.uint64))


def mixed(x: np.ndarray) -> np.ndarray:
    """Return m of each number, uint64 (n,)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    finalised: np.ndarray = x ^ (x >> np.uint64(31))
    return finalised


# Of one: pyarrow would load pandas to make an array of a list, which takes half a second and 50 MB.
def hash_of_id(id_type: str, id: str) -> int:
    """Return the hash of one id."""
    return int(_hash_of(f"{id_type}\x1f{id}")[0])


def hash_of_address(address: Address) -> int:
    """Return the hash of one address."""
    return int(_of_addresses(_hash_of(address.source), np.array([address.shard_index]), np.array([address.row]))[0])


def _hash_of(text: str) -> np.ndarray:
    data = np.frombuffer(text.encode(), np.uint8)
    return _hashes(data, np.array([0, len(data)]))
