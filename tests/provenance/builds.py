"""Small whole builds, made by the nodes of the pipelines one after the other, in a second and without Kedro's runner.

Documents are pieces of the standard library's sources, in two files of JSON lines; their scores are drawn from their
text, so that every split has documents.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from kedro.config import OmegaConfigLoader
from kedro.pipeline import Pipeline

from everytoken import parameters as models
from everytoken.corpus.documents import SCORED_DOCUMENTS
from everytoken.corpus.ingestion.source import find_files
from everytoken.corpus.scoring.classifications import collect_classifications
from everytoken.pipelines.ingestion.pipeline import create_pipeline as ingestion
from everytoken.pipelines.release import nodes as release_nodes
from everytoken.pipelines.subsampling.pipeline import create_pipeline as subsampling
from everytoken.pipelines.tokenization.pipeline import create_pipeline as tokenization
from everytoken.provenance.releases.recipe_file import recipe_of
from everytoken.provenance.releases.release import Release, open_release
from everytoken.settings import CONFIG_LOADER_ARGS
from everytoken.shards import Artifact, ArtifactStore, Part, Rows, Shards, Store, make_engine, plan_artifact, versioned
from everytoken.tokens.streams import released_kinds

ROOT = Path(__file__).resolve().parents[2]
TEXTS = 160
_MODULES = ("argparse", "ast", "textwrap", "inspect", "json.decoder", "functools")


def write_texts(folder: Path, changed: Mapping[int, str] | None = None) -> None:
    """Write two files of documents; ``changed`` gives other texts to some of them."""
    folder.mkdir(parents=True)
    texts = dict(enumerate(_texts())) | dict(changed or {})
    for file in range(2):
        own = [i for i in texts if i % 2 == file]
        rows = [{"id": None if i % 7 == 3 else f"piece-{i}", "text": texts[i], "topic": f"t{i % 3}"} for i in own]
        (folder / f"texts_{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@functools.cache
def _texts() -> list[str]:
    sources = "\n".join(inspect.getsource(__import__(name, fromlist=["_"])) for name in _MODULES)
    lines = [line for line in sources.splitlines() if len(line) > 40]
    sizes = [1 + (i * 7) % 11 for i in range(TEXTS)]
    pieces, at = [], 0
    for size in sizes:
        pieces.append("\n".join(lines[at : at + size]))
        at += size
    return pieces


@versioned("score_by_length", 1)
def score_by_length(part: Part) -> Rows:
    """Give each document a score from 0 to 5 by its number of characters."""

    def rows() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        for batch in part.batches():
            scores = [n % 6 if n % 5 == 0 else 0 for n in batch.column("characters").to_pylist()]
            probs = [[float(score == one) for one in range(6)] for score in scores]
            columns = [*batch.columns, pa.array(scores, pa.int8()), pa.array(probs, pa.list_(pa.float32()))]
            yield pa.RecordBatch.from_arrays(columns, schema=SCORED_DOCUMENTS)
        return {}

    return Rows(SCORED_DOCUMENTS, rows())


@functools.cache
def _configured() -> Any:
    return OmegaConfigLoader(str(ROOT / "conf"), env="test", **CONFIG_LOADER_ARGS)["parameters"]


def parameters_of(texts: Path, **seeds: Any) -> dict[str, Any]:
    """Return the models of the parameters of the environment ``test``, for documents in ``texts``.

    Args:
        texts: folder of the files of documents.
        seeds: other values, as ``subsampling__seed=43``.
    """
    chosen = {name: dict(_configured()[name]) for name in ("ingestion", "subsampling", "tokenization")}
    base = next(source for source in chosen["ingestion"]["sources"].values() if source is not None)
    chosen["ingestion"]["sources"] = {
        "pieces": {
            **base,
            "upstream": {"kind": "path", "root": str(texts), "pattern": "*.jsonl", "checksums": None},
            "format": None,
            "records": None,
            "renderer": {
                "kind": "document",
                "id_columns": ["id"],
                "text_column": "text",
                "stratum_column": "topic",
            },
            "rows_per_shard": 40,
            "quality": None,
            "min_keep_rate": None,
            "max_text_bytes": None,
        }
    }
    chosen["ingestion"]["plan"] = {"seed": 42, "offset": 0, "n_shards": 3, "expect_shards": 4}
    chosen["subsampling"]["target_tokens"] = 7_000
    chosen["tokenization"] |= {"engine": "tokenizers", "shuffle_block": 50}
    chosen["tokenization"]["certificate"] = {**chosen["tokenization"]["certificate"], "cases": 1, "documents": 1}
    chosen["tokenization"]["tokenizer"] = {**chosen["tokenization"]["tokenizer"], "vocab_size": 320}
    for name, value in seeds.items():
        *path, leaf = name.split("__")
        place = chosen
        for key in path:
            place = place[key]
        place[leaf] = value
    return {
        "ingestion": models.IngestionParameters.model_validate(chosen["ingestion"]),
        "subsampling": models.SubsamplingParameters.model_validate(chosen["subsampling"]),
        "tokenization": models.TokenizationParameters.model_validate(chosen["tokenization"]),
        "expect": models.ExpectParameters(),
    }


class Build:
    """A data folder, and what its stores loaded, by dataset."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        self.folder, self.held = folder, {f"params:{name}": one for name, one in parameters.items()}
        self.held["token_counts_when_made"] = self.held["languages_when_made"] = None  # as of a job without them

    def __getitem__(self, name: str) -> Any:
        return self.held[name]

    def save(self, name: str, value: Any, layer: str) -> None:
        """Keep what a node returned: stored where it is planned."""
        if isinstance(value, Shards) and value.recipe is not None:
            store = Store(self.folder / layer / name)
            store.save(value, make_engine("inline"))
            value = store.load()
        elif isinstance(value, Artifact) and value.folder is None:
            value = ArtifactStore(self.folder / layer / name).save(value)
        self.held[name] = value

    def run(self, pipeline: Pipeline, layer: str) -> None:
        """Run the nodes of a pipeline but those that report."""
        for node in (pipeline - pipeline.only_nodes_with_tags("report")).nodes:
            made = node.func(*(self.held[name] for name in node.inputs))
            if node.outputs == ["upstream_files"]:
                made = {name: find_files(name, upstream, self.folder) for name, upstream in made.items()}
            for name, value in zip(node.outputs, made if len(node.outputs) > 1 else [made], strict=True):
                self.save(name, value, layer)


def build(folder: Path, texts: Path, **seeds: Any) -> Build:
    """Make everything up to the streams in ``folder``."""
    made = Build(folder, parameters_of(texts, **seeds))
    made.run(ingestion(), "02_intermediate")
    (folder / "01_raw").mkdir()
    (folder / "01_raw/shard_plan.json").write_text(json.dumps(made["shard_plan"]))
    made.save("scored_documents", made["documents"].map(score_by_length), "03_primary")
    scores = plan_artifact(
        collect_classifications,
        documents=made["scored_documents"],
        near=tuple(_configured()["annotation"]["near"]),
        memory=1 << 26,
    )
    made.save("classifications", scores, "03_primary")
    made.run(subsampling(), "04_feature")
    made.run(tokenization(), "05_model_input")
    return made


_LICENCE = {"name": "PSF", "spdx": "PSF-2.0", "url": "https://docs.python.org/3/license.html", "attribution": "Python"}


def release_of(made: Build) -> Release:
    """Write the release of a build."""
    parameters = models.ReleaseParameters.model_validate(
        {
            "pretty_name": "Pieces",
            "languages": ["en"],
            "homepage": None,
            "memory": 1 << 26,
            "licences": {"pieces": {**_LICENCE, "text": "rescue"}},
            "sources": {"pieces": {"homepage": "https://docs.python.org/3/"}},
        }
    )
    withheld = release_nodes.list_withheld_ids(made["scored_documents"], made["exclusions"])
    made.save("withheld_ids", withheld, "08_reporting")
    for split in ("annotated", "unannotated"):
        inputs = [made[f"{split}_documents"], made[f"{split}_tokens"], made["exclusions"], made["withheld_ids"]]
        made.save(f"{split}_manifest", getattr(release_nodes, f"list_{split}")(*inputs), "08_reporting")
    listed = release_nodes.list_held_out(made["held_out_documents"], made["withheld_ids"])
    made.save("held_out_manifest", listed, "08_reporting")
    stages = {name: one for name, one in made.held.items() if isinstance(one, Shards | Artifact)}
    plain = {
        name.removeprefix("params:"): one.model_dump(mode="json")
        for name, one in made.held.items()
        if name.startswith("params:") and name != "params:expect"
    }
    rows = {name: one for name, one in stages.items() if isinstance(one, Artifact) or one.ledger is not None}
    plain["annotation"] = _configured()["annotation"]  # the card names a scorer
    recipe = recipe_of(plain, rows, made["tokenizer"])
    released = release_nodes.assemble_release(
        {"recipe": recipe, "left_out": {}},
        made["shard_plan"],
        *(made[f"{split}_manifest"] for split in ("annotated", "unannotated", "held_out")),
        *(made[f"{split}_documents"] for split in ("annotated", "unannotated", "held_out")),
        made["upstream_documents"],
        made["withheld_ids"],
        made["classifications"],
        Shards.from_values([], []),  # no reflections
        made["tokenizer"],
        made["params:ingestion"],
        parameters,
        *(made.held.get(kind.dataset) for kind in released_kinds()),
    )
    made.save("release", released, "08_reporting")
    return open_release(made.folder / "08_reporting/release")
