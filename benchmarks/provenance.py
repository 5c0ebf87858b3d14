"""How long it takes to say where a token came from, in a run of 10^9 windows, and what its indexes cost.

``python benchmarks/provenance.py [million windows] [folder] [documents]``: a compact stream with 81 % of the windows
(2,049 tokens, documents of log-normal length, 759 on average, 25,000 a part) and an annotated stream with the rest;
their indexes are made by the functions of the pipelines from lengths that are made up, and have their full size on
disk: 22 GB for 1,000 million windows. They are deleted at the end. A run of batches of 960 reads one and a half epochs.

- *trace*: a random sequence of a random step -> its window -> documents, each with part and row.
- *exposure*: a random document -> its windows -> every sample and step of the run that read them.
- *find*: a random id -> its documents, whose records are looked at; in an index of ``documents`` (5,000,000).

Every line is a process of its own: it makes an index, or asks once, after the files were dropped from the page cache
(``cold``), or a thousand times. ``start`` is the process with all its imports and the opening of the indexes. Peak
memory is what the kernel says of the process (VmHWM): interpreter, libraries and the pages of the index that it
touched. Making an index stands beside writing as many bytes of nothing, fsynced as the index is.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from everytoken.provenance.indexes import (
    MadeStream,
    index_compact_stream,
    index_documents,
    index_padded_stream,
    open_document_index,
    open_stream_index,
)
from everytoken.seeds import numpy_generator
from everytoken.shards import Rows, Shards, StoredPart, write_rows
from everytoken.tokens.order import DataParameters, SampleOrder

SEQ_LENGTH, SEED, BATCH_SIZE, BLOCK, ROWS = 2048, 42, 960, 26_202_563, 25_000  # of the published corpus: its block
COMPACT_SHARE, EPOCHS, QUESTIONS = 0.81, 1.5, 1000
_BASE = 1 << 20


_UNREAD = ("tokens", "blocks", "tokenizer", "padding_tokens", "remainder_tokens")  # statistics that no index reads


def lengths() -> np.ndarray:
    """Content tokens of documents, of which every part has a stretch, int32 (n,)."""
    return np.minimum(numpy_generator(SEED).lognormal(6.31, 1.0, _BASE), SEQ_LENGTH - 1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class LengthsPart:
    """A part of documents of which only the lengths are made up."""

    base: np.ndarray
    index: int
    rows: int = ROWS

    @property
    def begin(self) -> int:
        """Where its stretch of the lengths begins."""
        return self.index * 7_919 % (_BASE - ROWS)

    @property
    def lengths(self) -> np.ndarray:
        """Content tokens of each document."""
        return self.base[self.begin : self.begin + self.rows]

    def batches(self, columns: Sequence[str], first_row: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the lengths."""
        yield pa.RecordBatch.from_arrays([pa.array(self.lengths[first_row:])], ["token_length"])


def parts_of(tokens: int, base: np.ndarray) -> tuple[Shards, int]:
    """Return parts with at least so many tokens, EOS included, and how many they have."""
    sums = np.concatenate([[0], np.cumsum(base + 1, dtype=np.int64)])
    parts: list[Any] = []
    total = 0
    while total < tokens:
        part = LengthsPart(base, len(parts))
        total += int(sums[part.begin + ROWS] - sums[part.begin])
        parts.append(part)
    return Shards(tuple(parts)), total


def make_stream(folder: Path, kind: str, windows: int) -> dict[str, Any]:
    """Make the index of one of the streams of a run of so many windows."""
    base, window = lengths(), SEQ_LENGTH + 1
    if kind == "compact":
        documents, total = parts_of(int(windows * COMPACT_SHARE) * window, base)
        made = {"windows": total // window, "remainder_tokens": total % window, "shuffle_block": BLOCK}
    else:
        parts: list[Any] = [LengthsPart(base, i) for i in range(int(windows * (1 - COMPACT_SHARE)) // ROWS + 1)]
        documents = Shards(tuple(parts))
        made = {"windows": documents.rows, "tokens": sum(int(part.lengths.sum()) for part in parts)}
    made["documents"] = documents.rows
    (folder / kind).mkdir()
    begin = time.perf_counter()
    {"compact": index_compact_stream, "annotated": index_padded_stream}[kind](
        folder / kind,
        lengths=documents,
        split=kind,
        stream=MadeStream("0" * 64, {**dict.fromkeys(_UNREAD), **made}),
        seq_length=SEQ_LENGTH,
        seed=SEED,
    )
    return {**made, "seconds": time.perf_counter() - begin}


def make_documents(folder: Path, count: int) -> dict[str, Any]:
    """Store documents with ids and addresses, and make their index."""
    parts = []
    for index in range(count // ROWS):
        path = folder / f"part_{index:05d}.parquet"
        ids = [f"{index * ROWS + row:032x}" for row in range(ROWS)]
        columns = [pa.array(ids, pa.large_string()), pa.array(["string"] * ROWS), pa.array(["web"] * ROWS)]
        columns += [pa.array([index] * ROWS, pa.int32()), pa.array(range(ROWS), pa.int64())]
        table = pa.table(dict(zip(("id", "id_type", "source", "shard_index", "row"), columns, strict=True)))

        def batches(table: pa.Table = table) -> Any:
            yield from table.to_batches(8192)
            return {}

        part = write_rows(Rows(table.schema, batches()), path).part
        parts.append(StoredPart(path.stem, index, path, part.rows, part.content_digest, part.sha256))
    (folder / "documents").mkdir()
    shards = Shards(tuple(parts))
    (folder / "documents.pickle").write_bytes(pickle.dumps(shards))
    begin = time.perf_counter()
    index_documents(folder / "documents", documents={"annotated": shards}, memory=256 << 20)
    return {"documents": shards.rows, "seconds": time.perf_counter() - begin}


def ask(folder: Path, what: str, questions: int, count: int, begun: float) -> dict[str, float]:
    """Answer random questions in this process."""
    if what == "find":
        shards = pickle.loads((folder / "documents.pickle").read_bytes())
        found = open_document_index(folder / "documents", {"annotated": shards})
    else:
        indexes = {name: open_stream_index(folder / name) for name in ("compact", "annotated")}
        sizes = [index.windows for index in indexes.values()]
        data = DataParameters(
            schedule="integer",
            weights=None,
            replay=None,
            later_epochs="permuted",
            seed=SEED,
            check="sizes",
            document_mask=False,
        )
        order, samples = SampleOrder(tuple(indexes), sizes, data, BATCH_SIZE), int(EPOCHS * sum(sizes))
    generator, seconds, answers = numpy_generator(SEED, questions), [], 0
    start = time.time() - begun
    for _ in range(questions):
        begin = time.perf_counter()
        if what == "find":
            answers += len(found.find_id(f"{int(generator.integers(count // ROWS * ROWS)):032x}"))
        elif what == "trace":
            step, sequence = int(generator.integers(samples // BATCH_SIZE)), int(generator.integers(BATCH_SIZE))
            streams, windows = order.locate(order.samples_of_step(step)[sequence : sequence + 1])
            index = indexes[order.names[int(streams[0])]]
            answers += len([index.numbers.row(span.document) for span in index.spans(int(windows[0]))])
        else:
            name = "compact" if generator.random() < COMPACT_SHARE else "annotated"
            for window, _ in indexes[name].windows_of(int(generator.integers(indexes[name].documents))):
                epoch = 0
                while (sample := order.sample(name, order.ordinal(name, window, epoch))) is not None:
                    if sample >= samples:
                        break
                    answers, epoch = answers + 1, epoch + 1
        seconds.append(time.perf_counter() - begin)
    return {
        "start": start,
        "median": float(np.median(seconds)),
        "longest": max(seconds),
        "answers": answers / questions,
    }


def plain_write(folder: Path, size: int) -> float:
    """Return the seconds that writing so many bytes takes."""
    block, begin = bytes(16 << 20), time.perf_counter()
    with (folder / "plain").open("wb") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    (folder / "plain").unlink()
    return time.perf_counter() - begin


def forget(folder: Path) -> None:
    """Drop the files from the page cache."""
    for path in folder.rglob("*.*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measured(*arguments: Any) -> dict[str, Any]:
    """Run a part of this benchmark in a process of its own; return what it says, and its peak memory in MB."""
    command = [sys.executable, __file__, *map(str, arguments)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def report(result: dict[str, Any]) -> None:
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({**result, "peak": int(peak.split()[1]) / 1024}))


def main() -> None:
    if sys.argv[1:2] == ["ask"]:
        report(ask(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])))
        return
    if sys.argv[1:2] == ["make"]:
        folder, kind = Path(sys.argv[2]), sys.argv[3]
        count = int(sys.argv[4])
        report(make_documents(folder, count) if kind == "documents" else make_stream(folder, kind, count))
        return
    windows = int(float(sys.argv[1] if len(sys.argv) > 1 else 1000) * 1e6)
    documents = int(sys.argv[3]) if len(sys.argv) > 3 else 5_000_000
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as name:
        folder = Path(name)
        needed, free = windows * 24 + documents * 150, shutil.disk_usage(folder).free
        if free < needed:
            sys.exit(f"{folder} has {free / 1e9:.0f} GB free, {needed / 1e9:.0f} GB are needed: give fewer windows")
        print(
            f"{'index of':<11}{'windows':>13}{'documents':>15}{'GB':>7}{'B/document':>12}{'B/window':>10}{'seconds':>9}"
            f"{'million/s':>11}{'writes':>8}{'peak MB':>9}"
        )
        for kind in ("compact", "annotated", "documents"):
            of = measured("make", folder, kind, documents if kind == "documents" else windows)
            sizes = {path.stem: path.stat().st_size for path in (folder / kind).iterdir()}
            of_windows, total = sum(sizes[file] for file in _WINDOW_MAPS[kind]), sum(sizes.values())
            written = plain_write(folder, min(total, 1 << 30)) * max(1, total / (1 << 30))
            print(
                f"{kind:<11}{of.get('windows', 0):>13,}{of['documents']:>15,}{total / 1e9:>7.2f}"
                f"{(total - of_windows) / of['documents']:>12.2f}{of_windows / max(1, of.get('windows', 0)):>10.2f}"
                f"{of['seconds']:>9.1f}{of['documents'] / of['seconds'] / 1e6:>11.2f}{of['seconds'] / written:>8.1f}"
                f"{of['peak']:>9.0f}"
            )
        print(
            f"{'question':<18}{'answers':>9}{'start s':>9}{'median ms':>11}{'longest ms':>12}"
            f"{'with start s':>14}{'peak MB':>9}"
        )
        for what in ("trace", "exposure", "find"):
            for questions in (1, QUESTIONS):
                if questions == 1:
                    forget(folder)
                result = measured("ask", folder, what, questions, documents, time.time())
                label = f"{what}, {'cold' if questions == 1 else f'{questions} times'}"
                print(
                    f"{label:<18}{result['answers']:>9.1f}{result['start']:>9.2f}{1e3 * result['median']:>11.3f}"
                    f"{1e3 * result['longest']:>12.2f}{result['start'] + result['median']:>14.2f}{result['peak']:>9.0f}"
                )


_WINDOW_MAPS: dict[str, tuple[str, ...]] = {"compact": ("cuts", "windows"), "annotated": ("order",), "documents": ()}

if __name__ == "__main__":
    main()
