"""Task files over rows of a local file, for the harness without a network."""

from __future__ import annotations

import json
from pathlib import Path

CHOICES = """\
task: choices
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc}
  - {metric: acc_norm}
metadata: {version: 3}
"""
ROLLING = """\
task: rolling
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: bits_per_byte}
metadata: {version: 1}
"""
TEXTS = """\
task: texts
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["e"], max_gen_toks: 9, do_sample: false}
metric_list:
  - {metric: exact_match}
metadata: {version: 1}
"""
ROWS = [
    {
        "question": f"Is {n} a number? ",
        "choices": ["yes", "no", "a" * (n + 1)],
        "answer": n % 2,
        "text": "Text ä. " * (1 + 5 * n),
    }
    for n in range(7)
]


def write_tasks(folder: Path) -> Path:
    """Write the tasks ``choices``, ``rolling`` and ``texts``; return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, text in (("choices", CHOICES), ("rolling", ROLLING), ("texts", TEXTS)):
        (folder / f"{name}.yaml").write_text(text.replace("DATA", str(folder / "rows.jsonl")))
    return folder
