"""Ingestion: a source, the plan of its shards, the rules of quality, and the part function that reads them."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.ingestion.ingest import check_bad_shares, read_part, read_shards
    from everytoken.corpus.ingestion.plan import (
        PlanParameters,
        list_all_shards,
        make_shard_plan,
        part_values,
        shard_order,
    )
    from everytoken.corpus.ingestion.planned_shards import PlannedShard, ShardPlan, shards_by_part
    from everytoken.corpus.ingestion.quality import QualityRules, check_keep_rates, count_characters, rejection
    from everytoken.corpus.ingestion.rendered_rows import render_row
    from everytoken.corpus.ingestion.source import Guarded, MayBeGone, Source, Upstream, find_files

__getattr__, __dir__ = exports(__name__, __file__)
