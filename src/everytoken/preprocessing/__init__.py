"""Preprocessing: text files straight to a Megatron stream, without a project.

In the order of the flow; every module is imported by its own name, so that a worker loads only what it needs:

- `inputs` (the files of a run), `lines` (their texts)
- `certify` (proof of the engines on these files), `encode_file` (one file), `join` (one stream)
- `stream` (the whole run), `command` (what ``everytoken tokenize`` prints), `errors`
"""
