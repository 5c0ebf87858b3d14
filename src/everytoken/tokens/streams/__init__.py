"""Streams of windows and raw shards: how they are written and how they are opened."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.streams.documents import TokenizerFacts, WindowCounts, document_sizes, tokenizer_facts
    from everytoken.tokens.streams.flat_tokens import (
        FlatTokens,
        FlatWindows,
        open_raw_shards,
        open_tokens,
        read_raw_shards_manifest,
    )
    from everytoken.tokens.streams.kinds import (
        STREAM_KINDS,
        WHEN_MADE,
        StreamKind,
        chosen_kinds,
        chosen_streams,
        dataset_of_stream,
        kind_of_dataset,
        kinds_by_name,
        released_kinds,
        trainable_kinds,
        window_kinds,
        written_by,
    )
    from everytoken.tokens.streams.loss_mask import (
        LOSS_MASK_FILE,
        check_masks,
        mask_bytes,
        open_loss_mask,
        pack_mask,
        unpack_mask,
    )
    from everytoken.tokens.streams.megatron import (
        HEADER_BYTES,
        IndexedTokens,
        MegatronIndex,
        WindowWriter,
        index_header,
        open_indexed,
        open_megatron_index,
        stored_dtype,
        with_name,
    )
    from everytoken.tokens.streams.one_document_per_window import (
        SIDECAR_FILE,
        TOKEN_LENGTHS_FILE,
        PaddedStatistics,
        longest_document,
        write_padded_stream,
    )
    from everytoken.tokens.streams.packed import (
        SIDECAR,
        CompactStatistics,
        write_annotated_stream,
        write_compact_stream,
    )
    from everytoken.tokens.streams.placed_windows import open_placed_windows
    from everytoken.tokens.streams.raw_shard_order import (
        PartOfDataset,
        StrandName,
        rows_by_strand,
        sources_and_sizes,
    )
    from everytoken.tokens.streams.raw_shards import (
        DTYPES,
        MANIFEST_FILE,
        RawShardStatistics,
        content_tokens,
        write_raw_shards,
    )
    from everytoken.tokens.streams.spliced_windows import (
        NO_REFLECTION,
        REFLECTION_INDEX_FILE,
        REFLECTION_LENGTHS_FILE,
        splice,
    )
    from everytoken.tokens.streams.strands import places
    from everytoken.tokens.streams.streams_by_path import GivenFiles, files_read, given_files, path_of
    from everytoken.tokens.streams.windows_in_place import WindowsInPlace, open_windows_in_place

__getattr__, __dir__ = exports(__name__, __file__)
