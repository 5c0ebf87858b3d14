"""The corpus: from pinned public shards to scored documents in annotated, unannotated and held-out splits.

The modules in the order of the flow: `upstreams` and `wheels` (files), `plan` (which shards, in which order), `readers`
(rows), `renderers` (documents), `ingest` (the part function of both), `scoring`, `sampling` (formulas), `splits` (part
functions).
"""

from everytoken.corpus.documents import DOCUMENTS, N_CLASSES, SCORED_DOCUMENTS, SPLIT_DOCUMENTS
from everytoken.corpus.errors import (
    BadRow,
    CorpusError,
    PlanError,
    RowError,
    SamplingError,
    ScoringError,
    UpstreamError,
)
from everytoken.corpus.ingest import read_part
from everytoken.corpus.plan import PlanParameters, ShardPlan, make_plan, part_values
from everytoken.corpus.sampling import SubsamplingParameters, Totals, budgets, metadata, totals_of
from everytoken.corpus.scoring import EmbeddedScorer, score_part
from everytoken.corpus.splits import Split, estimate_part_tokens, select_held_out, select_split
from everytoken.corpus.statistics import add_statistics
from everytoken.corpus.upstreams import Source, find_files

__all__ = [
    "DOCUMENTS",
    "N_CLASSES",
    "SCORED_DOCUMENTS",
    "SPLIT_DOCUMENTS",
    "BadRow",
    "CorpusError",
    "EmbeddedScorer",
    "PlanError",
    "PlanParameters",
    "RowError",
    "SamplingError",
    "ScoringError",
    "ShardPlan",
    "Source",
    "Split",
    "SubsamplingParameters",
    "Totals",
    "UpstreamError",
    "add_statistics",
    "budgets",
    "estimate_part_tokens",
    "find_files",
    "make_plan",
    "metadata",
    "part_values",
    "read_part",
    "score_part",
    "select_held_out",
    "select_split",
    "totals_of",
]
