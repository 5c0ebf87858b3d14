"""Replay: the files of then, the documents in them, where those of the manifest are, and the splits again."""

from pathlib import Path

from everytoken.address import Address, file_of
from everytoken.corpus import NOTHING_EXPECTED, ExpectParameters
from everytoken.corpus.ingestion import (
    Guarded,
    MayBeGone,
    ShardPlan,
    Upstream,
    make_shard_plan,
    read_shards,
    shards_by_part,
)
from everytoken.corpus.sampling import SubsamplingParameters
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.parameters import IngestionParameters, ReplayParameters
from everytoken.provenance import ProvenanceError
from everytoken.provenance.releases import SPLITS, guarded_upstreams, open_release
from everytoken.provenance.replay import (
    CONTRADICTORY,
    MOVED,
    ReplayMetrics,
    ReplayReport,
    UpstreamChange,
    allowing,
    cover_moved_files,
    find_contradictions,
    find_tombstones,
    is_release,
    locate_part,
    manifest_parts,
    match_rows,
    released_plan,
    replay_report,
    require_allowed,
    require_manifest,
    require_no_contradictions,
    require_released,
    require_unmoved,
    rescue_files,
    restore_part,
    second_scores_of,
    split_rows,
)
from everytoken.shards import Artifact, Shards, plan_artifact


def find_upstreams(
    replay: ReplayParameters, ingestion: IngestionParameters
) -> dict[str, Upstream | Guarded | MayBeGone]:
    """Return where each source is read: its own upstream, or the other place that the replay is given; say so.

    Where files may have moved, all of a source may be gone: its documents are looked for in the rest then.
    """
    folder = Path(replay.release)
    upstreams = guarded_upstreams(
        _upstreams(replay, ingestion),
        replay.upstreams or {},
        open_release(folder) if is_release(folder) else None,
        replay.allow_roots,
    )
    if MOVED in replay.allow and is_release(Path(replay.release)):
        return {name: MayBeGone(upstream) for name, upstream in upstreams.items()}
    return dict(upstreams)


def _upstreams(replay: ReplayParameters, ingestion: IngestionParameters) -> dict[str, Upstream]:
    folder = Path(replay.release)
    require_manifest(folder)
    if is_release(folder):
        require_released(open_release(folder), "ingestion", ingestion.model_dump(mode="json"))
    given = replay.upstreams or {}
    if unknown := sorted(set(given) - set(ingestion.active_sources)):
        raise ProvenanceError(
            f"replay.upstreams names {unknown}, the sources are {sorted(ingestion.active_sources)}. Correct the names"
        )
    return {name: given.get(name, source.upstream) for name, source in ingestion.active_sources.items()}


def check_contradictions(
    replay: ReplayParameters,
    ingestion: IngestionParameters,
    subsampling: SubsamplingParameters,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> Artifact:
    """Find the rows of the manifest that contradict themselves, the file that they are in, or each other.

    A published manifest has as many rows as are expected, or nothing is read.
    """
    parts = manifest_parts(Path(replay.release))
    if not is_release(Path(replay.release)):
        rows = split_rows(parts)
        expect.require(annotated_rows=rows["annotated"], unannotated_rows=rows["unannotated"])
    mixture = ingestion.active_mixture
    return plan_artifact(
        find_contradictions,
        values=parts.values,
        digests=[part.digest for part in parts],
        threshold=subsampling.annotation_threshold,
        is_used_once=mixture is None or all(times == 1 for times in mixture.allow_repeat.values()),
        memory=replay.memory,
    )


def take_plan(
    files: dict[str, list[UpstreamFile]],
    replay: ReplayParameters,
    ingestion: IngestionParameters,
    expect: ExpectParameters = NOTHING_EXPECTED,
) -> tuple[ShardPlan, list[UpstreamChange]]:
    """Take the shard plan of the release, with what has moved since; without one (published format) make it."""
    folder = Path(replay.release)
    if not is_release(folder):
        return make_shard_plan(ingestion.active_sources, files, ingestion.plan, ingestion.reading, expect), []
    may_move = MOVED in replay.allow
    upstreams = _upstreams(replay, ingestion)
    plan, moved = released_plan(open_release(folder), upstreams, files, follow_renamed=may_move)
    if may_move:  # else the run stops here, and no file is fetched only to be counted
        plan = cover_moved_files(plan, moved, ingestion.active_sources, files, ingestion.reading)
    return plan, moved


def read_released_documents(
    plan: ShardPlan,
    files: dict[str, list[UpstreamFile]],
    moved: list[UpstreamChange],
    contradictions: Artifact,
    replay: ReplayParameters,
    ingestion: IngestionParameters,
) -> Shards:
    """Read the documents of the planned shards as ingestion does.

    What has moved, and a manifest that contradicts itself, stops here unless that is allowed.
    """
    require_no_contradictions(contradictions, replay.allow, allowing([CONTRADICTORY], replay.allow))
    require_unmoved(moved, replay.allow, "the dataset upstream_changes")
    return read_shards(
        plan,
        ingestion.active_sources,
        files,
        min_chars=ingestion.min_chars,
        max_bad_share=ingestion.max_bad_share,
        limits=ingestion.reading,
        keep_fetched=ingestion.keep_fetched,
    )


def locate_documents(documents: Shards, plan: ShardPlan, replay: ReplayParameters) -> Shards:
    """Find the document of every row of the manifest at its address."""
    places = [[Address(*file_of(shard), shard["first_row"]) for shard in shards] for shards in shards_by_part(plan)]
    folder = Path(replay.release)
    second = second_scores_of(folder)
    given = {"second": second} if second else {}
    return manifest_parts(folder).map(locate_part, documents=documents, shards=places, **given)


def match_documents(located: Shards, documents: Shards, replay: ReplayParameters) -> Artifact:
    """Find the others by id, or among the rescued texts; say of the rest why not."""
    rescue = rescue_files(Path(replay.release))
    return plan_artifact(
        match_rows,
        located=located,
        documents=documents,
        rescue=rescue,
        rescue_digests=[(file.split, file.sha256) for file in rescue],
        memory=replay.memory,
    )


def report_replay(
    located: Shards,
    matches: Artifact,
    moved: list[UpstreamChange],
    contradictions: Artifact,
    replay: ReplayParameters,
) -> tuple[ReplayMetrics, ReplayReport]:
    """Count the rows by where they were found; list what is missing."""
    return replay_report(located, matches, moved, contradictions, Path(replay.release))


def restore_splits(
    located: Shards,
    documents: Shards,
    matches: Artifact,
    report: ReplayReport,
    replay: ReplayParameters,
    subsampling: SubsamplingParameters,
) -> tuple[Shards, ...]:
    """Put the documents of each split in the order of the manifest; stops when some are missing and may not be."""
    require_allowed(report, replay.allow)
    rescue, estimate = rescue_files(Path(replay.release)), subsampling.held_out
    return tuple(
        located.map(restore_part, split=split, documents=documents, matches=matches, rescue=rescue, estimate=estimate)
        for split in SPLITS
    )


def list_tombstones(located: Shards, matches: Artifact) -> Shards:
    """Name the documents whose place in the streams a tombstone keeps: taken down, or missing and allowed to be."""
    return located.reduce(find_tombstones, matches=matches)
