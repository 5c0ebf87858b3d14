"""Release: a manifest of each split without text, what made the corpus, and the folder that is published."""

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everytoken.corpus import second_score_fields
from everytoken.corpus.ingestion import ShardPlan, shards_by_part
from everytoken.parameters import IngestionParameters, ReleaseParameters, TokenizationParameters
from everytoken.pipelines.release.job import DescribedJob, NotPlanned, stages_of
from everytoken.provenance import ProvenanceError
from everytoken.provenance.releases import (
    MANIFEST_FOLDER,
    DescribedRun,
    ReleaseStatistics,
    Stage,
    Withheld,
    find_withheld_ids,
    held_out_manifest_part,
    licences_of,
    manifest_part,
    origins_of,
    parameters_of,
    parts_with_text,
    recipe_of,
    release_metrics,
    require_made_by,
    require_plan,
    stored_by,
    upstream_of,
    withheld_of,
    write_release,
)
from everytoken.reflections.published import released_reflections
from everytoken.shards import Artifact, Shards, canonical_json, plan_artifact
from everytoken.tokens.streams import released_kinds

logger = logging.getLogger(__name__)


def list_withheld_ids(scored_documents: Shards, exclusions: Shards) -> Shards:
    """Find the ids that would show text of their documents, as long titles do, or are of documents taken down."""
    return scored_documents.zip(exclusions).reduce(find_withheld_ids)


def list_annotated(documents: Shards, tokens: Shards, exclusions: Shards, withheld_ids: Shards) -> Shards:
    """List the annotated documents: address, score, hash of the text, length; no text."""
    zipped = documents.zip(tokens, exclusions)
    return zipped.map(manifest_part, withheld=_withheld(withheld_ids), **_second_scores(documents))


def list_unannotated(documents: Shards, tokens: Shards, exclusions: Shards, withheld_ids: Shards) -> Shards:
    """List the unannotated documents in the same way."""
    zipped = documents.zip(tokens, exclusions)
    return zipped.map(manifest_part, withheld=_withheld(withheld_ids), **_second_scores(documents))


def list_held_out(documents: Shards, withheld_ids: Shards) -> Shards:
    """List the held-out documents, which are in no stream."""
    return documents.map(held_out_manifest_part, withheld=_withheld(withheld_ids), **_second_scores(documents))


def _second_scores(documents: Shards) -> dict[str, list[str]]:
    """Return the parameter of `manifest_part` for documents that have second scores; nothing for others."""
    names = [field.name for part in documents.parts[:1] for field in second_score_fields(part.schema)]
    return {"second": names} if names else {}


def list_released_reflections(
    columns: Shards | None,
    annotated_stream: Artifact,
    tokenizer: Artifact,
    tokenization: TokenizationParameters,
    ingestion: IngestionParameters,
    parameters: ReleaseParameters,
) -> Shards:
    """List the reflections on texts that the release may hold whole, without those that quote them; none of no run."""
    licences = licences_of(list(ingestion.active_sources), parameters.licences)
    sources = sorted(source for source, licence in licences.items() if licence.text == "all")
    listed = Shards.from_values([], []) if columns is None or not sources else columns
    return listed.map(
        released_reflections,
        stream=annotated_stream,
        run="reflections",
        rules=tokenization.encoding_rules(tokenizer),
        sources=sources,
        quotes=parameters.reflections.quotes,
    )


def description_of(job: DescribedJob) -> Callable[..., DescribedRun]:
    """Return the function of a node that describes the job."""

    def describe_job(release: ReleaseParameters, **datasets: Any) -> DescribedRun:
        """Check that every dataset is what its stage plans now; return the recipe, and the streams that are left out.

        Streams that only some jobs have are left out when they were not made, or from other documents, tokens or
        parameters; ``left_out`` says why.
        """
        values, plans, stages = job.values(datasets), job.plans(datasets), stages_of(job.making)
        sources = values["params:ingestion"].active_sources
        licences_of(list(sources), release.licences)  # before hours of work, not after
        origins_of(sources, release.sources)
        require_plan(values["shard_plan"], values["params:ingestion"].plan)
        require_made_by(stages, plans, values)
        left_out: dict[str, str] = {}
        for stream, nodes in job.on_request.items():
            more = stages_of(nodes)
            try:
                _require_planned(more, plans, values)
                require_made_by(more, plans, values)
            except ProvenanceError as error:
                left_out[stream] = str(error)
                if values[stream] is not None:
                    logger.warning("warning: %s is not released: %s", stream, error)
            else:
                stages += more
        recipe = recipe_of(parameters_of(stages, values), stored_by(stages, values), values["tokenizer"])
        return {"recipe": recipe, "left_out": left_out}

    return describe_job


def _require_planned(stages: Sequence[Stage], plans: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    if missing := [stage.dataset for stage in stages if values[stage.dataset] is None]:
        raise ProvenanceError(f"{missing[0]} has not been made")
    if refused := [plans[stage.dataset] for stage in stages if isinstance(plans[stage.dataset], NotPlanned)]:
        raise ProvenanceError(refused[0].reason)


def assemble_release(
    job: DescribedRun,
    plan: ShardPlan,
    annotated_manifest: Shards,
    unannotated_manifest: Shards,
    held_out_manifest: Shards,
    annotated: Shards,
    unannotated: Shards,
    held_out: Shards,
    upstream_documents: Shards,
    withheld_ids: Shards,
    classifications: Artifact,
    reflections: Shards,
    tokenizer: Artifact,
    ingestion: IngestionParameters,
    parameters: ReleaseParameters,
    *made: Artifact | None,
) -> Artifact:
    """Gather everything that rebuilds the corpus; texts only where a licence allows them."""
    licences = licences_of(list(ingestion.active_sources), parameters.licences)
    origins = origins_of(ingestion.active_sources, parameters.sources)
    manifests = {"annotated": annotated_manifest, "unannotated": unannotated_manifest, "held_out": held_out_manifest}
    documents = {"annotated": annotated, "unannotated": unannotated, "held_out": held_out}
    rescued = {source for source, licence in licences.items() if licence.text == "rescue"}
    by_part = zip(shards_by_part(plan), upstream_documents, strict=True)
    return plan_artifact(
        write_release,
        pretty_name=parameters.pretty_name,
        languages=parameters.languages,
        homepage=parameters.homepage,
        licences=licences,
        recipe=canonical_json(job["recipe"]).encode(),
        upstream=canonical_json(upstream_of(ingestion.active_sources, licences, origins, plan)).encode(),
        manifests=manifests,
        texts={split: parts_with_text(documents[split], manifests[split], licences) for split in documents},
        upstream_documents=Shards(tuple(part for shards, part in by_part if shards[0]["source"] in rescued)),
        withheld=_withheld(withheld_ids),
        classifications=classifications,
        tokenizer=tokenizer,
        streams={
            kind.name: stream
            for kind, stream in zip(released_kinds(), made, strict=True)
            if stream is not None and kind.dataset in job["recipe"]["datasets"]
        },
        memory=parameters.memory,
        **({"reflections": reflections} if len(reflections) else {}),
    )


def report_release(
    release: Artifact, job: DescribedRun, parameters: ReleaseParameters
) -> tuple[dict[str, object], dict[str, object]]:
    """Return what the release holds, its sizes, licences, and the digest that stands for all of it; and metrics."""
    sizes: Counter[str] = Counter()
    for name, entry in release.ledger["files"].items():
        sizes[name.split("/")[0]] += entry["bytes"]
    held = release.statistics_as(ReleaseStatistics)
    ingestion = IngestionParameters.model_validate(job["recipe"]["parameters"]["ingestion"])
    licences = licences_of(list(ingestion.active_sources), parameters.licences)
    report = {
        "digest": held["sums_sha256"],
        "documents": held["rows"],
        "bytes": release.bytes,
        "bytes_by_name": dict(sorted(sizes.items())),
        "manifest_bytes_per_document": sizes[MANIFEST_FOLDER] / max(1, held["rows"]),
        "by_split": held["by_split"],
        "texts_given": held["rescued"],
        "classifications": held["classifications"],
        "licences": {source: licence.model_dump(mode="json") for source, licence in licences.items()},
        "streams_left_out": job["left_out"],
    }
    logger.info(
        "release: %s documents, %.1f MB, digest %s, in %s; rebuild it with kedro run --env replay --params %s",
        f"{held['rows']:,}",
        release.bytes / 1e6,
        held["sums_sha256"],
        *_place(release),
    )
    return report, release_metrics(release)


def _place(release: Artifact) -> tuple[str, str]:
    """Return the folder of a release as one types it here, and the parameter that replays it."""
    folder = release.folder
    assert folder is not None, "releases are loaded from a store"
    shown = str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)
    return shown, shlex.quote(f"replay.release={shown}")


def _withheld(withheld_ids: Shards) -> Withheld:
    return withheld_of(pair for part in withheld_ids.values for pair in part["ids"])
