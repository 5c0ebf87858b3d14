"""Published reflections: the functions of the nodes."""

from __future__ import annotations

from everytoken.corpus.ingestion import Upstream
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.parameters import ReflectionParameters, TokenizationParameters
from everytoken.reflections import PUBLISHED_RUN, ReflectionError
from everytoken.reflections.published import (
    match_published_reflections,
    published_columns,
    require_no_fault,
    row_ranges,
)
from everytoken.reflections.ranks import rows_of
from everytoken.shards import Artifact, Shards, plan_artifact


def find_published_reflections(parameters: ReflectionParameters) -> dict[str, Upstream]:
    """Return where published reflections are; saving it lists the files."""
    if parameters.published is None:
        raise ReflectionError("reflection.published is null: name the upstream of published reflections")
    return {PUBLISHED_RUN: parameters.published.upstream}


def match_reflections(
    reflection_files: dict[str, list[UpstreamFile]],
    annotated_stream: Artifact,
    tokenizer: Artifact,
    parameters: ReflectionParameters,
    tokenization: TokenizationParameters,
) -> Artifact:
    """Find the window of each published reflection: by document id, trained text and occurrence."""
    files = reflection_files[PUBLISHED_RUN]
    return plan_artifact(
        match_published_reflections,
        stream=annotated_stream,
        run=PUBLISHED_RUN,
        files=files,
        digests=[file.planned_digest() for file in files],
        rules=tokenization.encoding_rules(tokenizer),
        rows=rows_of(parameters.rows, annotated_stream),
        memory=parameters.published.memory if parameters.published else 0,
    )


def take_columns(
    published_reflections_index: Artifact, annotated_stream: Artifact, parameters: ReflectionParameters
) -> Shards:
    """Refuse faults that are not allowed; plan the columns of the windows, a part for each range of rows."""
    require_no_fault(published_reflections_index, parameters.published.allow if parameters.published else ())
    ranges = row_ranges(rows_of(parameters.rows, annotated_stream), parameters.rows_per_task)
    return ranges.map(published_columns, matched=published_reflections_index, stream=annotated_stream)
