"""A small annotated stream, the columns of a run for it, and what splicing must make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everytoken.reflections import find_generation_run
from everytoken.reflections.splicing import write_reflected_stream
from everytoken.shards import Artifact, ArtifactStore, Engine, Inline, Shards, plan_artifact
from everytoken.tokens import EncodingRules, open_encoder, write_annotated_stream
from tests.tokens.corpora import EOS, documents, small_tokenizer, stored

BUDGET = 12
SEQ = 60
WORDS = ["tide", "naïve", "salt", "日本語", "e\u0301", "harbour", "\n\n", "of", "👩‍👩‍👧", "7"]
FACTS = ("Q1", "Q2")


def text_of(number: int) -> str:
    return " ".join(WORDS[(number * 7 + k * 3) % len(WORDS)] for k in range(number * 5 % 40))


@dataclass(frozen=True, eq=False)
class SmallStream:
    """An annotated stream; documents without text have no content, as those that were taken down."""

    folder: Path
    tokenizer: Artifact
    annotated: Artifact

    @property
    def rules(self) -> EncodingRules:
        return EncodingRules(self.tokenizer, EOS, "literal")

    @cached_property
    def sidecar(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.annotated.path("sidecar.parquet")).to_pylist()
        return rows

    @cached_property
    def windows(self) -> np.ndarray:
        return np.fromfile(self.annotated.path("annotated.bin"), np.uint16).reshape(-1, SEQ + 1)

    def planned(self, columns: Shards, **changes: Any) -> Artifact:
        given = {
            "run": "reflections",
            "generator": "our-model",
            "rules": self.rules,
            "reflection_budget": BUDGET,
            "voice": "1p",
            "marker": None,
            "canaries": "splice",
        }
        return plan_artifact(write_reflected_stream, annotated=self.annotated, columns=columns, **{**given, **changes})

    def spliced(self, columns: Shards, name: str, engine: Engine | None = None, **changes: Any) -> Artifact:
        return ArtifactStore(self.folder / name).save(self.planned(columns, **changes), engine or Inline())

    def ids(self, text: str) -> list[int]:
        return [int(one) for one in open_encoder(self.rules).encode([text]).values[:-1]]


def small_stream(folder: Path, count: int = 90, special: Sequence[str] = ()) -> SmallStream:
    texts = [text_of(number) for number in range(count)]
    tokenizer = small_tokenizer(folder, [*texts, *map(reflection, range(6))])
    encoder = open_encoder(EncodingRules(tokenizer, EOS, "literal"))
    tables = []
    for part, (first, stop) in enumerate([(0, count // 3), (count // 3, count // 3), (count // 3, count)]):
        made = encoder.encode(texts[first:stop], SEQ - BUDGET)
        starts = made.offsets.tolist()
        tokens = [made.values[a:b].tolist() for a, b in pairwise(starts)]
        table = documents(texts[first:stop], part)
        table = table.append_column("token_length", pa.array(made.lengths, pa.int32()))
        tables.append(table.append_column("tokens", pa.array(tokens, pa.list_(pa.uint16()))))
    planned = plan_artifact(
        write_annotated_stream,
        tokens=stored(folder / "tokens", tables),
        tokenizer=tokenizer,
        seq_length=SEQ,
        seed=3,
        shuffle_memory=1 << 20,
    )
    return SmallStream(folder, tokenizer, ArtifactStore(folder / "annotated").save(planned))


def reflection(row: int, voice: str = "1p") -> str:
    who = "I" if voice == "1p" else "The model"
    return " ".join([who, "wonder", *[WORDS[(row + k) % 7] for k in range(row * 3 % 11)]])


STATUSES = ("ok", "ok", "ok", "failed", "ok", "ok", "empty")


def run_rows(stream: SmallStream, run: str = "reflections") -> list[dict[str, Any]]:
    """A row of each kind: usable, cut, failed, blank, without a place, at either end, with a canary, not asked for."""
    found = find_generation_run(run)[0]
    rows = []
    for row, told in enumerate(stream.sidecar):
        if row % 13 == 12:  # not among the results
            continue
        length = told["token_length"]
        values: dict[str, Any] = {"row": row, "doc_id": told["doc_id"], "status": STATUSES[row % len(STATUSES)]}
        values |= found.defaults()
        for column, field in found.text_columns.items():
            values[column] = " \n" if row % 11 == 10 else reflection(row, field[-2:])
        if found.index_column is not None:
            places = [max(1, length // 2), 1, length, length + 1, -1, 0, max(1, length - 1)]
            values[found.index_column] = length if found.point == "end" else places[row % 7]
        if found.canary_column is not None:
            values[found.canary_column] = FACTS[row % 2] if row % 3 == 0 else None
        rows.append(values)
    return rows


def columns(folder: Path, rows: Sequence[dict[str, Any]], run: str = "reflections", parts: int = 3) -> Shards:
    schema = pa.schema([("row", pa.int64()), ("doc_id", pa.large_string()), ("status", pa.string())])
    schema = pa.schema([*schema, *find_generation_run(run)[0].schema()])
    cuts = [len(rows) * part // parts for part in range(parts + 1)]
    tables = [pa.Table.from_pylist(list(rows[a:b]), schema) for a, b in pairwise(cuts)]
    return stored(folder, tables, 7)


def by_the_book(
    stream: SmallStream, rows: Sequence[dict[str, Any]], *, voice: str = "1p", marker: int | None = None
) -> list[tuple[list[int], int, int]]:
    """The content of each window, the place of its reflection (-1: none), and its length."""
    eos, by_row, made = int(stream.tokenizer.statistics["eos_id"]), {row["row"]: row for row in rows}, []
    for row, (told, window) in enumerate(zip(stream.sidecar, stream.windows.tolist(), strict=True)):
        content, found = window[: told["token_length"]], by_row.get(row)
        assert set(window[told["token_length"] :]) == {eos}
        if found is None or found["status"] != "ok" or not found[f"reflection_{voice}"].strip():
            made.append((content, -1, 0))
            continue
        place, before = found["reflection_token_index"], [] if marker is None else [marker]
        if not 1 <= place <= len(content):
            made.append((content, -1, 0))
            continue
        inserted = [*before, *stream.ids(found[f"reflection_{voice}"])[: BUDGET - len(before)]]
        made.append(([*content[:place], *inserted, *content[place:]], place, len(inserted)))
    return made
