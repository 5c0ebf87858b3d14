"""Write the splits of an environment as the manifest of the 1T-token corpus is published: to try a replay of it.

    python examples/published_manifest.py data/spp /tmp/manifest

gives ``annotated/`` and ``unannotated/`` with a parquet file for each part (id, safety_score, is_bad, has_annotation),
and ``text_rescue/`` with the texts of documents whose source gave them no id, by their number in the split. As in the
published files, an id that was made of repository and path is none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from everytoken.shards import Store

KEPT = ["id", "safety_score", "is_bad", "has_annotation"]


def main(data: Path, folder: Path) -> None:
    """Write both splits and say what is in them."""
    for split in ("annotated", "unannotated"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        (folder / "text_rescue" / split).mkdir(parents=True, exist_ok=True)
        rows = rescued = 0
        parts = Store(data / "04_feature" / f"{split}_documents").load()
        for part in parts:
            table, name = part.table([*KEPT, "text"]), f"{part.name}.parquet"
            made = pc.fill_null(pc.starts_with(table["id"], "python/cpython/"), True)
            numbers = pa.array(range(rows, rows + len(table)), pa.int64())
            texts = pa.table({"global_row": numbers, "text": table["text"]}).filter(made)
            ids = pc.if_else(made, None, table["id"])
            if ids.null_count == len(ids):
                ids = pa.nulls(len(ids))  # as the published files have it
            pq.write_table(table.select(KEPT).set_column(0, "id", ids), folder / split / name)
            if len(texts):
                pq.write_table(texts, folder / "text_rescue" / split / name)
            rows, rescued = rows + len(table), rescued + len(texts)
        print(f"{folder / split}: {rows:,} rows in {len(parts)} files, {rescued:,} rescued")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/published_manifest.py DATA FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
