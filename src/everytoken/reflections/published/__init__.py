"""Published reflections: read out of core, found again for the windows of a stream.

In the order of the flow: `tables` (files by the names of their columns), `trained_text`, `keys`, `pairs`, `match`,
`columns` (the dataset that a generation run gives too). `export` writes such files for a release.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.published.columns import published_columns, require_no_fault, row_ranges
    from everytoken.reflections.published.export import (
        QUOTED_CHARACTERS,
        Quotes,
        ReleasedReflectionCounts,
        quotes_text,
        released_reflections,
    )
    from everytoken.reflections.published.match import (
        MATCH_FAULTS_FILE,
        PUBLISHED_FAULTS,
        MatchedStatistics,
        PublishedFault,
        match_published_reflections,
    )

__getattr__, __dir__ = exports(__name__, __file__)
