"""What a run will take, before anything is asked: ranks, requests, tokens, hours, windows that canaries would mask."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from everytoken.address import ADDRESS_COLUMNS, Address
from everytoken.reflections.points import draw_fact
from everytoken.reflections.prompts import DocumentRequest, RequestBuilder
from everytoken.reflections.ranks.annotated_rows import sidecar_batches, sidecar_rows
from everytoken.reflections.ranks.generation import GenerationPlan

PUBLISHED_GPU_HOURS = 13_012
PUBLISHED_ROWS = 51_400_000
PUBLISHED_TOKENS_OF_A_REPLY = 4_413

_SAMPLED = 200
_COUNTED_CANARIES = 2_000_000  # rows; of more, the number is expected and not counted


@dataclass(frozen=True)
class Forecast:
    """A run as it is planned.

    Attributes:
        rows: first row, and the row behind the last one.
        requests: rows that are asked about, if each reply is accepted at once.
        input_tokens: of all requests, from a sample of ``sampled`` rows; tokens of the stream's tokenizer.
        canaries: documents with an identity canary.
        canaries_counted: whether they were counted; else their number is the rate times the rows.
    """

    run: str
    ranks: int
    rows: tuple[int, int]
    requests: int
    input_tokens: int
    sampled: int
    canaries: int
    canaries_counted: bool


def forecast(plan: GenerationPlan) -> Forecast:
    """Return what a run will take.

    Raises:
        ReflectionError: a file that requests are made of is missing or wrong, or the range has rows that are not there.
    """
    first, end = plan.rows()
    builder = plan.builder()
    requests = _requests(plan, builder, first, end)
    tokens, sampled = _mean_input(plan, builder, first, end)
    count = end - first <= _COUNTED_CANARIES
    canaries = plan.parameters.canaries
    return Forecast(
        run=plan.name,
        ranks=-(-(end - first) // plan.parameters.rows_per_task),
        rows=(first, end),
        requests=requests,
        input_tokens=round(tokens * requests),
        sampled=sampled,
        canaries=_canaries(plan, builder, first, end) if count else round(canaries.rate * requests),
        canaries_counted=count,
    )


def _requests(plan: GenerationPlan, builder: RequestBuilder, first: int, end: int) -> int:
    gate = builder.run.gate
    total = 0
    for _, batch in sidecar_batches(plan.sidecar, first, end, ["token_length", *([gate] if gate else [])]):
        for row in batch.to_pylist():
            total += row["token_length"] != 0 and (gate is None or bool(row[gate]))
    return total


def _mean_input(plan: GenerationPlan, builder: RequestBuilder, first: int, end: int) -> tuple[float, int]:
    """Return the mean tokens of the messages of the first rows that are asked about, and how many these are."""
    built = (builder.build(row) for row in sidecar_rows(plan.sidecar, first, end))
    asked = list(islice((one for one in built if isinstance(one, DocumentRequest)), _SAMPLED))
    counts = [builder.spans.count("".join(message["content"] for message in one.messages)) for one in asked]
    return (sum(counts) / len(counts) if counts else 0.0), len(counts)


def _canaries(plan: GenerationPlan, builder: RequestBuilder, first: int, end: int) -> int:
    if not builder.facts:
        return 0
    canaries, total = plan.parameters.canaries, 0
    for _, batch in sidecar_batches(plan.sidecar, first, end, ["doc_id", "token_length", *ADDRESS_COLUMNS]):
        for row in batch.to_pylist():
            key = str(Address.of(row)) if row["doc_id"] is None else row["doc_id"]
            drawn = draw_fact(builder.facts, canaries.seed, canaries.rate, key)
            total += row["token_length"] != 0 and drawn is not None
    return total
