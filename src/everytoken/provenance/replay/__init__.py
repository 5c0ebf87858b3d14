"""Replay: the manifest of a release and its upstream give the documents of every split again, row for row.

Read in this order: `manifest_files` (what is replayed), `moved` (is the upstream still the one that was released),
`locate` (documents at their addresses), `match` (those that are elsewhere), `report` (what is missing, and whether that
is allowed), `restore` (the documents in the order of the manifest). Every module is imported by its own name.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.replay.contradictions import (
        CONTRADICTORY,
        find_contradictions,
        require_no_contradictions,
    )
    from everytoken.provenance.replay.locate import locate_part
    from everytoken.provenance.replay.manifest_files import (
        is_release,
        manifest_parts,
        require_manifest,
        rescue_files,
        second_scores_of,
        split_rows,
    )
    from everytoken.provenance.replay.match import match_rows
    from everytoken.provenance.replay.parameters import (
        listed_roots,
        named_release,
        rebuilding_pipelines,
        require_released,
        with_released_parameters,
    )
    from everytoken.provenance.replay.replayed_release import keep_to_release
    from everytoken.provenance.replay.report import (
        MOVED,
        ReplayMetrics,
        ReplayReport,
        allowing,
        replay_report,
        require_allowed,
        require_unmoved,
    )
    from everytoken.provenance.replay.restore import find_tombstones, restore_part
    from everytoken.provenance.replay.upstream_drift import UpstreamChange, cover_moved_files, released_plan
    from everytoken.provenance.replay.verification import StreamCheck, compare_streams, require_checks_hold
    from everytoken.provenance.replay.whole import require_whole

__getattr__, __dir__ = exports(__name__, __file__)
