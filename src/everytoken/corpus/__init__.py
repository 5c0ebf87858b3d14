"""The corpus: from pinned public shards to scored documents in annotated, unannotated and held-out splits.

In the order of the flow: `upstreams` (files at a pinned revision), `rendering` (a record becomes a document), `reading`
(rows of a file), `ingestion` (sources, the plan, the part function), `dedup`, `decontamination`, `selection`,
`scoring`, `sampling`.
"""
