"""Safety scores of documents: six classes 0 (harmless) to 5, from a model or from a table that somebody published.

`score` scores the documents of a part, each id once, by an `embedded` or a `transformer` scorer; `published` joins
scores from parquet files; `classifications` makes the table that such a join reads.
"""
