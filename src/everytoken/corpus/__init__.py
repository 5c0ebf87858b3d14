"""The corpus: from pinned public shards to scored documents in annotated, unannotated and held-out splits.

The modules, in the order of the flow; each is imported by its own name, so that a reader of one loads no other:

- files: `upstreams` (what a source is, and its files at a pinned revision), `plan` (which shards, in which order)
- rows: `readers` (rows of a file), `renderers` (a record becomes a document), `ingest` (the part function of both)
- selection: `quality` (rules for one document), `duplicates` and `near_duplicates`, `mixture`, `selection`
- annotation and splits: `scoring`, `sampling` (formulas), `splits` (part functions)
- `documents` (schemas), `errors`, `statistics`
"""
