"""The modules that decide bytes, and the tests that must notice a fault in them (fast ones, in one process)."""

from __future__ import annotations

PRELOADED = ("numpy", "pyarrow.parquet", "pyarrow.compute", "pydantic", "orjson", "tokenizers", "duckdb", "torch")
"""Imported once for all modules."""

LEFT_OUT = (
    *("killed", "process", "workers", "dying", "hash_seed", "engine", "memory_or", "bounded_memory", "blocks_stay"),
    *("megatron_reads", "datatrove", "megatron_s_own", "saved_tensor_is", "full_disk", "mirror", "learn_to_repeat"),
)
"""Tests with these words in their names start processes, or take long: mutants do without them."""

MODULES: dict[str, list[str]] = {
    "seeds.py": ["tests/test_seeds.py"],
    "corpus/plan.py": ["tests/corpus/test_shard_plan.py"],
    "corpus/held_out.py": ["tests/corpus/test_sampling.py", "tests/corpus/test_splits.py"],
    "corpus/sampling.py": [
        "tests/corpus/test_sampling.py",
        "tests/corpus/test_strata.py",
        "tests/corpus/test_splits.py",
    ],
    "corpus/strata.py": ["tests/corpus/test_strata.py"],
    "corpus/splits.py": ["tests/corpus/test_splits.py", "tests/corpus/test_strata.py", "tests/corpus/test_sampling.py"],
    "corpus/reading/parsing.py": ["tests/corpus/reading/test_parsing.py"],
    "corpus/reading/records.py": ["tests/corpus/reading/test_records.py", "tests/corpus/reading/test_bad_input.py"],
    "corpus/reading/tables.py": ["tests/corpus/reading/test_tables.py"],
    "corpus/reading/readers.py": ["tests/corpus/reading/test_readers.py"],
    "corpus/reading/archives.py": ["tests/corpus/reading/test_archives.py"],
    "corpus/rendering/chats.py": ["tests/corpus/rendering/test_chats.py"],
    "corpus/selection/mixture.py": ["tests/corpus/selection/test_mixture.py"],
    "corpus/selection/mixed_parts.py": ["tests/corpus/selection/test_selected_parts.py"],
    "corpus/selection/quality.py": ["tests/corpus/selection/test_quality.py"],
    "corpus/selection/duplicates.py": [
        "tests/corpus/selection/test_duplicates.py",
        "tests/corpus/selection/test_near_duplicates.py",
    ],
    "tokens/encoding.py": ["tests/tokens/test_encoding.py", "tests/tokens/test_pieces.py"],
    "tokens/streams.py": ["tests/tokens/test_streams.py"],
    "tokens/windows.py": ["tests/tokens/test_windows.py"],
    "tokens/chats.py": ["tests/tokens/test_chat_windows.py"],
    "tokens/chat_windows.py": ["tests/tokens/test_chat_windows.py"],
    "tokens/loss_mask.py": ["tests/tokens/test_loss_mask.py"],
    "tokens/megatron.py": ["tests/tokens/test_megatron.py"],
    "tokens/scatter.py": ["tests/tokens/test_scatter.py"],
    "tokens/shuffle.py": ["tests/tokens/test_shuffle.py"],
    "tokens/permutation.py": ["tests/tokens/test_permutation.py"],
    "tokens/interleave.py": ["tests/tokens/test_interleave.py"],
    "tokens/mixing.py": ["tests/tokens/test_mixing.py"],
    "tokens/periodic.py": ["tests/tokens/test_mixing.py", "tests/tokens/test_interleave.py"],
    "tokens/sample_order.py": [
        "tests/tokens/test_mixing.py",
        "tests/tokens/test_windows.py",
        "tests/tokens/test_interleave.py",
    ],
    "tokens/strands.py": ["tests/tokens/test_raw_shards.py"],
    "tokens/raw_shards.py": ["tests/tokens/test_raw_shards.py"],
    "shards/digests.py": ["tests/shards/test_digests.py"],
    "shards/table_digests.py": ["tests/shards/test_digests.py"],
    "shards/recipe.py": ["tests/shards/test_recipe.py"],
    "shards/ledger.py": [
        "tests/shards/test_ledger.py",
        "tests/shards/test_store.py::test_an_edited_ledger_is_refused_and_mended",
        "tests/shards/test_store.py::test_an_edited_value_is_refused",
        "tests/shards/test_store.py::test_a_ledger_that_is_none_is_refused_and_made_again",
        "tests/shards/test_store.py::test_the_root_digest_is_over_content_alone",
        "tests/shards/test_store.py::test_values_and_empty_parts_are_stored",
        "tests/shards/test_store.py::test_a_lost_or_damaged_part_is_rebuilt_alone_with_the_same_bytes",
    ],
    "training/schedule.py": ["tests/training/test_schedule.py"],
    "training/loss.py": ["tests/training/test_loss.py"],
    "training/checkpoint_folder.py": ["tests/training/test_checkpoints.py"],
    "models/llama.py": ["tests/models/test_llama.py"],
    "models/causal_attention.py": ["tests/models/test_llama.py"],
    "models/elementwise.py": ["tests/models/test_llama.py"],
}
