"""Splitting: hold documents out; all others are trained on. Nothing is scored, so none is annotated."""

from everytoken.corpus import add_statistics
from everytoken.corpus.sampling import SubsamplingParameters, UnscoredCounts, check_split_conservation, split_unscored
from everytoken.shards import Shards


def take_annotated(documents: Shards, parameters: SubsamplingParameters) -> Shards:
    """Take no document: only scores choose documents to annotate."""
    return documents.map(split_unscored, split="annotated", rule=parameters.held_out_rule)


def take_unannotated(documents: Shards, parameters: SubsamplingParameters) -> Shards:
    """Take every document that is not held out."""
    return documents.map(split_unscored, split="unannotated", rule=parameters.held_out_rule)


def hold_out_unscored(documents: Shards, exclusions: Shards, parameters: SubsamplingParameters) -> Shards:
    """Take the documents that a seeded hash of their address keeps from every other split."""
    return documents.zip(exclusions).map(split_unscored, split="held_out", rule=parameters.held_out_rule)


def report_splitting(
    documents: Shards, annotated: Shards, unannotated: Shards, held_out: Shards, exclusions: Shards
) -> dict[str, object]:
    """Check that no document was lost; return the counts of each split."""
    splits = {"annotated": annotated, "unannotated": unannotated, "held_out": held_out}
    counts = {name: add_statistics(split.statistics_as(UnscoredCounts)) for name, split in splits.items()}
    check_split_conservation(documents.rows, counts)
    return {
        "rows_in": documents.rows,
        "rows": {name: counted.get("rows", 0) for name, counted in counts.items()},
        "estimated_tokens": {name: counted.get("estimated_tokens", 0.0) for name, counted in counts.items()},
        "excluded": sum(len(excluded["addresses"]) for excluded in exclusions.values),
    }
