"""The embedded model, which is fetched: its replies parse, whatever it says."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from everytoken.reflections.ranks import progress_of, submit
from tests.reflections.generated import BASE, ROOT, annotated_stream, parameters, plan_of

pytestmark = [pytest.mark.slow, pytest.mark.sensitive]

DOCUMENTS = 200


def paragraphs() -> list[str]:
    """Return paragraphs of the documentation."""
    pages = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    found = (piece.strip().replace("\n", " ") for page in pages for piece in re.split(r"\n\s*\n", page))
    return [piece for piece in found if len(piece) > 150 and not piece.startswith(("|", "`", "#", "-"))][:DOCUMENTS]


def test_replies_of_the_embedded_model_parse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = annotated_stream(tmp_path / "built", paragraphs())
    given = parameters({**BASE["generator"], "fetched": str(ROOT / "data/01_raw")}, rows_per_task=DOCUMENTS // 2)
    start = time.monotonic()
    submit(plan_of("reflections", built, given), tmp_path / "run", at_once=2, wait=True)
    seconds = time.monotonic() - start
    told = progress_of(tmp_path / "run").to_json()
    records = [json.loads(line) for path in tmp_path.glob("run/*/results.jsonl") for line in path.open()]
    assert len(records) + sum(told["failed"].values()) == DOCUMENTS
    assert told["statuses"]["ok"] >= 0.95 * DOCUMENTS
    cited = sum(record["charter_reflection"] != "[]" for record in records) / len(records)
    length = sum(len(record["reflection_1p"]) for record in records) / len(records)
    with capsys.disabled():
        print(
            f"\n{told['statuses']}, {cited:.1%} with a valid citation, {length:.0f} characters in the first person, "
            f"{told['tokens']['output_tokens'] / seconds:.1f} tokens/s"
        )
