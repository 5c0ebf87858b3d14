"""A small job in a folder of its own: the pipelines of the project over its own catalog, run in this process.

As a program, ``python -m tests.provenance.small_job FOLDER DATA ENGINE`` releases what lies in FOLDER once more, into
FOLDER/DATA, in a process and with workers of its own.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from kedro.config import OmegaConfigLoader
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner

from everytoken import parameters as models
from everytoken.pipelines import annotation, canary, ingestion, packing, release, subsampling, tokenization
from everytoken.settings import CONFIG_LOADER_ARGS
from everytoken.shards import canonical_json, engines

ROOT = Path(__file__).resolve().parents[2]
_MODELS = {
    name: getattr(models, f"{name.capitalize()}Parameters")
    for name in (
        *("ingestion", "annotation", "subsampling", "tokenization", "canary", "packing", "reflection", "release"),
        "expect",
    )
}
LONG_TITLE = "On the many names that one and the same small harbour town had"
TOPICS = ("boats", "tides", "salt")
EXCLUDED_ROWS = {("articles", 7), ("notes", 5), ("open", 9)}
INLINE = {"kind": "inline"}

LICENCE = {"name": "MIT", "spdx": "MIT", "url": "https://spdx.org/licenses/MIT.html"}
_SOURCE = {
    "format": None,
    "records": None,
    "renderer": {"kind": "document", "text_column": "text", "id_columns": ["id"], "stratum_column": None},
    "rows_per_shard": 30,
    "quality": None,
    "min_keep_rate": None,
    "max_text_bytes": None,
}


def _sentence(source: str, number: int) -> str:
    words = hashlib.sha256(f"{source} {number}".encode()).hexdigest()
    return f"The {TOPICS[number % 3]} of day {number} — as «{words[:9]}» tells — were {words[9:30]} and {words[30:50]}."


def documents() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each source: ``articles`` whose ids are titles, ``notes`` with bad ids, ``open`` ones."""
    rows = {
        name: [
            {"id": f"{name}-{i}", "text": "\n".join(_sentence(name, 10 * i + k) for k in range(1 + i % 5))}
            for i in range(60)
        ]
        for name in ("articles", "notes", "open")
    }
    rows["articles"][3] = {"id": LONG_TITLE, "text": f"{LONG_TITLE}\n\n{_sentence('articles', 1)}"}
    rows["articles"][4] = {"id": LONG_TITLE, "text": "Another one of that name. " + _sentence("articles", 2)}
    rows["articles"][6]["id"] = "https://example.org/" + "not-a-part-of-the-text/" * 3
    for i in (5, 11, 17):
        rows["notes"][i]["id"] = None
    rows["notes"][21]["id"] = rows["notes"][40]["id"] = rows["notes"][41]["id"] = "shared"  # by three texts
    rows["notes"][22] = dict(rows["notes"][23])  # an id that comes twice, with one text
    rows["articles"][8]["id"] = "shared"
    return rows


class SmallJob:
    """The folder: ``upstream``, and data in ``data`` or where ``at`` says.

    Args:
        folder: where the upstream's files are, or will be.
        at: name of the data folder.
        engine: of the shard stores.
        changes: leaves of parameters, ``{"subsampling.seed": 43}``.
    """

    def __init__(
        self,
        folder: Path,
        at: str = "data",
        engine: Mapping[str, Any] = INLINE,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.data = folder, folder / at
        loader = OmegaConfigLoader(str(ROOT / "conf"), env="test", **CONFIG_LOADER_ARGS)
        loader["globals"] = {
            **loader["globals"],
            "data": str(self.data),
            "raw": str(folder / "raw"),
            "engine": dict(engine),
        }
        self.parameters = self._parameters(loader["parameters"], changes or {})
        self.catalog = DataCatalog.from_config(loader["catalog"])
        for name, model in _MODELS.items():
            self.catalog[f"params:{name}"] = MemoryDataset(model.model_validate(self.parameters[name]))

    @property
    def release(self) -> Path:
        return self.data / "08_reporting/release"

    def _parameters(self, configured: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        chosen = dict(configured)
        upstream = self.folder / "upstream"

        def files(pattern: str) -> dict[str, Any]:
            return {"kind": "path", "root": str(upstream), "pattern": pattern, "checksums": None}

        chosen["ingestion"] |= {
            "plan": {"seed": 42, "offset": 0, "n_shards": None, "expect_shards": 6},
            "dedup": {"exact": False, "near": None},
            "sources": {name: {**_SOURCE, "upstream": files(f"{name}.jsonl")} for name in documents()},
        }
        chosen["annotation"] |= {
            "scorer": {"kind": "published", "upstream": files("scores.parquet"), "max_missing_share": 0.5},
            "memory": 1 << 27,
            "fetched": "fetched",
        }
        excluded = upstream / "excluded.jsonl"
        chosen["subsampling"] |= {
            "target_tokens": None,
            "held_out_share": 0.1,
            "exclude": {"path": str(excluded), "sha256": _sha256(excluded)},
        }
        chosen["tokenization"]["tokenizer"] |= {"vocab_size": 400}
        chosen["tokenization"] |= {"engine": "tokenizers", "fetched": "fetched"}
        chosen["tokenization"]["certificate"] |= {"cases": 1, "documents": 1}
        chosen["canary"]["effects"] = {}
        for universe in chosen["canary"]["universes"].values():
            universe["path"] = str(ROOT / universe["path"])
        texts = {"articles": "none", "notes": "rescue", "open": "all"}
        chosen["release"] |= {
            "licences": {
                name: {**LICENCE, "attribution": f"By those who wrote {name}.", "text": texts[name]} for name in texts
            },
            "sources": {
                "articles": {"homepage": "https://articles.example/all"},
                **{name: {"public": False} for name in ("notes", "open")},
            },
        }
        for path, value in changes.items():
            place: Any = chosen
            *parents, leaf = path.split(".")
            for key in parents:
                place = place[key]
            if value is None:
                del place[leaf]
            else:
                place[leaf] = value
        return chosen

    def run(self, *packages: Any) -> None:
        """Run pipelines, one after the other, without what only reports."""
        for package in packages:
            pipeline = package.create_pipeline()
            if package is not release:
                pipeline -= pipeline.only_nodes_with_tags("report")
            SequentialRunner().run(pipeline, self.catalog)


def write_upstream(folder: Path) -> None:
    """Write the files of the sources, scores by address, and the list of excluded documents."""
    upstream = folder / "upstream"
    upstream.mkdir(parents=True)
    scores: list[tuple[str, int, int, int]] = []
    for name, rows in documents().items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (upstream / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        scores += [(name, 0, row, (row * 7) % 6 if row % 3 == 0 else 0) for row in range(len(rows))]
    columns: list[Sequence[Any]] = [*zip(*scores, strict=True)]
    table = pa.table(
        {
            "source": columns[0],
            "shard_index": pa.array(columns[1], pa.int32()),
            "row": pa.array(columns[2], pa.int64()),
            "safety_score": pa.array(columns[3], pa.int8()),
            "safety_probs": pa.array([[float(k == s) for k in range(6)] for s in columns[3]], pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, upstream / "scores.parquet")
    listed = [
        {"source": source, "shard_index": 0, "row": row, "reason": "asked for"} for source, row in sorted(EXCLUDED_ROWS)
    ]
    (upstream / "excluded.jsonl").write_text("".join(canonical_json(line) + "\n" for line in listed))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(folder: Path) -> SmallJob:
    """Make everything up to the release in ``folder``."""
    write_upstream(folder)
    job = SmallJob(folder)
    job.run(ingestion, annotation, subsampling, tokenization, canary, packing, release)
    return job


if __name__ == "__main__":
    engines.POOL_BYTES = 0  # workers for small artifacts, too
    SmallJob(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])).run(release)
