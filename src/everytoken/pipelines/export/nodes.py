"""Export: the drawn documents with their texts, a file a part, for readers that know nothing of this project."""

from everytoken.corpus.sampling import split_file_part
from everytoken.shards import Shards


def export_split(documents: Shards, exclusions: Shards) -> Shards:
    """Write the documents of a split with their texts; of those that were taken down the row stays, without text."""
    return documents.zip(exclusions).map(split_file_part)
