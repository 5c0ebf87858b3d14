"""Ingestion: which files, in which order, and the documents in them."""

from typing import Any

from plotly.graph_objects import Figure

from everytoken.corpus.ingest import read_part
from everytoken.corpus.plan import ShardPlan, make_plan, part_values
from everytoken.corpus.statistics import add_statistics
from everytoken.corpus.upstreams import Source, UpstreamFile
from everytoken.parameters import IngestionParameters
from everytoken.reports import length_figure
from everytoken.shards import Shards


def find_upstream_files(parameters: IngestionParameters) -> dict[str, Source]:
    """Return the sources that are switched on; saving them fetches and lists their files."""
    return parameters.active_sources


def plan_shards(files: dict[str, list[UpstreamFile]], parameters: IngestionParameters) -> ShardPlan:
    """Order the shards of all sources by the seed and take a slice: part_00000 is the first of the slice."""
    return make_plan(parameters.active_sources, files, parameters.plan)


def read_documents(plan: ShardPlan, files: dict[str, list[UpstreamFile]], parameters: IngestionParameters) -> Shards:
    """Read each planned shard: rows to documents with address, too short ones dropped and counted."""
    values, digests = part_values(plan, parameters.active_sources, files)
    return Shards.from_values(values, digests).map(read_part, min_chars=parameters.min_chars)


def report_ingestion(documents: Shards) -> tuple[dict[str, Any], Figure]:
    """Return counts by source, and the histogram of document lengths."""
    total = add_statistics(documents.statistics)
    by_source = {name: add_statistics(strata.values()) for name, strata in total["by_source"].items()}
    metrics = {
        "rows_in": total["rows_in"],
        "documents": total["kept"],
        "too_short": total["too_short"],
        "parts": len(documents),
        "by_source": by_source,
    }
    return metrics, length_figure(total["length_histogram"])
