"""Reflections: the functions of the nodes of a generation run, which know its name."""

from __future__ import annotations

from collections.abc import Callable

from everytoken.corpus import NOTHING_EXPECTED, ExpectParameters, add_statistics
from everytoken.parameters import ReflectionParameters, TokenizationParameters
from everytoken.reflections.merging import MergedStatistics, merge_rank, require_complete
from everytoken.reflections.ranks import GenerationPlan
from everytoken.reflections.report import reflections_page
from everytoken.shards import Artifact, Shards
from everytoken.tokens.tokenizer import open_tokenizer


def generating(run: str) -> Callable[..., GenerationPlan]:
    """Return the function that plans the replies of a run."""

    def generate_replies(
        annotated_stream: Artifact,
        tokenizer: Artifact,
        parameters: ReflectionParameters,
        tokenization: TokenizationParameters,
    ) -> GenerationPlan:
        """Plan a reply for each row of the range; saving it asks the generator."""
        return GenerationPlan(
            run,
            parameters,
            annotated_stream,
            tokenization.encoding_rules(tokenizer),
            tokenization.max_annotated_tokens,
            tokenization.reflection_budget,
        )

    return generate_replies


def merging(run: str) -> Callable[..., Shards]:
    """Return the function that plans the columns of a run."""

    def merge_replies(replies: Shards, annotated_stream: Artifact, parameters: ReflectionParameters) -> Shards:
        """Plan the columns of the replies, a part for each rank."""
        require_complete(replies, parameters.allow_missing)
        return replies.map(merge_rank, run=run, stream=annotated_stream, allow_missing=parameters.allow_missing)

    return merge_replies


def report_columns(columns: Shards) -> dict[str, object]:
    """Return what the columns of a run hold: rows by status, usable rows, tokens, canaries by fact and voice."""
    return dict(add_statistics(columns.statistics_as(MergedStatistics)))


def report_reflections(columns: Shards, expect: ExpectParameters = NOTHING_EXPECTED) -> dict[str, object]:
    """Return what `report_columns` does; compare it with what is expected of the corpus."""
    found = report_columns(columns)
    expect.check(
        reflection_points=found["with_point"], reflections_usable=found["usable"], reflections_1p=found["with_1p"]
    )
    return found


def page_of_columns(run: str) -> Callable[[Shards], str]:
    """Return the function that writes the page of a run whose texts are columns alone."""

    def show_columns(columns: Shards) -> str:
        """Say what the columns hold."""
        return reflections_page(run, columns)

    return show_columns


def page_of_stream(run: str) -> Callable[[Shards, Artifact, Artifact, TokenizationParameters], str]:
    """Return the function that writes the page of a run with a stream."""

    def show_reflections(
        columns: Shards, stream: Artifact, tokenizer: Artifact, parameters: TokenizationParameters
    ) -> str:
        """Say what the columns and the stream hold; show windows with their reflections."""
        return reflections_page(run, columns, stream, open_tokenizer(tokenizer, parameters.eos_token))

    return show_reflections
