"""A build as `everytoken diff` sees it: digests of its stages, parameters, documents; of a data folder or a release.

A data folder is that of an environment: ``<layer>/<dataset>/ledger.json``. What its ledgers record of parameters is
named as the parameters of the pipelines are, so that it can be compared with the recipe of a release. A release has no
text and no ids of tokens, but their hashes and numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from everytoken.address import Address
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    CHECKSUMS_FILE,
    SPLITS,
    TOKENIZER_PATH,
    VERIFICATION_FOLDER,
    open_release,
    window_checksums,
)
from everytoken.provenance.verification import is_meant_as_release
from everytoken.shards import (
    LEDGER_FILE,
    Shards,
    ShardsError,
    Store,
    declared_name,
    is_store,
    read_any_ledger,
    value_digest,
)
from everytoken.tokens.streams import dataset_of_stream, kind_of_dataset, window_kinds

SHARD_PLAN = "shard_plan"
_DECIDES_NOTHING = frozenset({"engine_certificate"})  # which engines were compared; another machine has others
_REPLAYED = "restore_part"  # the function that makes a split of a replay

# Of (dataset, parameter of its function): the name in the parameters of the pipelines, or None for what is derived.
_NAMES: dict[tuple[str, str], str | None] = {
    ("upstream_documents", "min_chars"): "ingestion.min_chars",
    ("upstream_documents", "max_row_bytes"): "ingestion.reading.max_row_bytes",
    ("document_sketches", "near"): "ingestion.dedup.near",
    ("duplicates", "rules"): "ingestion.dedup",
    ("selection", "mixture"): "ingestion.mixture",
    ("scored_documents", "scorer"): "annotation.scorer",
    ("classifications", "near"): "annotation.near",
    ("exclusions", "sha256"): "subsampling.exclude.sha256",
    **{(f"{split}_documents", "parameters"): "subsampling" for split in SPLITS},
    **{(f"{split}_documents", name): None for split in SPLITS for name in ("split", "totals")},
    ("token_estimates", "parameters"): "subsampling",
    **{
        ("tokenizer", name): f"tokenization.tokenizer.{name}"
        for name in ("vocab_size", "min_frequency", "special_tokens", "sha256", "repository", "revision", "member")
    },
    ("tokenizer", "eos_token"): "tokenization.eos_token",
    **{
        (f"{split}_tokens", name): f"tokenization.{name}"
        for split in SPLITS
        for name in ("eos_token", "max_lossy_share", "special_tokens_in_text")
    },
    **{(f"{split}_tokens", name): None for split in SPLITS for name in ("max_tokens", "columns", "proof")},
    **{(f"{split}_manifest", "withheld"): None for split in SPLITS},
    **{("release", name): None for name in ("recipe", "upstream", "withheld")},
    **{
        ("checkpoint", name): f"training.{group}"
        for name, group in (("training", "optimisation"), ("model", "model"), ("data", "data"))
    },
}


# The same of a stream that the pipeline tokenization makes, by parameter alone.
_NAMES_OF_STREAMS: dict[str, str | None] = {
    **{name: f"tokenization.{name}" for name in ("seed", "seq_length", "shuffle_block")},
    "tombstones": None,
}


@dataclass(frozen=True)
class DescribedBuild:
    """What is compared of a build.

    Attributes:
        kind: ``data folder`` or ``release``.
        stages: digest of the content of each dataset, by name.
        parameters: flattened, ``subsampling.seed``; by the stage that records them, all under ``""`` in a release.
        functions: version of each function that made something.
        documents: reads the documents of a dataset.
        windows: reads CRC-32 of the windows of a stream.
        files: SHA-256 of the files of an artifact, by dataset and name.
        taken_down: yields address and reason of the documents that its exclusions name; of a release its manifests
            say it instead, but of held-out documents, which have no row there any more.
        is_replayed: whether its splits were made from a release, which does not say all that scoring found.
    """

    path: Path
    kind: str
    stages: Mapping[str, str]
    parameters: Mapping[str, Mapping[str, Any]]
    functions: Mapping[str, int]
    documents: Mapping[str, Callable[[], Shards]] = field(repr=False)
    windows: Mapping[str, Callable[[], np.ndarray]] = field(repr=False)
    files: Mapping[str, Mapping[str, str]] = field(repr=False)
    taken_down: Callable[[], Iterator[tuple[Address, str]]] = field(repr=False)
    is_replayed: bool = False


def describe_build(path: Path) -> DescribedBuild:
    """Read what a data folder or a release says of itself: ledgers and recipe, no data.

    Raises:
        ProvenanceError: it is neither, or one of its ledgers cannot be read.
    """
    return _of_release(path) if is_meant_as_release(path) else _of_data(path)


def _of_release(path: Path) -> DescribedBuild:
    release = open_release(path)
    stages = {name: dataset["root_digest"] for name, dataset in release.recipe["datasets"].items()}
    stages = {name: digest for name, digest in stages.items() if name not in _DECIDES_NOTHING}
    return DescribedBuild(
        path,
        "release",
        {SHARD_PLAN: value_digest(release.upstream["plan"]), **stages},
        {"": dict(_flat(release.recipe["parameters"], ""))},
        {declared_name(name): version for name, version in release.recipe["functions"].items()},
        {f"{split}_documents": partial(_manifest, path, split) for split in SPLITS}
        | {f"{split}_tokens": partial(_manifest, path, split) for split in SPLITS if split != "held_out"},
        {
            dataset_of_stream(file.parent.name): partial(np.load, file)
            for file in (path / VERIFICATION_FOLDER).glob(f"*/{CHECKSUMS_FILE}")
        },
        {"tokenizer": {Path(TOKENIZER_PATH).name: release.recipe["tokenizer"]["sha256"]}},
        lambda: iter(()),
    )


def _manifest(path: Path, split: str) -> Shards:
    return open_release(path).manifest(split)


def _of_data(path: Path) -> DescribedBuild:
    ledgers = {file.parent.name: _ledger(file) for file in sorted(path.glob(f"*/*/{LEDGER_FILE}"))}
    ledgers = {name: one for name, one in ledgers.items() if name not in _DECIDES_NOTHING}
    if not ledgers:
        raise ProvenanceError(
            f"{path} holds no build: no <layer>/<dataset>/ledger.json, as the data folder of an environment has, and "
            "it is no release. Give the folder that `data` names in an environment's globals.yml, or that of a release."
        )
    stages = {name: one["root_digest"] for name, one in ledgers.items()}
    parameters = {name: dict(_recorded(name, one["recipe"]["parameters"])) for name, one in ledgers.items()}
    if (plan_file := path / "01_raw" / f"{SHARD_PLAN}.json").exists():
        plan = json.loads(plan_file.read_bytes())
        stages = {SHARD_PLAN: value_digest(plan), **stages}
        parameters[SHARD_PLAN] = dict(_flat(plan["parameters"], "ingestion.plan."))
    return DescribedBuild(
        path,
        "data folder",
        stages,
        parameters,
        {ledger["recipe"]["function"]: ledger["recipe"]["version"] for ledger in ledgers.values()},
        {
            file.parent.name: Store(file.parent).load
            for file in path.glob(f"*/*/{LEDGER_FILE}")
            if file.parent.name in ledgers and is_store(file.parent)
        },
        {
            kind.dataset: partial(_checksums, file, ledgers[kind.dataset])
            for kind in window_kinds()
            for file in path.glob(f"*/{kind.dataset}/*.bin")
            if kind.dataset in ledgers
        },
        {
            name: {file: entry["sha256"] for file, entry in ledger["files"].items()}
            for name, ledger in ledgers.items()
            if isinstance(ledger.get("files"), dict)
        },
        partial(_taken_down, path),
        any(
            ledgers[name]["recipe"]["function"] == _REPLAYED
            for name in (f"{split}_documents" for split in SPLITS)
            if name in ledgers
        ),
    )


def _taken_down(path: Path) -> Iterator[tuple[Address, str]]:
    """Yield what the exclusions of a data folder name, part by part."""
    for folder in path.glob("*/exclusions"):
        for part in Store(folder).load():
            for entry in part.value["addresses"]:
                yield Address(*entry[:3]), entry[3]


def _checksums(path: Path, ledger: Mapping[str, Any]) -> np.ndarray:
    """Return the CRC-32 of the windows of a stream, uint32 (windows,)."""
    windows = ledger["statistics"]["windows"]
    size = path.stat().st_size // windows if windows else 1
    return np.concatenate([np.empty(0, np.uint32), *window_checksums(path, size)])


def _ledger(path: Path) -> dict[str, Any]:
    try:
        return read_any_ledger(path.parent)
    except (ShardsError, OSError) as error:
        raise ProvenanceError(
            f"{path} is no ledger ({error}); run the pipeline that makes {path.parent.name} again"
        ) from error


def _recorded(dataset: str, parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a ledger records, by the names that parameters of pipelines have."""
    kind = kind_of_dataset(dataset)
    of_stream = {} if kind is None or kind.pipeline != "tokenization" else _NAMES_OF_STREAMS
    for name, value in parameters.items():
        known = of_stream[name] if name in of_stream else _NAMES.get((dataset, name), f"{dataset}.{name}")
        if dataset == "selection" and name == "max_text_bytes":
            for source, most in value.items():
                yield f"ingestion.sources.{source}.max_text_bytes", most
        elif dataset == "unannotated_tokens" and name == "max_tokens":
            yield "tokenization.long_documents", "split" if value is None else "cut"
        elif known is not None:
            yield from _flat({known: value}, "")


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested parameters; a stored dataset among them is no parameter."""
    for key, item in value.items():
        if isinstance(item, Mapping) and item and set(item) != {"digest"}:
            yield from _flat(item, f"{prefix}{key}.")
        elif not (isinstance(item, Mapping) and item) and not _holds_data(item):
            yield f"{prefix}{key}", item


def _holds_data(value: Any) -> bool:
    if isinstance(value, Mapping):
        return set(value) == {"digest"} or any(map(_holds_data, value.values()))
    return isinstance(value, list) and any(map(_holds_data, value))
