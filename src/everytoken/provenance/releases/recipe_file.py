"""What a release says of how its corpus was made: ``recipe.json`` and ``upstream.json``.

A recipe that is not the one that made the data would be worse than none. So each stage is planned again, from the
parameters and from what its inputs hold now, and must have the fingerprint that its ledger has.
"""

from __future__ import annotations

import importlib.metadata
import platform
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypedDict

import everytoken
from everytoken.address import SHARD_INDEX, file_of
from everytoken.corpus.ingestion import PlanParameters, ShardPlan, Source
from everytoken.corpus.upstreams import NOT_PUBLISHED
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.parameters import Licence, NotPublic, Origin
from everytoken.provenance.releases.published import described_origin, published
from everytoken.provenance.releases.release import RELEASE_FORMAT
from everytoken.shards import Artifact, Shards
from everytoken.tokens.streams import tokenizer_facts

Stored = Shards | Artifact

# libraries of which another version may make other bytes
_DECIDE = ("alt-profanity-check", "datasketch", "numpy", "pyarrow", "scikit-learn", "tokenizers")
_SHOWN = 3


def require_made_as_planned(name: str, planned: Stored, stored: Stored) -> None:
    """Check that what is stored is what these parameters and inputs make.

    Raises:
        ProvenanceError: it was made otherwise; names what differs.
    """
    if _wanted(planned) == _found(stored):
        return
    differences = list(_differences(_recipe(planned), _recipe(stored)))
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    told = "; ".join(differences[:_SHOWN]) + more or "its inputs hold something else now"
    raise ProvenanceError(
        f"{name} was not made as the parameters say now: {told}. A release tells how its data was made: run the "
        f"pipeline that makes {name} with these parameters, or release with those that made it."
    )


def require_plan(plan: ShardPlan, parameters: PlanParameters) -> None:
    """Check that the shard plan was made by these parameters.

    Raises:
        ProvenanceError: it was not.
    """
    now = parameters.model_dump(mode="json")
    if plan["parameters"] != now:
        told = "; ".join(_differences(now, plan["parameters"]))
        raise ProvenanceError(
            f"shard_plan was not made as the parameters say now: {told}. A release tells how its data was made: run "
            "the pipeline ingestion with these parameters, or release with those that made it."
        )


def _wanted(planned: Stored) -> list[str]:
    if isinstance(planned, Shards):
        return [part.digest for part in planned.parts]
    assert planned.recipe is not None, "a planned artifact"
    return [planned.recipe.fingerprint([])]


def _found(stored: Stored) -> list[str]:
    if isinstance(stored, Artifact):
        return [str(stored.ledger["fingerprint"])]
    assert stored.ledger is not None, "shards that a store loads have a ledger"
    return [record.fingerprint for record in stored.ledger.parts]


def _recipe(data: Stored) -> Mapping[str, Any]:
    """Return function, version and parameters of what is planned or stored."""
    if data.recipe is not None:
        return data.recipe.description
    return data.ledger["recipe"] if isinstance(data, Artifact) else data.ledger.recipe  # type: ignore[union-attr]


def _differences(now: Any, then: Any, where: str = "") -> Iterator[str]:
    """Yield the leaves in which two recipes differ."""
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        for key in sorted({*now, *then}):
            yield from _differences(now.get(key), then.get(key), f"{where}.{key}" if where else key)
    elif now != then:
        where = where.removeprefix("parameters.")
        if where.endswith(".digest"):
            yield f"{where.removesuffix('.digest')} holds something else now"
        else:
            yield f"{where} was {_short(then)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class ReleaseRecipe(TypedDict):
    """``recipe.json``: ``datasets`` and ``functions`` are by name."""

    format: str
    parameters: dict[str, Any]
    versions: dict[str, str]
    tokenizer: dict[str, object]
    datasets: dict[str, dict[str, str | int]]
    functions: dict[str, int]


class DescribedRun(TypedDict):
    """The job that made a corpus, and the streams that a release leaves out, with the reason."""

    recipe: ReleaseRecipe
    left_out: dict[str, str]


def recipe_of(parameters: Mapping[str, Any], stages: Mapping[str, Stored], tokenizer: Artifact) -> ReleaseRecipe:
    """Return what ``recipe.json`` says.

    Args:
        parameters: of each pipeline, as plain data; places of this machine are left out.
        stages: every stored dataset of the job, by name.
    """
    return {
        "format": RELEASE_FORMAT,
        "parameters": published(parameters),
        "versions": versions(),
        "tokenizer": {**asdict(tokenizer_facts(tokenizer)), "dtype": tokenizer_facts(tokenizer).dtype.name},
        "datasets": {name: _said_of(stage) for name, stage in stages.items()},
        "functions": {_recipe(stage)["function"]: _recipe(stage)["version"] for stage in stages.values()},
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, Unicode and libraries that decide bytes."""
    installed = {}
    for name in _DECIDE:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an optional one: nothing here was made with it
    return {
        "everytoken": everytoken.__version__,
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "unicode": unicodedata.unidata_version,
        **installed,
    }


def _said_of(stage: Stored) -> dict[str, str | int]:
    """Return what a stage holds: no bytes of its files, which differ between versions that store the same rows."""
    if isinstance(stage, Artifact):
        return {"root_digest": stage.root_digest}
    assert stage.ledger is not None, "shards that a store loads have a ledger"
    ledger = stage.ledger
    return {"root_digest": ledger.root_digest, "rows": ledger.rows, "parts": len(ledger.parts)}


def upstream_of(
    sources: Mapping[str, Source], licences: Mapping[str, Licence], origins: Mapping[str, Origin], plan: ShardPlan
) -> dict[str, object]:
    """Return what ``upstream.json`` says: of each source pin, licence and files of the plan; and the plan.

    Of a source without a public address it has no root, but ``homepage``, or ``public`` (false).
    """
    files: dict[str, dict[int, dict[str, object]]] = {name: {} for name in sorted(sources)}
    for shard in plan["shards"]:
        source, number = file_of(shard)
        files[source][number] = {SHARD_INDEX: number, "path": shard["path"], "digest": shard["digest"]}
    described = {
        name: {
            "upstream": _pin(sources[name], origins.get(name)),
            **described_origin(origins.get(name)),
            "licence": licences[name].model_dump(mode="json"),
            "files": [of_source[index] for index in sorted(of_source)],
        }
        for name, of_source in files.items()
    }
    return {"sources": described, "plan": dict(plan)}


def _pin(source: Source, origin: Origin | None) -> dict[str, object]:
    pin: dict[str, object] = published(source.upstream.model_dump(mode="json"))
    return {**pin, "root": NOT_PUBLISHED} if "root" in pin and isinstance(origin, NotPublic) else pin
