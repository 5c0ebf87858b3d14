"""The corpus: from pinned public shards to scored documents in annotated, unannotated and held-out splits.

In the order of the flow; every module is imported by its own name, so that a reader of one loads no other:

- `upstreams` (files at a pinned revision), `plan` (which shards, in which order)
- `reading` (rows of a file), `rendering` (a record becomes a document), `ingest` (the part function of both)
- `selection` (duplicates, caps, mixture)
- `scoring`, `sampling` (formulas), `splits` (part functions)
- `documents` (schemas), `errors`, `statistics`
"""
