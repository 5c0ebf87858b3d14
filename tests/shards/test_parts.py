"""A part file depends on its rows alone, is written and read in bounded memory, and is never read as other rows."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everytoken.seeds import numpy_generator
from everytoken.shards import DamagedStore, Rows, Shards, ShardsError, file_sha256, table_digest, writing
from everytoken.shards.parts import Part, StoredPart, ValuePart
from everytoken.shards.shards import PlannedPart
from everytoken.shards.writing import Written, write_rows
from tests.shards import functions
from tests.shards.folders import content
from tests.shards.functions import SCHEMA, batch, count_up, total

ROOT = Path(__file__).parents[2]


def write(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA, statistics: Any = None) -> Written:
    def rows() -> functions.Made:
        yield from batches
        return statistics  # type: ignore[no-any-return]

    return write_rows(Rows(schema, rows()), path)


def stored(path: Path, written: Written) -> StoredPart:
    return StoredPart(path.stem, 0, path, written.part.rows, written.part.content_digest, written.part.sha256)


ROWS = 400
WIDE = pa.schema(
    [
        ("word", pa.dictionary(pa.int32(), pa.large_string())),
        ("text", pa.string()),
        ("binary", pa.large_binary()),
        ("struct", pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8()))])),
        ("list", pa.large_list(pa.string())),
        ("nothing", pa.null()),
        ("flag", pa.bool_()),
        ("half", pa.float16()),
    ]
)


def wide_rows() -> pa.RecordBatch:
    numbers = range(ROWS)
    columns = [
        pa.array([f"v{i % 13}" if i % 4 else None for i in numbers], pa.large_string()).dictionary_encode(),
        [f"é{i}" * (i % 9) if i % 3 else None for i in numbers],
        [bytes([i % 256]) * (i % 50) for i in numbers],
        [{"a": "x" * (i % 5), "b": [1] * (i % 4)} if i % 6 else None for i in numbers],
        [["t", None] * (i % 3) if i % 5 else None for i in numbers],
        pa.nulls(ROWS),
        [bool(i % 2) if i % 7 else None for i in numbers],
        pa.array(np.arange(ROWS, dtype=np.float16)),
    ]
    arrays = [pa.array(c, f.type) if isinstance(c, list) else c for c, f in zip(columns, WIDE, strict=True)]
    return pa.record_batch(arrays, WIDE)


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([1, 2, 7, 49, 50, 51, 120]), min_size=1, max_size=6),
    st.sampled_from([(2000, 1000), (1 << 20, 50), (4000, 30)]),
)
def test_same_bytes_for_any_batching_of_the_same_rows(
    tmp_path_factory: Any, sizes: list[int], limits: tuple[int, int]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole, start = wide_rows(), 0
    cut: list[pa.RecordBatch] = []
    while start < ROWS:
        size = sizes[len(cut) % len(sizes)]
        cut.append(whole.slice(start, size))
        start += size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "ROW_GROUP_BYTES", limits[0])
        patch.setattr(writing, "ROW_GROUP_ROWS", limits[1])
        assert write(folder / "cut.parquet", cut, WIDE) == write(folder / "whole.parquet", [whole], WIDE)
    assert (folder / "cut.parquet").read_bytes() == (folder / "whole.parquet").read_bytes()
    with pq.ParquetFile(folder / "cut.parquet") as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert len(groups) >= 8 and max(groups) <= limits[1]


def test_dictionaries_that_differ_by_batch_give_the_same_bytes(tmp_path: Path) -> None:
    schema = pa.schema([("word", pa.dictionary(pa.int32(), pa.string()))])
    words = [f"v{i % 13}" for i in range(300)]
    single = [pa.record_batch([pa.array([word]).dictionary_encode()], schema) for word in words]
    together = [pa.record_batch([pa.array(words).dictionary_encode()], schema)]
    assert write(tmp_path / "a.parquet", single, schema) == write(tmp_path / "b.parquet", together, schema)


def test_hidden_bytes_below_nulls_do_not_reach_the_file(tmp_path: Path) -> None:
    kind, seen = pa.int64(), pa.py_buffer(bytes([0b101]))
    schema = pa.schema([("n", kind)])
    hidden = pa.Array.from_buffers(kind, 3, [seen, pa.array([1, 999, 3]).buffers()[1]])
    plain = pa.array([1, None, 3], kind)
    left = write(tmp_path / "a.parquet", [pa.record_batch([hidden], schema)], schema)
    assert left == write(tmp_path / "b.parquet", [pa.record_batch([plain], schema)], schema)


def test_what_is_written_is_recorded_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "part_00000.parquet"
    written = write(path, [wide_rows()], WIDE, {"kept": np.int64(3)})
    assert written.part.sha256 == file_sha256(path)
    assert written.part.bytes == path.stat().st_size
    assert (written.part.rows, written.statistics) == (ROWS, {"kept": 3})
    part = stored(path, written)
    assert part.schema.names == WIDE.names
    assert table_digest(part.schema, part.batches()) == written.part.content_digest
    assert part.table().num_rows == sum(b.num_rows for b in part.batches()) == ROWS, "it may be read again"
    assert list(content(tmp_path)) == ["part_00000.parquet"]


def test_columns_come_in_the_order_asked_for(tmp_path: Path) -> None:
    part = stored(tmp_path / "p.parquet", write(tmp_path / "p.parquet", [batch(5, 3)]))
    assert part.table(["text", "number"]).to_pydict() == {"text": ["text 5", "text 6", "text 7"], "number": [5, 6, 7]}
    assert next(part.batches(["text", "number"])).schema.names == ["text", "number"]
    assert sum(b.num_rows for b in part.batches([])) == 3


def test_an_unknown_column_is_an_error_and_not_left_out(tmp_path: Path) -> None:
    part = stored(tmp_path / "p.parquet", write(tmp_path / "p.parquet", [batch(5, 3)]))
    for read in (lambda: list(part.batches(["text", "nope"])), lambda: part.table(["nope"])):
        with pytest.raises(ShardsError, match=r"has no columns \['nope'\]"):
            read()


def test_no_flipped_bit_is_read_as_other_rows(tmp_path: Path) -> None:
    """Page checksums do not cover page headers and the footer; some flips there would lose all rows of a file."""
    path = tmp_path / "p.parquet"
    written = write(path, [batch(0, 60)])
    good = {name: stored(path, written).table([name])[name].to_pylist() for name in SCHEMA.names}
    data, damaged = path.read_bytes(), 0
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 1 << position % 8
        path.write_bytes(broken)
        part = stored(path, written)
        try:
            batches = list(part.batches())
        except DamagedStore:
            damaged += 1
            continue
        assert sum(b.num_rows for b in batches) == 60
        for b in batches[:1]:
            for field in SCHEMA:
                if field.name in b.schema.names and b.schema.field(field.name).type.equals(field.type):
                    assert b[field.name].to_pylist() == good[field.name], position
    assert damaged > len(data) // 2


def test_a_lost_file_is_named(tmp_path: Path) -> None:
    part = StoredPart("part_00000", 0, tmp_path / "part_00000.parquet", 3, "", "")
    with pytest.raises(DamagedStore, match=r"part_00000\.parquet cannot be read"):
        part.table()


_MEMORY = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
from everytoken.shards import Rows
from everytoken.shards.parts import StoredPart
from everytoken.shards.writing import write_rows

def peak():  # of this process since exec; ru_maxrss would begin with what the parent had
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024

schema = pa.schema([("text", pa.large_string())])
path = Path(sys.argv[1])
letters = np.frombuffer(b"abcdefgh " * 300_000, np.uint8)  # 2.7 MB a batch
def batches():
    for i in range(150):
        text = np.roll(letters, i * 7919).tobytes().decode()
        yield pa.record_batch([[text[j : j + 9000] for j in range(0, len(text), 9000)]], schema)
    return {}
start = peak()
if sys.argv[2] == "write":
    write_rows(Rows(schema, batches()), path)
else:
    total = sum(b["text"].nbytes for b in StoredPart("p", 0, path, 45_000, "", "").batches())
    assert total > 400e6, total
print(peak() - start)
"""


def test_memory_is_bounded_however_large_a_part_is(tmp_path: Path) -> None:
    for step in ("write", "read"):
        command = [sys.executable, "-c", _MEMORY, str(tmp_path / "p.parquet"), step]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment())
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) < {"write": 220, "read": 140}[step], (
            f"{step} took {done.stdout} MB for 405 MB of text"
        )


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.struct([("s", pa.string())])])
def test_every_kind_of_text_counts_toward_the_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_BYTES", 10_000)
    schema = pa.schema([("c", kind)])
    value: Any = {"s": "x" * 1000} if pa.types.is_struct(kind) else "x" * 1000
    write(tmp_path / "p.parquet", [pa.record_batch([pa.array([value] * 100, kind)], schema)], schema)
    with pq.ParquetFile(tmp_path / "p.parquet") as file:
        assert file.num_row_groups >= 10


def test_a_row_larger_than_a_row_group_is_one_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROW_GROUP_BYTES", 100)
    schema = pa.schema([("t", pa.large_string())])
    written = write(tmp_path / "p.parquet", [pa.record_batch([["x" * 999, "", "y"]], schema)], schema)
    assert stored(tmp_path / "p.parquet", written).table().to_pydict() == {"t": ["x" * 999, "", "y"]}


def test_parts_without_rows_and_columns_of_nulls_are_kept(tmp_path: Path) -> None:
    for batches in ([], [batch(0, 0)], [pa.record_batch([pa.nulls(3, field.type) for field in SCHEMA], SCHEMA)]):
        written = write(tmp_path / "p.parquet", batches)
        part = stored(tmp_path / "p.parquet", written)
        assert part.table().num_rows == written.part.rows == sum(b.num_rows for b in batches)
        assert part.schema.equals(SCHEMA)
        assert table_digest(part.schema, part.batches()) == written.part.content_digest


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (pa.schema([]), "give at least one"),
        (pa.schema([("a", pa.int8()), ("a", pa.int8())]), "each its own name"),
        (pa.schema([("a", pa.list_(pa.float32(), 3))]), "parquet loses its nulls"),
        (pa.schema([("a", pa.timestamp("s"))]), "no canonical form"),
    ],
)
def test_schemas_that_parquet_would_not_give_back_are_refused(tmp_path: Path, schema: pa.Schema, message: str) -> None:
    with pytest.raises(ShardsError, match=message):
        write(tmp_path / "p.parquet", [], schema)
    assert content(tmp_path) == {}


def test_a_batch_of_another_schema_leaves_no_file(tmp_path: Path) -> None:
    other = pa.record_batch([[1]], functions.NUMBERS)
    with pytest.raises(ShardsError, match="a batch has columns"):
        write(tmp_path / "p.parquet", [batch(0, 5), other])
    assert content(tmp_path) == {}


def test_rows_that_break_off_leave_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="in the middle"):
        write_rows(functions.break_off(ValuePart("p", 0, 0, "")), tmp_path / "p.parquet")
    assert content(tmp_path) == {}


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = numpy_generator(0).bytes(400_000)
    schema = pa.schema([("b", pa.binary())])
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            write(tmp_path / "p.parquet", [pa.record_batch([[noise]], schema)], schema)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert content(tmp_path) == {}


@pytest.mark.parametrize("statistics", [{"x": float("nan")}, {"x": {1: 2}}, {"x": {1}}, [("a", {1})]])
def test_statistics_that_are_no_json_leave_no_file(tmp_path: Path, statistics: Any) -> None:
    with pytest.raises(ShardsError, match="p: statistics"):
        write(tmp_path / "p.parquet", [batch(0, 5)], statistics=statistics)
    assert content(tmp_path) == {}


def test_a_planned_part_is_made_when_it_is_read() -> None:
    (part,) = Shards.from_values([3], ["three"]).map(count_up, rows=2).parts
    assert part.rows == 8
    assert part.schema.equals(SCHEMA)
    assert part.table(["number"])["number"].to_pylist() == list(range(3000, 3008))
    assert next(part.batches(["text", "number"])).schema.names == ["text", "number"]
    with pytest.raises(ShardsError, match="holds rows, not a value"):
        _ = part.value
    assert PlannedPart("p", 0, part.recipe, part.inputs).digest == part.digest  # type: ignore[attr-defined]


def test_a_planned_value_is_made_when_it_is_read() -> None:
    (part,) = Shards.from_values([3], ["three"]).map(count_up, rows=1).reduce(total).parts
    assert part.value == {"sum": sum(range(3000, 3004)), "pair": [1, 2]}
    with pytest.raises(ShardsError, match="returned a dict for part_00000, not Rows"):
        part.table()


def test_a_value_part_says_that_it_has_no_rows() -> None:
    part: Part = ValuePart("part_00000", 0, 1, "")
    for read in (lambda: part.rows, lambda: part.schema, part.batches, part.table):
        with pytest.raises(ShardsError, match="holds a value, not rows"):
            read()
