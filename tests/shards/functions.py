"""Part and artifact functions for the tests. They are here, and not in the tests, because workers must import them.

What a test wants of one part (fail, die, be slow) comes by environment variables, so that it does not enter recipes.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.shards import (
    IN_THIS_PROCESS,
    Built,
    HashedFile,
    Part,
    RangeMap,
    Rows,
    SetAside,
    Shards,
    Unchanged,
    versioned,
)

SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.large_string()), ("list", pa.list_(pa.uint16()))])
NUMBERS = pa.schema([("number", pa.int64())])
Made = Generator[pa.RecordBatch | SetAside, None, dict[str, Any]]


def batch(start: int, rows: int) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.record_batch(
        [list(numbers), [f"text {n}" for n in numbers], [[n % 7] * (n % 5) for n in numbers]], SCHEMA
    )


def given(count: int, changed: int | None = None) -> Shards:
    """Return ``count`` value parts; the digest and value of part ``changed`` are others."""
    numbers = [i + (1000 if i == changed else 0) for i in range(count)]
    return Shards.from_values(numbers, [f"digest of {n}" for n in numbers])


def obey(name: str) -> None:
    """Do to this part what the test asked for: note that it ran, be slow, fail or die."""
    if side := os.environ.get("TEST_RAN"):
        with Path(side).open("a") as file:
            file.write(f"{name}\n")
    time.sleep(float(os.environ.get("TEST_SECONDS", "0")))
    if name in os.environ.get("TEST_FAIL", "").split():
        raise ValueError(f"{name} does not like this{os.environ.get('TEST_SAYS', '')}")
    if name in os.environ.get("TEST_DIE", "").split():
        os.kill(os.getpid(), signal.SIGKILL)


@versioned("count_up", 1)
def count_up(part: Part, *, factor: int = 1, rows: int = 40) -> Rows:
    """Four batches of rows that follow from the value of the part."""
    obey(part.name)

    def batches() -> Made:
        for i in range(4):
            yield batch(part.value * factor * 1000 + i * rows, rows)
        reasons = {"b": 1, "a": part.value, "c": 0, "d": 0}
        return {"rows": 4 * rows, "by_reason": {key: reasons[key] for key in set(reasons)}}  # order: by the hash seed

    return Rows(SCHEMA, batches())


REASONS = pa.schema([("number", pa.int64()), ("reason", pa.string())])


@versioned("sift", 1)
def sift(part: Part, *, factor: int = 1) -> Rows:
    """Rows of which every ``value``-th is set aside; none when the value is even."""
    obey(part.name)

    def batches() -> Made:
        for i in range(2):
            numbers = range(i * 40 * factor, (i + 1) * 40 * factor)
            aside = [n for n in numbers if part.value % 2 and n % part.value == 0]
            yield SetAside(pa.record_batch([aside, ["of this kind"] * len(aside)], REASONS))
            yield pa.record_batch([[n for n in numbers if n not in aside]], NUMBERS)
        return {"rows_in": 80 * factor}

    return Rows(NUMBERS, batches(), set_aside=REASONS)


@versioned("lose_a_row", 1)
def lose_a_row(part: Part) -> Rows:
    def batches() -> Made:
        yield pa.record_batch([[1, 2]], NUMBERS)
        yield SetAside(pa.record_batch([[3], ["bad"]], REASONS))
        return {"rows_in": part.value}

    return Rows(NUMBERS, batches(), set_aside=REASONS)


@versioned("aside_without_schema", 1)
def aside_without_schema(part: Part) -> Rows:
    def batches() -> Made:
        yield SetAside(pa.record_batch([[3], ["bad"]], REASONS))
        return {}

    return Rows(NUMBERS, batches())


@versioned("leave", 1)
def leave(part: Part) -> Unchanged:
    obey(part.name)
    return Unchanged(part, {"rows_in": part.rows})


@versioned("leave_planned", 1)
def leave_planned(part: Part) -> Unchanged:
    return Unchanged(part, {})


@versioned("add_one", 1)
def add_one(part: Part, *, add: int = 1) -> Rows:
    obey(part.name)

    def batches() -> Made:
        for found in part.batches(["number"]):
            yield pa.record_batch([pa.array([n + add for n in found["number"].to_pylist()], pa.int64())], NUMBERS)
        return {}

    return Rows(NUMBERS, batches())


@versioned("add_up", 1)
def add_up(left: Part, right: Part) -> Rows:
    obey(left.name)

    def batches() -> Made:
        columns = [side.table(["number"])["number"].to_pylist() for side in (left, right)]
        yield pa.record_batch([pa.array([a + b for a, b in zip(*columns, strict=True)], pa.int64())], NUMBERS)
        return {"left": left.rows, "right": right.rows}

    return Rows(NUMBERS, batches())


@versioned("total", 1)
def total(part: Part, *, weight: int = 1) -> dict[str, Any]:
    obey(part.name)
    return {"sum": weight * sum(part.table(["number"])["number"].to_pylist()), "pair": (1, 2)}


@versioned("show_total", 1)
def show_total(part: Part) -> Rows:
    def batches() -> Made:
        yield pa.record_batch([pa.array([part.value["sum"]], pa.int64())], NUMBERS)
        return {}

    return Rows(NUMBERS, batches())


@versioned("read_file", 1)
def read_file(part: Part) -> Rows:
    """Rows from a file whose place is the part's value: the same content may lie elsewhere tomorrow."""
    obey(part.name)

    def batches() -> Made:
        yield pa.record_batch([[int(n) for n in Path(part.value["path"]).read_text().split()]], NUMBERS)
        return {}

    return Rows(NUMBERS, batches())


@versioned("no_rows", 1)
def no_rows(part: Part) -> Rows:
    def batches() -> Made:
        yield from ()
        return {"rows": 0}

    return Rows(SCHEMA, batches())


@versioned("only_nulls", 1)
def only_nulls(part: Part) -> Rows:
    def batches() -> Made:
        yield pa.record_batch([pa.nulls(9, field.type) for field in SCHEMA], SCHEMA)
        return {}

    return Rows(SCHEMA, batches())


@versioned("break_off", 1)
def break_off(part: Part) -> Rows:
    def batches() -> Made:
        yield batch(0, 10)
        raise ValueError("in the middle of the rows")

    return Rows(SCHEMA, batches())


@versioned("other_columns", 1)
def other_columns(part: Part) -> Rows:
    def batches() -> Made:
        yield pa.record_batch([[1]], NUMBERS)
        return {}

    return Rows(SCHEMA, batches())


@versioned("statistics_of", 1)
def statistics_of(part: Part) -> Rows:
    """Rows with the statistics that the value names."""
    kinds: dict[str, Any] = {
        "nan": {"loss": float("nan")},
        "int key": {"histogram": {1: 2, 10: 3}},
        "object": {"where": Path("x")},
        "counter": {"reasons": Counter("abca"), "pair": (1, 2)},
        "huge": {"list": list(range(200_000))},
    }

    def batches() -> Made:
        yield batch(0, 1)
        return kinds[part.value]  # type: ignore[no-any-return]

    return Rows(SCHEMA, batches())


@versioned("value_of", 1)
def value_of(part: Part) -> Any:
    kinds: dict[str, Any] = {"nan": [float("inf")], "int key": {2: 1, 10: 1}, "object": Path("x"), "none": None}
    return kinds[part.value]


class Unpicklable(Exception):
    def __init__(self, first: str, second: Any) -> None:
        super().__init__(first)
        self.second = second


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class Panic(BaseException):
    """As pyo3's PanicException is."""


@versioned("raise_oddly", 1)
def raise_oddly(part: Part) -> int:
    """Part 0 is well; the others raise what their value names."""
    match part.value:
        case "unpicklable":
            raise Unpicklable("kept as text", lambda: None)
        case "unspeakable":
            raise Unspeakable
        case "surrogate":
            raise ValueError("half of a pair: \ud800")
        case "panic":
            raise Panic("in Rust")
        case "exit":
            raise SystemExit(0)
    return 7


@versioned("hold_the_lock", 1)
def hold_the_lock(part: Part) -> int:
    """Never give the interpreter lock back: the regular expression engine backtracks for minutes."""
    obey(part.name)
    return len(re.findall(r"(a|aa)+$", "a" * 60 + "b"))


def undeclared(part: Part) -> int:
    return 1


@contextmanager
def version_of(function: Any, version: int) -> Iterator[None]:
    """Declare another version for a while."""
    before = function.__recipe_version__
    function.__recipe_version__ = version
    try:
        yield
    finally:
        function.__recipe_version__ = before


@versioned("build_folder", 1)
def build_folder(folder: Path, *, factor: int = 1, source: Any = None) -> Built:
    """An artifact with a subfolder and a table."""
    obey("artifact")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "numbers.bin").write_bytes(bytes([factor]) * 1000)
    time.sleep(float(os.environ.get("TEST_SECONDS", "0")))
    with HashedFile(folder / "name.txt") as name:
        name.write(b"factor ")
        name.write(f"{factor}\n".encode())
    with pa.OSFile(str(folder / "table.parquet"), "wb") as file:
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_batches([batch(factor, 20)]), file)
    return Built({"factor": factor}, {"seconds": time.monotonic()}, {"name.txt": name.sha256.hexdigest()})


@dataclass(frozen=True)
class Tenth:
    """A tenth of an artifact."""

    number: int

    @property
    def name(self) -> str:
        return f"tenth_{self.number}"


@dataclass(frozen=True)
class FillTenth:
    path: Path
    factor: int

    def __call__(self, tenth: Tenth) -> int:
        obey(tenth.name)
        with self.path.open("r+b") as file:
            file.seek(1000 * tenth.number)
            file.write(bytes([self.factor * tenth.number]) * 500)
            once = os.environ.get("TEST_DIE_ONCE")
            if once and tenth.number == 3 and not Path(once).exists():
                Path(once).touch()
                os.kill(os.getpid(), signal.SIGKILL)  # half of the range is written
            file.write(bytes([tenth.number]) * 500)
        return tenth.number


@versioned("build_in_ranges", 1, in_ranges=True)
def build_in_ranges(folder: Path, *, factor: int = 1, ranges: RangeMap = IN_THIS_PROCESS) -> Built:
    """A file of ten ranges."""
    path = folder / "tenths.bin"
    path.touch()
    os.truncate(path, 10_000)
    return Built({"order": list(ranges(FillTenth(path, factor), [Tenth(i) for i in range(10)]))})


@versioned("build_nothing", 1)
def build_nothing(folder: Path) -> Built:
    return Built({})


@versioned("build_badly", 1)
def build_badly(folder: Path, *, how: str) -> Any:
    (folder / "half.txt").write_text("half")
    match how:
        case "raise":
            raise ValueError("after a file")
        case "none":
            return None
        case "ledger":
            (folder / "ledger.json").write_text("{}")
        case "link":
            (folder / "link").symlink_to("/etc/hostname")
        case "broken link":
            (folder / "link").symlink_to("nowhere")
        case "nan":
            return Built({"loss": float("nan")})
        case "measured nan":
            return Built({}, {"loss": float("nan")})
        case "int key":
            return Built({"histogram": {1: 2, 10: 3, 2: 1}})
    return Built({})


SCORE = pa.field("score", pa.int64(), nullable=False)


@versioned("score", 1)
def score(part: Part, *, rows: int = 7, lost: int = 0) -> Rows:
    """A score for each row, in batches of another size than the part has; ``lost`` rows have none."""
    obey(part.name)

    def own() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        numbers = part.table(["number"])["number"].to_pylist()[: part.rows - lost]
        for start in range(0, len(numbers), rows):
            yield pa.record_batch([[3 * number for number in numbers[start : start + rows]]], pa.schema([SCORE]))
        return {"rows": len(numbers)}

    return Rows.extending(part, [SCORE], own())


@versioned("score", 1)
def score_as_before(part: Part, *, rows: int = 7, lost: int = 0) -> Rows:
    """The same function as a version had it that copied all columns."""
    return score(part, rows=rows, lost=lost).copied()


@versioned("draw", 1)
def draw(part: Part, *, each: int = 3) -> Rows:
    """Every third row, drawn."""
    obey(part.name)
    chosen = np.arange(part.index % each, part.rows, each)

    def own() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        yield pa.record_batch([[True] * len(chosen)], pa.schema([("drawn", pa.bool_())]))
        return {}

    return Rows.extending(part, [pa.field("drawn", pa.bool_())], own(), chosen)


@versioned("draw", 1)
def draw_as_before(part: Part, *, each: int = 3) -> Rows:
    """The same function as a version had it that copied the rows."""
    return draw(part, each=each).copied()


@versioned("mark", 1)
def mark(part: Part) -> Rows:
    """A column for every row."""

    def own() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        yield pa.record_batch([["x"] * part.rows], pa.schema([("mark", pa.string())]))
        return {}

    return Rows.extending(part, [pa.field("mark", pa.string())], own())


@versioned("mark", 1)
def mark_as_before(part: Part) -> Rows:
    """The same, copied."""
    return mark(part).copied()


@versioned("build_arrays", 1)
def build_arrays(folder: Path, *, seed: int, rows: int) -> Built:
    """Files as streams and indexes have them: tokens, an array, and one that is small."""
    obey("build_arrays")
    numbers = np.random.default_rng(seed).integers(0, 1 << 16, rows, np.uint16)
    (folder / "tokens.bin").write_bytes(numbers.tobytes())
    np.save(folder / "lengths.npy", np.sort(numbers).astype("<i4"))
    (folder / "name.txt").write_text(f"seed {seed}\n")
    return Built(statistics={"rows": rows}, measured={"seconds": time.monotonic()})
