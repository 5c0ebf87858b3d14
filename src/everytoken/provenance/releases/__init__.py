"""A corpus without its text, in a folder that rebuilds it: how it is written and how it is read."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.releases.checksums import CHECKSUMS_FILE, window_checksums, write_window_checksums
    from everytoken.provenance.releases.manifest import (
        MANIFEST,
        SECOND_SCORES,
        WITHHELD,
        Withheld,
        find_withheld_ids,
        held_out_manifest_part,
        manifest_part,
        manifest_schema,
        withheld_of,
    )
    from everytoken.provenance.releases.parameters import Licence, Origin, WebLink
    from everytoken.provenance.releases.published import origins_of
    from everytoken.provenance.releases.recipe_file import (
        DescribedRun,
        recipe_of,
        require_made_as_planned,
        require_plan,
        upstream_of,
        versions,
    )
    from everytoken.provenance.releases.release import (
        BOUNDARIES_FILE,
        CLASSIFICATIONS_FOLDER,
        MANIFEST_FOLDER,
        RECIPE_FILE,
        REFLECTIONS_FOLDER,
        RELEASE_FORMAT,
        RESCUE_FOLDER,
        SPLITS,
        STREAMS_FILE,
        SUMS_FILE,
        TOKENIZER_PATH,
        UPSTREAM_FILE,
        VERIFICATION_FOLDER,
        Release,
        open_release,
        read_sums,
    )
    from everytoken.provenance.releases.released_reflections import why_not_rebuilt
    from everytoken.provenance.releases.released_texts import find_shared_ids
    from everytoken.provenance.releases.roots import guarded_upstreams, is_readable, without_foreign_places
    from everytoken.provenance.releases.stages import (
        PARAMETERS,
        Stage,
        datasets_of,
        parameters_of,
        require_made_by,
        stored_by,
    )
    from everytoken.provenance.releases.untrusted import (
        MOST_BYTES,
        parse_object,
        read_bounded,
        require_inside,
        require_path,
        require_regular,
    )
    from everytoken.provenance.releases.writing import (
        ReleaseStatistics,
        licences_of,
        parts_with_text,
        release_metrics,
        write_release,
    )

__getattr__, __dir__ = exports(__name__, __file__)
