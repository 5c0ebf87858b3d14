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
    "corpus/ingestion/plan.py": ["tests/corpus/ingestion/test_shard_plan.py"],
    "corpus/sampling/held_out.py": ["tests/corpus/sampling/test_sampling.py", "tests/corpus/sampling/test_splits.py"],
    "corpus/sampling/formulas.py": [
        "tests/corpus/sampling/test_sampling.py",
        "tests/corpus/sampling/test_strata.py",
        "tests/corpus/sampling/test_splits.py",
    ],
    "corpus/sampling/strata.py": ["tests/corpus/sampling/test_strata.py"],
    "corpus/sampling/splits.py": [
        "tests/corpus/sampling/test_splits.py",
        "tests/corpus/sampling/test_strata.py",
        "tests/corpus/sampling/test_sampling.py",
        "tests/corpus/scoring/test_second_scores.py",
    ],
    "corpus/reading/parsing.py": ["tests/corpus/reading/test_parsing.py"],
    "corpus/reading/records.py": ["tests/corpus/reading/test_records.py", "tests/corpus/reading/test_bad_input.py"],
    "corpus/reading/tables.py": ["tests/corpus/reading/test_tables.py"],
    "corpus/reading/lines.py": ["tests/corpus/reading/test_readers.py", "tests/text_to_stream/test_texts.py"],
    "corpus/reading/readers.py": [
        "tests/corpus/reading/test_readers.py",
        "tests/corpus/reading/test_file_formats.py",
        "tests/corpus/reading/test_plain_text.py",
        "tests/text_to_stream/test_texts.py",
    ],
    "corpus/reading/archives.py": ["tests/corpus/reading/test_archives.py"],
    "corpus/rendering/chats.py": ["tests/corpus/rendering/test_chats.py", "tests/corpus/rendering/test_meanings.py"],
    "corpus/rendering/meanings.py": [
        "tests/corpus/rendering/test_meanings.py",
        "tests/corpus/rendering/test_chat_keys.py",
    ],
    "corpus/selection/mixture.py": ["tests/corpus/selection/test_mixture.py"],
    "corpus/selection/mixed_parts.py": ["tests/corpus/selection/test_selected_parts.py"],
    "corpus/ingestion/quality.py": ["tests/corpus/ingestion/test_quality.py"],
    "corpus/dedup/duplicates.py": [
        "tests/corpus/dedup/test_duplicates.py",
        "tests/corpus/dedup/test_near_duplicates.py",
    ],
    "tokens/encoding/encoder.py": ["tests/tokens/encoding/test_encoding.py", "tests/tokens/tokenizer/test_pieces.py"],
    "tokens/streams/packed.py": ["tests/tokens/streams/test_streams.py", "tests/tokens/encoding/test_tombstones.py"],
    "tokens/order/loader.py": ["tests/tokens/order/test_windows.py"],
    "tokens/chat/conversations.py": ["tests/tokens/chat/test_chat_windows.py"],
    "tokens/chat/windows.py": ["tests/tokens/chat/test_chat_windows.py"],
    "tokens/streams/loss_mask.py": ["tests/tokens/streams/test_loss_mask.py"],
    "tokens/streams/megatron.py": ["tests/tokens/streams/test_megatron.py"],
    "outofcore/row_places.py": ["tests/outofcore/test_row_places.py"],
    "outofcore/shuffle.py": ["tests/outofcore/test_shuffle.py"],
    "tokens/order/permutation.py": ["tests/tokens/order/test_permutation.py"],
    "tokens/order/spp_schedule.py": ["tests/tokens/order/test_interleave.py"],
    "tokens/order/integer_schedules.py": ["tests/tokens/order/test_mixing.py"],
    "tokens/order/periodic_schedule.py": ["tests/tokens/order/test_mixing.py", "tests/tokens/order/test_interleave.py"],
    "tokens/order/sample_order.py": [
        "tests/tokens/order/test_mixing.py",
        "tests/tokens/order/test_windows.py",
        "tests/tokens/order/test_interleave.py",
    ],
    "tokens/streams/raw_shard_order.py": ["tests/tokens/streams/test_raw_shards.py"],
    "tokens/streams/raw_shards.py": ["tests/tokens/streams/test_raw_shards.py"],
    "shards/digests.py": ["tests/identity/test_digests.py"],
    "shards/table_digests.py": ["tests/identity/test_digests.py"],
    "shards/recipe.py": ["tests/identity/test_recipe.py"],
    "shards/ledger.py": [
        "tests/shards/test_ledger.py",
        "tests/shards/test_extended.py",
        "tests/identity/test_declared_names.py",
        "tests/shards/test_store.py::test_an_edited_ledger_is_refused_and_mended",
        "tests/shards/test_store.py::test_an_edited_value_is_refused",
        "tests/shards/test_store.py::test_a_ledger_that_is_none_is_refused_and_made_again",
        "tests/shards/test_store.py::test_the_root_digest_is_over_content_alone",
        "tests/shards/test_store.py::test_values_and_empty_parts_are_stored",
        "tests/shards/test_store.py::test_a_lost_or_damaged_part_is_rebuilt_alone_with_the_same_bytes",
    ],
    "training/step/schedule.py": ["tests/training/step/test_schedule.py"],
    "training/step/loss.py": ["tests/training/step/test_loss.py"],
    "training/checkpoints/checkpoint_folder.py": ["tests/training/checkpoints/test_checkpoints.py"],
    "models/llama.py": ["tests/models/test_llama.py"],
    "models/causal_attention.py": ["tests/models/test_llama.py"],
    "models/elementwise.py": ["tests/models/test_llama.py"],
}

DRAWN_AS = {
    "corpus/ingestion/plan.py": "corpus/plan.py",
    "corpus/sampling/held_out.py": "corpus/held_out.py",
    "corpus/sampling/formulas.py": "corpus/sampling.py",
    "corpus/sampling/strata.py": "corpus/strata.py",
    "corpus/sampling/splits.py": "corpus/splits.py",
    "corpus/ingestion/quality.py": "corpus/selection/quality.py",
    "corpus/dedup/duplicates.py": "corpus/selection/duplicates.py",
    "tokens/encoding/encoder.py": "tokens/encoding.py",
    "tokens/streams/packed.py": "tokens/streams.py",
    "tokens/order/loader.py": "tokens/windows.py",
    "tokens/chat/conversations.py": "tokens/chats.py",
    "tokens/chat/windows.py": "tokens/chat_windows.py",
    "tokens/streams/loss_mask.py": "tokens/loss_mask.py",
    "tokens/streams/megatron.py": "tokens/megatron.py",
    "outofcore/shuffle.py": "tokens/shuffle.py",
    "tokens/order/permutation.py": "tokens/permutation.py",
    "tokens/order/spp_schedule.py": "tokens/interleave.py",
    "tokens/order/integer_schedules.py": "tokens/mixing.py",
    "tokens/order/periodic_schedule.py": "tokens/periodic.py",
    "tokens/order/sample_order.py": "tokens/sample_order.py",
    "tokens/streams/raw_shard_order.py": "tokens/strands.py",
    "tokens/streams/raw_shards.py": "tokens/raw_shards.py",
    "training/step/schedule.py": "training/schedule.py",
    "training/step/loss.py": "training/loss.py",
    "training/checkpoints/checkpoint_folder.py": "training/checkpoint_folder.py",
}
"""Where modules were when their tests were last completed: a module that moves keeps its choice of mutants."""
