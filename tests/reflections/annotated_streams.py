"""A small annotated stream of real tokens, for tests of reflections."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from everytoken.shards import Artifact, ArtifactStore, plan_artifact
from everytoken.tokens import open_tokenizer, write_annotated_stream
from everytoken.tokens.tokenizer import EncodingRules
from tests.tokens.corpora import EOS, documents, small_tokenizer, stored

CAP = 24
"""Tokens of a document at most, EOS included."""


def rules_of(folder: Path, texts: Sequence[str]) -> EncodingRules:
    return EncodingRules(small_tokenizer(folder, texts), EOS, "literal")


def annotated_stream(
    folder: Path, rules: EncodingRules, texts: Sequence[str], ids: Sequence[str | None], *, seq_length: int = 32
) -> Artifact:
    library = open_tokenizer(rules.place, EOS)
    found = [library.tokenizer.encode(text, add_special_tokens=False).ids[: CAP - 1] for text in texts]
    table = documents(texts).set_column(0, "id", pa.array(list(ids), pa.large_string()))
    table = table.append_column("token_length", pa.array(list(map(len, found)), pa.int32()))
    table = table.append_column("tokens", pa.array([[*one, library.eos_id] for one in found], pa.list_(pa.uint16())))
    return ArtifactStore(folder).save(
        plan_artifact(
            write_annotated_stream,
            tokens=stored(folder.with_suffix(".parts"), [table]),
            tokenizer=rules.tokenizer,
            seq_length=seq_length,
            seed=7,
            shuffle_memory=1 << 20,
        )
    )
