"""What recipes of earlier versions say otherwise than those of today, and is the same.

Version 0.1.0 knew versioned functions by module and name. Its ledgers, runs and releases hold these paths, and digests
over them. That table is complete: a younger function has no entry, and an entry never changes. A second table has the
parameters that were recorded once and decide no byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PATHS = {
    "certify_engines": "everytoken.tokens.certificate.certify_engines",
    "certify_files": "everytoken.preprocessing.certify.certify_files",
    "collect_classifications": "everytoken.corpus.scoring.classifications.collect_classifications",
    "count_documents": "everytoken.corpus.selection.contamination.count_documents",
    "dropped_part": "everytoken.corpus.selection.selected_parts.dropped_part",
    "encode_canary_part": "everytoken.tokens.canary.encode.encode_canary_part",
    "encode_file": "everytoken.preprocessing.encode_file.encode_file",
    "encode_part": "everytoken.tokens.encode.encode_part",
    "estimate_part_tokens": "everytoken.corpus.splits.estimate_part_tokens",
    "evaluate": "everytoken.training.artifacts.evaluate",
    "fetch_model": "everytoken.corpus.scoring.model_files.fetch_model",
    "find_buckets": "everytoken.corpus.selection.near_duplicates.find_buckets",
    "find_duplicates": "everytoken.corpus.selection.duplicates.find_duplicates",
    "find_excluded": "everytoken.corpus.exclusion.find_excluded",
    "find_matches": "everytoken.corpus.selection.contamination.find_matches",
    "find_tombstones": "everytoken.provenance.replay.restore.find_tombstones",
    "find_withheld_ids": "everytoken.provenance.releases.manifest.find_withheld_ids",
    "generate_texts": "everytoken.training.artifacts.generate_texts",
    "held_out_manifest_part": "everytoken.provenance.releases.manifest.held_out_manifest_part",
    "identify_model": "everytoken.corpus.scoring.embedded.identify_model",
    "index_chat_windows": "everytoken.provenance.indexes.chat_index.index_chat_windows",
    "index_compact_stream": "everytoken.provenance.indexes.compact_index.index_compact_stream",
    "index_documents": "everytoken.provenance.indexes.document_index.index_documents",
    "index_evaluation": "everytoken.corpus.selection.evaluation_index.index_evaluation",
    "index_padded_stream": "everytoken.provenance.indexes.padded_index.index_padded_stream",
    "index_raw_shards": "everytoken.provenance.indexes.raw_shards_index.index_raw_shards",
    "join_files": "everytoken.preprocessing.join.join_files",
    "join_part": "everytoken.corpus.scoring.published.join_part",
    "join_published": "everytoken.corpus.scoring.published.join_published",
    "judge_part": "everytoken.corpus.selection.contamination.judge_part",
    "load_hub_tokenizer": "everytoken.tokens.vocabulary.load_hub_tokenizer",
    "load_tokenizer_file": "everytoken.tokens.vocabulary.load_tokenizer_file",
    "locate_part": "everytoken.provenance.replay.locate.locate_part",
    "manifest_part": "everytoken.provenance.releases.manifest.manifest_part",
    "match_rows": "everytoken.provenance.replay.match.match_rows",
    "mix_part": "everytoken.corpus.selection.mixed_parts.mix_part",
    "read_canary_file": "everytoken.tokens.canary.documents.read_canary_file",
    "read_part": "everytoken.corpus.ingest.read_part",
    "restore_part": "everytoken.provenance.replay.restore.restore_part",
    "score_part": "everytoken.corpus.scoring.score.score_part",
    "select": "everytoken.corpus.selection.select.select",
    "select_held_out": "everytoken.corpus.splits.select_held_out",
    "select_part": "everytoken.corpus.selection.selected_parts.select_part",
    "select_split": "everytoken.corpus.splits.select_split",
    "train": "everytoken.training.artifacts.train",
    "train_tokenizer": "everytoken.tokens.vocabulary.train_tokenizer",
    "write_annotated_stream": "everytoken.tokens.streams.write_annotated_stream",
    "write_canary_stream": "everytoken.tokens.canary.stream.write_canary_stream",
    "write_chat_windows": "everytoken.tokens.chat_windows.write_chat_windows",
    "write_compact_stream": "everytoken.tokens.streams.write_compact_stream",
    "write_raw_shards": "everytoken.tokens.raw_shards.write_raw_shards",
    "write_release": "everytoken.provenance.releases.write_release.write_release",
}
_NO_LONGER_RECORDED = {("encode_part", 2): ("proof",)}  # by name and version of the function
_NAMES = {path: name for name, path in _PATHS.items()}


def former_path(name: str) -> str:
    """Return the path that the function of a declared name had; the name itself, if it had none."""
    return _PATHS.get(name, name)


def declared_name(path: str) -> str:
    """Return the declared name of the function that had a path; a name is returned as it is."""
    return _NAMES.get(path, path)


def as_described_today(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a recipe, as a ledger has it, in the words of today."""
    name = declared_name(description["function"])
    gone = _NO_LONGER_RECORDED.get((name, description["version"]), ())
    parameters = {key: value for key, value in description["parameters"].items() if key not in gone}
    return {**description, "function": name, "parameters": parameters}
