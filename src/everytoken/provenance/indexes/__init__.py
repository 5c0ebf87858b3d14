"""Maps from tokens to documents and back, memory-mapped: how they are made, and what they answer."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.indexes.arrays import map_array
    from everytoken.provenance.indexes.chat_index import CHATS, index_chat_windows
    from everytoken.provenance.indexes.compact_index import index_compact_stream
    from everytoken.provenance.indexes.document_index import (
        DOCUMENT_INDEX_FORMAT,
        DocumentIndex,
        index_documents,
        open_document_index,
    )
    from everytoken.provenance.indexes.document_numbers import DocumentPlace, require_rows
    from everytoken.provenance.indexes.flat_index import FlatWindowIndex, flat_index_of_documents
    from everytoken.provenance.indexes.index_folder import (
        DESCRIPTION_FILE,
        MadeStream,
        WindowsDescription,
        made_stream,
        read_description,
        read_index,
        stream_of,
    )
    from everytoken.provenance.indexes.padded_index import PADDED, PaddedIndex, index_padded_stream
    from everytoken.provenance.indexes.raw_shards_index import index_raw_shards
    from everytoken.provenance.indexes.reflected_index import REFLECTED, ReflectedIndex, index_reflected_stream
    from everytoken.provenance.indexes.spans import ReflectionPlace, Span, StreamIndex
    from everytoken.provenance.indexes.stream_index import WINDOW_INDEXES, open_flat_index, open_stream_index

__getattr__, __dir__ = exports(__name__, __file__)
