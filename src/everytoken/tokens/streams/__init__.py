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
        read_manifest,
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
        WindowWriter,
        index_header,
        open_indexed,
        stored_dtype,
        with_name,
    )
    from everytoken.tokens.streams.one_document_per_window import (
        SIDECAR_FILE,
        TOKEN_LENGTHS_FILE,
        PaddedStatistics,
        write_padded_stream,
    )
    from everytoken.tokens.streams.packed import (
        SIDECAR,
        CompactStatistics,
        write_annotated_stream,
        write_compact_stream,
    )
    from everytoken.tokens.streams.raw_shard_order import places
    from everytoken.tokens.streams.raw_shards import DTYPES, MANIFEST_FILE, RawShardStatistics, write_raw_shards
    from everytoken.tokens.streams.streams_by_path import GivenFiles, files_read, given_files, path_of

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "CompactStatistics",
    "PaddedStatistics",
    "RawShardStatistics",
    "WindowCounts",
    "DTYPES",
    "FlatTokens",
    "FlatWindows",
    "GivenFiles",
    "HEADER_BYTES",
    "IndexedTokens",
    "LOSS_MASK_FILE",
    "MANIFEST_FILE",
    "SIDECAR",
    "SIDECAR_FILE",
    "TOKEN_LENGTHS_FILE",
    "TokenizerFacts",
    "WindowWriter",
    "check_masks",
    "document_sizes",
    "files_read",
    "given_files",
    "index_header",
    "mask_bytes",
    "open_indexed",
    "open_loss_mask",
    "open_raw_shards",
    "open_tokens",
    "pack_mask",
    "path_of",
    "places",
    "read_manifest",
    "stored_dtype",
    "tokenizer_facts",
    "unpack_mask",
    "with_name",
    "write_annotated_stream",
    "write_compact_stream",
    "write_padded_stream",
    "write_raw_shards",
]
