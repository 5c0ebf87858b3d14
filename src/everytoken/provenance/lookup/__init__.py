"""Where documents, streams and runs are stored, and what is stored about them."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.lookup.character_spans import LocatedTokens
    from everytoken.provenance.lookup.dataset_locations import FORMER_INDEXES, Places, store_head
    from everytoken.provenance.lookup.document_records import (
        CANARY,
        STORES,
        DocumentRecord,
        DocumentRecords,
        RecordText,
        StoreRow,
        planned_parts,
    )
    from everytoken.provenance.lookup.foreign_streams import joined_file_of
    from everytoken.provenance.lookup.indexed_streams import IndexedStream
    from everytoken.provenance.lookup.recorded_runs import CHECKPOINTS, recorded_run
    from everytoken.provenance.lookup.reflection_texts import ReflectionText
    from everytoken.provenance.lookup.runs import (
        TRAINED,
        OpenRun,
        Run,
        describe_run,
        find_run,
        open_run,
        past_of,
        trained_checkpoints,
    )
    from everytoken.provenance.lookup.splits import unread_splits
    from everytoken.provenance.lookup.stream_documents import (
        Locate,
        StreamDocuments,
        documents_of,
        documents_of_gone,
        folder_of_stream,
        index_of_stream,
    )
    from everytoken.provenance.lookup.text_search import canary_documents_with_id, documents_containing
    from everytoken.provenance.lookup.upstream_text import UpstreamDocument, read_documents_at

__getattr__, __dir__ = exports(__name__, __file__)
