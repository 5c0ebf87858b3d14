"""Whether a release agrees with itself, as far as its small files say: plan, rows, windows, digests, tokenizer."""

from __future__ import annotations

from itertools import groupby, zip_longest

import numpy as np

from everytoken.address import SHARD_INDEX, file_of
from everytoken.checks import require_equal
from everytoken.corpus.ingestion import PlanParameters, shard_order
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases import (
    BOUNDARIES_FILE,
    CHECKSUMS_FILE,
    MANIFEST_FOLDER,
    RECIPE_FILE,
    SPLITS,
    STREAMS_FILE,
    SUMS_FILE,
    TOKENIZER_PATH,
    UPSTREAM_FILE,
    VERIFICATION_FOLDER,
)
from everytoken.provenance.verification.checked_release import CheckedRelease
from everytoken.provenance.verification.documents import kind_in_manifests
from everytoken.shards import artifact_root_digest, canonical_json
from everytoken.tokens.checks import open_array
from everytoken.tokens.streams import HEADER_BYTES, STREAM_KINDS, dataset_of_stream, stored_dtype
from everytoken.tokens.tokenizer import open_tokenizer, token_dtype


def check_recipe(checked: CheckedRelease) -> str:
    """``recipe.json`` is canonical JSON, and names the stages with their digests."""
    release, path = checked.release, checked.folder / RECIPE_FILE
    if path.read_text(encoding="utf-8").rstrip("\n") != canonical_json(release.recipe):
        raise ProvenanceError(f"{path} is not the canonical JSON of what it says")
    versions = release.recipe["versions"]
    made_with = ", ".join(f"{name} {versions[name]}" for name in ("everytoken", "python") if name in versions)
    return f"{len(release.recipe['datasets']):,} datasets with their digests, made with {made_with}"


def check_plan(checked: CheckedRelease) -> str:
    """The order of the shards, drawn again from the recipe's seed, is that of the plan."""
    release, path, plan = checked.release, checked.folder / UPSTREAM_FILE, checked.release.upstream["plan"]
    parameters = PlanParameters.model_validate(release.parameters("ingestion")["plan"])
    require_equal(f"{path}: parameters of the plan", plan["parameters"], parameters.model_dump(mode="json"))
    order = shard_order(plan["n_total"], parameters)
    require_equal(f"{path}: shards described", len(plan["shards"]), len(plan["order"]))
    planned = [number for number, _ in groupby(plan["order"])]  # files that are read together have one number
    require_equal(f"{path}: shards in the order of the plan", len(planned), len(order))
    for position, (found, expected) in enumerate(zip(planned, order, strict=True)):
        require_equal(f"{path}: shard at position {position:,} of the plan", found, expected)
    files = {
        (name, file[SHARD_INDEX]): (file["path"], file["digest"])
        for name, source in release.upstream["sources"].items()
        for file in source["files"]
    }
    for position, shard in enumerate(plan["shards"]):
        listed = files.get(file_of(shard))
        require_equal(f"{path}: file of position {position:,} of the plan", listed, (shard["path"], shard["digest"]))
    sources = release.parameters("ingestion")["sources"]
    for name, source in release.upstream["sources"].items():
        pinned = (sources.get(name) or {}).get("upstream")
        require_equal(f"{path}: upstream of {name}, by recipe.json and as it is there", source["upstream"], pinned)
    used = {file_of(shard) for shard in plan["shards"]}
    if unused := sorted(set(files) - used):
        raise ProvenanceError(f"{path}: no shard of the plan is of file {unused[0]}")
    return (
        f"{plan['n_total']:,} shards, {len(order):,} in the order of seed {parameters.seed}, the first {order[:5]}, "
        f"of {len(files):,} files"
    )


def check_rows(checked: CheckedRelease) -> str:
    """Rows of the boundaries, of the recipe, and of the files, by split."""
    release, said, path = checked.release, [], checked.folder / BOUNDARIES_FILE
    for split in SPLITS:
        boundary, row, folder = release.boundaries[split], 0, f"{MANIFEST_FOLDER}/{split}"
        parts = [f"{folder}/{part['name']}.parquet" for part in boundary["parts"]]
        listed = sorted(name for name in release.sha256sums if name.startswith(f"{folder}/"))
        for number, (found, expected) in enumerate(zip_longest(parts, listed)):
            require_equal(f"{path}: part {number:,} of {split}, as {SUMS_FILE} lists them", found, expected)
        for part in boundary["parts"]:
            require_equal(f"{path}: first row of {split} {part['name']}", part["first_row"], row)
            row += part["rows"]
        require_equal(f"{path}: rows of {split}", boundary["rows"], row)
        named = release.recipe["datasets"].get(f"{split}_documents", {})
        require_equal(f"{checked.folder / RECIPE_FILE}: rows of {split}_documents", named.get("rows"), row)
        said.append(f"{row:,} {split}")
    return f"{', '.join(said)}, in {sum(len(release.boundaries[split]['parts']) for split in SPLITS):,} parts"


def check_windows(checked: CheckedRelease) -> str:
    """Windows by the index, lengths, checksums and statistics; documents by statistics and boundaries."""
    release, said, raw = checked.release, [], ""
    window = release.parameters("tokenization")["seq_length"] + 1
    for name, stream in release.streams.items():
        folder, statistics = release.path / VERIFICATION_FOLDER / name, stream["statistics"]
        if name in STREAM_KINDS and STREAM_KINDS[name].layout == "flat":
            raw += f"; {len(stream['files']) - 1:,} {name.replace('_', ' ')}"
            continue
        windows, kind = statistics["windows"], kind_in_manifests(name)
        if (index := folder / f"{name}.idx").exists() or kind is not None:
            header = index.open("rb").read(HEADER_BYTES)
            require_equal(f"{index}: windows", int.from_bytes(header[18:26], "little"), windows)
            require_equal(f"{index}: bytes", index.stat().st_size, HEADER_BYTES + 20 * windows + 8)
        open_array(folder / CHECKSUMS_FILE, windows, np.uint32)
        if kind is not None:
            rows = release.boundaries[kind.split]["rows"]
            require_equal(f"statistics of {name}: documents", statistics["documents"], rows)
            if kind.layout == "padded":  # so its sidecar has a row for each
                require_equal(f"windows of {name}, of one document each", windows, rows)
            width = stored_dtype(token_dtype(statistics["tokenizer"]["vocab_size"])).itemsize
            require_equal(f"bytes of {name}.bin", stream["files"][f"{name}.bin"]["bytes"], windows * window * width)
        said.append(f"{name} {windows:,}")
    return (", ".join(said) + " windows" if said else "no streams") + raw


def check_stream_digests(checked: CheckedRelease) -> str:
    """What is said of each stream sums up to its root digest, which the recipe names too."""
    release = checked.release
    for name, stream in release.streams.items():
        summed = artifact_root_digest(stream["files"], stream["statistics"])
        require_equal(f"{STREAMS_FILE}: root digest of {name}", stream["root_digest"], summed)
        named = release.recipe["datasets"].get(dataset_of_stream(name), {}).get("root_digest")
        require_equal(f"{RECIPE_FILE}: root digest of {dataset_of_stream(name)}", named, summed)
        for file in sorted((release.path / VERIFICATION_FOLDER / name).iterdir()):
            listed = stream["files"].get(file.name)
            if listed is not None:
                said = release.sha256sums.get(file.relative_to(release.path).as_posix())
                require_equal(f"{SUMS_FILE}: {file}", said, listed["sha256"])
    return ", ".join(f"{name} {stream['root_digest'][:16]}" for name, stream in release.streams.items())


def check_tokenizer(checked: CheckedRelease) -> str:
    """The tokenizer is the one of the recipe and of every stream; its vocabulary and EOS are what they say."""
    release, path, said = checked.release, checked.folder / TOKENIZER_PATH, checked.release.recipe["tokenizer"]
    require_equal(f"{path}: SHA-256", release.sha256sums.get(TOKENIZER_PATH), said["sha256"])
    opened = open_tokenizer(path, said["eos_token"])
    require_equal(f"{path}: vocab_size", opened.vocab_size, said["vocab_size"])
    require_equal(f"{path}: id of EOS", opened.eos_id, said["eos_id"])
    for name, stream in release.streams.items():
        facts = stream["statistics"].get("tokenizer", {})
        for key in set(facts) & set(said):
            require_equal(f"tokenizer of {name}: {key}", facts[key], said[key])
    return f"{opened.vocab_size:,} tokens, EOS {said['eos_token']!r} is {opened.eos_id}, SHA-256 {said['sha256'][:16]}"
