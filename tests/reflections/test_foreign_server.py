"""A server that is not ours: `transformers serve`, which a rank starts, asks and stops."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from everytoken.models import Llama
from everytoken.reflections.merging import list_replies, merge_rank
from everytoken.reflections.ranks import progress_of, submit
from everytoken.shards import Inline, Store
from tests.generation.talking import talking_model
from tests.reflections.generated import SAMPLING, annotated_stream, parameters, plan_of, texts
from tests.serving.served import write_model

pytestmark = [pytest.mark.slow, pytest.mark.sensitive]

SERVE = str(Path(sys.executable).with_name("transformers"))


def short_model() -> Llama:
    """Return a model that draws all tokens alike."""
    model = talking_model(context=4_096)
    with torch.no_grad():
        model.embedding[:] = 0
    return model


def test_a_rank_runs_against_the_server_of_transformers(tmp_path: Path) -> None:
    """What it writes is its own; that it is asked, counted, merged and ended is ours."""
    built, model = annotated_stream(tmp_path / "built", texts(6)), write_model(tmp_path, model=short_model())
    chosen = json.loads((model / "generation_config.json").read_text())
    chosen |= {"do_sample": True, "eos_token_id": list(range(16, 259, 16))}  # a reply ends after some 16 tokens
    (model / "generation_config.json").write_text(json.dumps(chosen))
    generator = {
        "kind": "server",
        "alias": "smollm2-tiny",
        "command": [SERVE, "serve", str(model), "--port", "{port}", "--device", "cpu"],
        "environment": {"HF_HUB_OFFLINE": "1"},
        "health": "/health",
        "check_seconds": 0.5,
        "concurrency": 1,
        "request_seconds": 60.0,
        "sampling": {"smollm2": {**SAMPLING, "max_tokens": 200}},
    }
    root = tmp_path / "run"
    plan = plan_of("rephrasing_safelm", built, parameters(generator, rows_per_task=6))
    submit(plan, root, at_once=1, wait=True)
    told = progress_of(root).to_json()
    assert told["states"] == {"complete": 1} and told["failed"] == {}
    assert told["statuses"] == {"gated": 3, "ok": 3}
    found = told["ranks"][0]["generator"]
    assert found["model"] == str(model) and found["owner"] == "local"
    lines = [json.loads(line) for line in (root / "00000/results.jsonl").open(encoding="utf-8")]
    replies = [line for line in lines if line["status"] == "ok"]
    assert all(line["rephrased"] and line["output_tokens"] > 0 and line["seed"] >= 0 for line in replies)
    planned = list_replies(root).map(merge_rank, run="rephrasing_safelm", stream=built[0], allow_missing=False)
    store = Store(tmp_path / "columns")
    store.save(planned, Inline())
    (part,) = store.load()
    merged = part.table(["status", "rephrased"]).to_pylist()
    assert [row["rephrased"] for row in merged if row["status"] == "ok"] == [
        line["rephrased"] for line in sorted(replies, key=lambda line: line["global_row_idx"])
    ]
    servers = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(model).encode() in _read(path)]
    assert not servers, "the server is ended with the rank"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
