"""A small annotated stream with texts, and runs over it, for the tests of generation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from tokenizers import Tokenizer

from everytoken.reflections import ReflectionParameters
from everytoken.reflections.ranks import GenerationPlan
from everytoken.shards import Artifact, ArtifactStore, plan_artifact
from everytoken.tokens.streams import write_annotated_stream
from everytoken.tokens.tokenizer import EncodingRules
from tests.tokens.corpora import EOS, documents, small_tokenizer, stored

ROOT = Path(__file__).resolve().parents[2]
BASE = yaml.safe_load((ROOT / "conf/base/parameters_reflection.yml").read_text(encoding="utf-8"))["reflection"]
SAMPLING = {"temperature": 1.0, "max_tokens": 64, "thinking": False}
SEQ_LENGTH, BUDGET = 96, 16


def texts(count: int) -> list[str]:
    tides = "tides and moons, "
    return [f"Document {i} tells of {tides * (1 + i % 4)}and ends with the number {i}." for i in range(count)]


def annotated_stream(folder: Path, made_of: Sequence[str]) -> tuple[Artifact, Artifact]:
    """Return a stream with one document a window, and its tokenizer. Every fifth document has no id."""
    tokenizer = small_tokenizer(folder / "tokenizer_of", made_of)
    library = Tokenizer.from_file(str(tokenizer.path("tokenizer.json")))
    eos = library.token_to_id(EOS)
    ids = [library.encode(text, add_special_tokens=False).ids[: SEQ_LENGTH - BUDGET - 1] for text in made_of]
    table = documents(made_of).append_column("token_length", pa.array(list(map(len, ids)), pa.int32()))
    table = table.append_column("tokens", pa.array([[*one, eos] for one in ids], pa.list_(pa.uint16())))
    planned = plan_artifact(
        write_annotated_stream,
        tokens=stored(folder / "tokens", [table]),
        tokenizer=tokenizer,
        seq_length=SEQ_LENGTH,
        seed=1,
        shuffle_memory=1 << 20,
    )
    return ArtifactStore(folder / "annotated_stream").save(planned), tokenizer


def openai_generator(address: str, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "openai",
        "alias": "smollm2-135m-instruct",
        "endpoint": address,
        "concurrency": 4,
        "request_seconds": 20.0,
        "first_pause_seconds": 0.01,
        "sampling": {"smollm2": {**SAMPLING, **changes.pop("sampling", {})}},
        **changes,
    }


def parameters(generator: dict[str, Any], **changes: Any) -> ReflectionParameters:
    given = copy.deepcopy(BASE) | {"generator": generator, **changes}
    for name, kind in (("prompts", ("folder", "constitution", "guidelines")), ("canaries", ("facts",))):
        given[name] |= {key: str(ROOT / given[name][key]) for key in kind if not Path(given[name][key]).is_absolute()}
    return ReflectionParameters.model_validate(given)


def plan_of(name: str, built: tuple[Artifact, Artifact], given: ReflectionParameters) -> GenerationPlan:
    stream, tokenizer = built
    rules = EncodingRules(tokenizer, EOS, "literal")
    return GenerationPlan(name, given, stream, rules, SEQ_LENGTH - BUDGET, BUDGET)
