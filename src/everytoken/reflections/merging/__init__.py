"""Results of a run to a dataset of columns, and to a sidecar in the published form."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.merging.columns import (
        CanaryHits,
        MergedStatistics,
        columns_schema,
        merge_rank,
        require_complete,
    )
    from everytoken.reflections.merging.replies_of_run import list_replies
    from everytoken.reflections.merging.sidecar_export import export_sidecar

__getattr__, __dir__ = exports(__name__, __file__)
