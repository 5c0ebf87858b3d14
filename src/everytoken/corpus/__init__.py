"""The corpus: from pinned public shards to scored documents in annotated, unannotated and held-out splits.

In the order of the flow: `upstreams` (files at a pinned revision), `rendering` (a record becomes a document), `reading`
(rows of a file), `ingestion` (sources, the plan, the part function), `dedup`, `decontamination`, `selection`,
`languages`, `scoring`, `sampling`.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.documents import (
        DOCUMENTS,
        MAX_BATCH_BYTES,
        MAX_BATCH_ROWS,
        N_CLASSES,
        SCORE_FIELDS,
        SCORED_DOCUMENTS,
        SET_ASIDE,
        SPLIT_DOCUMENTS,
        SPLIT_FIELDS,
        BatchBuilder,
        second_score_fields,
        with_fields,
    )
    from everytoken.corpus.errors import (
        BAD_ROW_REASONS,
        BadRow,
        CorpusError,
        ExclusionError,
        ExpectationError,
        LanguageError,
        NoFilesError,
        PlanError,
        RowError,
        SamplingError,
        ScoringError,
        SelectionError,
        UpstreamError,
    )
    from everytoken.corpus.exclusion import (
        DEFAULT_REASON,
        Entry,
        ExcludedAddress,
        ExcludedId,
        ExclusionParameters,
        Exclusions,
        excluded_addresses,
        excluded_rows,
        find_excluded,
        list_text,
        read_list,
        write_list,
    )
    from everytoken.corpus.expectations import NOTHING_EXPECTED, ExpectedValues, ExpectParameters
    from everytoken.corpus.languages import (
        LanguageLine,
        LanguageParameters,
        LanguageStatistics,
        identify_part,
        language_table,
        require_identifier,
    )
    from everytoken.corpus.statistics import (
        ClassesBySource,
        DocumentCounts,
        RowCounts,
        TextAmounts,
        add_statistics,
        as_written,
    )

__getattr__, __dir__ = exports(__name__, __file__)
