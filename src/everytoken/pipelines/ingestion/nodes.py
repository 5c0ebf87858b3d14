"""Ingestion: which files, in which order, the documents in them, and which of these stay."""

import logging
from dataclasses import replace

import pandas as pd
from plotly.graph_objects import Figure

from everytoken.corpus import NOTHING_EXPECTED, DocumentCounts, ExpectParameters, RowCounts, TextAmounts, add_statistics
from everytoken.corpus.decontamination import (
    ContaminationReport,
    contamination_metrics,
    contamination_report,
    count_documents,
    find_matches,
    index_evaluation,
    index_nothing,
    judge_part,
)
from everytoken.corpus.dedup import find_buckets, find_duplicates
from everytoken.corpus.ingestion import (
    ShardPlan,
    Upstream,
    check_bad_shares,
    check_keep_rates,
    make_shard_plan,
    read_shards,
)
from everytoken.corpus.selection import (
    SelectionStatistics,
    TakenCounts,
    check_selection_conservation,
    dropped_part,
    mix_part,
    mixture_parts,
    read_counts,
    require_documents,
    select,
    select_part,
    selection_table,
    unread_by_source,
    unread_line,
)
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.parameters import IngestionParameters
from everytoken.reports import ingestion_figure
from everytoken.shards import Artifact, Shards, plan_artifact

logger = logging.getLogger(__name__)

_NONE = TextAmounts(rows=0, characters=0, utf8_bytes=0)


def find_upstream_files(parameters: IngestionParameters) -> dict[str, Upstream]:
    """Return the upstreams of the active sources; saving them lists their files (and fetches wheels)."""
    if parameters.only is not None:
        logger.info("%s", _read_alone(parameters))
    return {name: source.upstream for name, source in parameters.active_sources.items()}


def _read_alone(parameters: IngestionParameters) -> str:
    """Return the sources that ``only`` names, with the weights that they have then."""
    read = f"ingestion.only: reading {', '.join(parameters.active_sources)}"
    mixture = parameters.active_mixture
    if mixture is None:
        return read
    return f"{read}; mixture.weights over their sum: {', '.join(f'{n} {w:.6g}' for n, w in mixture.weights.items())}"


def plan_shards(
    files: dict[str, list[UpstreamFile]],
    parameters: IngestionParameters,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> ShardPlan:
    """Order the shards of all sources by the seed and take a slice: part_00000 is the first of the slice."""
    return make_shard_plan(parameters.active_sources, files, parameters.plan, parameters.reading, expect)


def read_documents(plan: ShardPlan, files: dict[str, list[UpstreamFile]], parameters: IngestionParameters) -> Shards:
    """Fetch and read each planned shard: rows to documents with address; what is no document is set aside."""
    return read_shards(
        plan,
        parameters.active_sources,
        files,
        min_chars=parameters.min_chars,
        max_bad_share=parameters.max_bad_share,
        limits=parameters.reading,
        keep_fetched=parameters.keep_fetched,
    )


def sketch_documents(documents: Shards, parameters: IngestionParameters) -> Shards:
    """Sketch each text by MinHash, for finding near duplicates; no parts when they are not looked for."""
    sketched = documents if parameters.dedup.near is not None else Shards.from_values([], [])
    return sketched.map(find_buckets, near=parameters.dedup.near)


def find_duplicate_documents(documents: Shards, sketches: Shards, parameters: IngestionParameters) -> Artifact:
    """Check how much of each source became documents; find those that repeat an earlier one in plan order."""
    said = documents.statistics_as(DocumentCounts)
    by_part = {part.name: counts for part, counts in zip(documents, said, strict=True)}
    check_bad_shares(by_part, parameters.max_bad_share)
    rates = {name: source.min_keep_rate for name, source in parameters.active_sources.items()}
    check_keep_rates(read_counts(said), rates)
    return plan_artifact(
        find_duplicates,
        documents=documents,
        buckets=sketches if parameters.dedup.near is not None else None,
        rules=parameters.dedup,
        memory=parameters.dedup_memory,
    )


def index_evaluation_files(parameters: IngestionParameters) -> Artifact:
    """Index the n-grams of the evaluation files; nothing without decontamination."""
    rules = parameters.decontamination
    if rules is None:
        return replace(plan_artifact(index_nothing, ngram=None, files={}, kinds={}), switched_off=True)
    return plan_artifact(
        index_evaluation,
        ngram=rules.ngram,
        files=rules.files,
        kinds={name: file.kind for name, file in rules.files.items()},
        limits=parameters.reading,
        max_ngrams=parameters.max_evaluation_ngrams,
    )


def find_evaluation_ngrams(documents: Shards, evaluation: Artifact, parameters: IngestionParameters) -> Shards:
    """Find the n-grams of the evaluation files in each document; no parts when they are not looked for."""
    searched = documents if parameters.decontamination is not None else Shards.from_values([], [])
    return searched.map(find_matches, evaluation=evaluation)


def count_evaluation_ngrams(
    matches: Shards, duplicates: Artifact, evaluation: Artifact, parameters: IngestionParameters
) -> Artifact:
    """Count in how many documents, duplicates left out, each of these n-grams is."""
    rules = parameters.decontamination
    looked = rules is not None
    planned = plan_artifact(
        count_documents,
        matches=matches if looked else None,
        duplicates=duplicates if looked else None,
        evaluation=evaluation,
        max_documents=None if rules is None else rules.max_documents,
    )
    return replace(planned, switched_off=not looked)


def judge_contamination(
    matches: Shards, counts: Artifact, duplicates: Artifact, evaluation: Artifact, parameters: IngestionParameters
) -> Shards:
    """Say of each document that matches how much of it does, and whether it is contaminated."""
    rules = parameters.decontamination
    repeats = duplicates if rules is not None else None
    return matches.map(judge_part, counts=counts, duplicates=repeats, evaluation=evaluation, rules=rules)


def report_contamination(contamination: Shards, counts: Artifact) -> ContaminationReport:
    """Report what was found by evaluation file and source, and the documents with most of it."""
    return contamination_report(contamination, counts)


def choose_documents(
    documents: Shards,
    duplicates: Artifact,
    contamination: Shards,
    token_counts: Shards | None,
    parameters: IngestionParameters,
) -> Artifact:
    """Decide of every document whether it stays: duplicates, contamination, caps of the sources, budgets."""
    return plan_artifact(
        select,
        documents=documents,
        duplicates=duplicates,
        max_text_bytes={name: source.max_text_bytes for name, source in parameters.active_sources.items()},
        mixture=parameters.active_mixture,
        contamination=_to_remove(contamination, parameters),
        **({"token_counts": token_counts} if parameters.counts_tokens else {}),
    )


def _to_remove(contamination: Shards, parameters: IngestionParameters) -> Shards | None:
    rules = parameters.decontamination
    return contamination if rules is not None and rules.remove else None


def take_documents(documents: Shards, selection: Artifact, parameters: IngestionParameters) -> Shards:
    """Take the documents that stay: part by part, or, with a mixture, interleaved by the weights of their sources."""
    decided = selection.statistics_as(SelectionStatistics)
    require_documents(read_counts(documents.statistics_as(DocumentCounts)), decided["by_source"])
    mixture = parameters.active_mixture
    if mixture is None:
        return documents.map(select_part, selection=selection)
    parts = mixture_parts(selection, mixture.documents_per_part)
    return parts.map(mix_part, documents=documents, selection=selection)


def list_dropped_documents(
    documents: Shards, duplicates: Artifact, contamination: Shards, selection: Artifact, parameters: IngestionParameters
) -> Shards:
    """List the documents that do not stay, each with address and reason."""
    found = _to_remove(contamination, parameters)
    return documents.map(dropped_part, selection=selection, duplicates=duplicates, contamination=found)


def report_ingestion(
    read: Shards, selection: Artifact, documents: Shards, dropped: Shards, contamination: ContaminationReport
) -> tuple[dict[str, object], pd.DataFrame, Figure]:
    """Check that no row was lost; return counts by source and reason as metrics and as a table, and the figure."""
    taken = documents.statistics_as(TakenCounts)
    left = dropped.statistics_as(RowCounts)
    check_selection_conservation(selection, taken, left)
    total = add_statistics(taken)
    chosen = selection.statistics_as(SelectionStatistics)
    came = read.statistics_as(DocumentCounts)
    for warning in chosen["warnings"]:
        logger.warning("warning: %s", warning)
    unread = unread_by_source(came)
    table = selection_table(read_counts(came), chosen["by_source"], chosen["mixture"], unread)
    by_source = {name: add_statistics([_NONE, *strata.values()]) for name, strata in total["by_source"].items()}
    metrics = {
        "rows_in": table[-1]["rows_read"],
        "documents": documents.rows,
        "parts": len(documents),
        "set_aside": add_statistics(part["set_aside"] for part in [*came, *left]),
        "by_source": by_source,
    }
    for source, by_reason in unread.items():
        if line := unread_line(by_reason):
            logger.info("source %s: keys of its chats that are not in the documents: %s", source, line)
    if contamination:
        metrics["contamination"] = contamination_metrics(contamination)
    figure = ingestion_figure(total["length_histogram"], by_source, chosen["mixture"])
    return metrics, pd.DataFrame(table), figure
