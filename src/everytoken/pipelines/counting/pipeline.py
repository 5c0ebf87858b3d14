"""Counting: upstream documents -> their tokens by a tokenizer that exists, for a mixture with budgets in tokens.

A context adds these nodes to every pipeline that selects documents, where ``ingestion.mixture.unit`` is ``tokens``.
"""

from kedro.pipeline import Node, Pipeline

from everytoken.pipelines.counting.nodes import (
    count_tokens,
    prove_counting_engines,
    say_tokens_are_counted,
    take_counting_tokenizer,
)


def create_pipeline() -> Pipeline:
    """Return the pipeline."""
    return Pipeline(
        [
            Node(
                take_counting_tokenizer,
                "params:tokenization",
                "counting_tokenizer",
                name="take_counting_tokenizer",
            ),
            Node(
                prove_counting_engines,
                ["upstream_documents", "counting_tokenizer", "params:tokenization"],
                "counting_certificate",
                name="prove_counting_engines",
            ),
            Node(
                count_tokens,
                ["upstream_documents", "counting_tokenizer", "counting_certificate", "params:tokenization"],
                "token_counts",
                name="count_tokens",
            ),
            Node(
                say_tokens_are_counted,
                "token_counts",
                "token_counts_when_made",
                name="say_tokens_are_counted",
            ),
        ],
        namespace="counting",
        prefix_datasets_with_namespace=False,
    )
