"""Replay: the manifest of a release and its upstream give the documents of every split again, row for row.

Read in this order: `manifest_files` (what is replayed), `moved` (is the upstream still the one that was released),
`locate` (documents at their addresses), `match` (those that are elsewhere), `report` (what is missing, and whether that
is allowed), `restore` (the documents in the order of the manifest). Every module is imported by its own name.
"""
