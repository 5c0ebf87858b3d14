"""Documents that are taken down: which they are, and what that changes."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.takedown.exclusion_lists import (
        LISTS_FOLDER,
        as_yaml,
        is_told,
        list_of_run,
        list_path,
        list_told,
        put_in_force,
        remember,
        require_in_force,
        sole_take_down,
    )
    from everytoken.provenance.takedown.exclusion_report import (
        Before,
        compare_after,
        document_index,
        finish,
        note_before,
        noted_before,
        rebuilt_kinds,
        stream_indexes,
    )
    from everytoken.provenance.takedown.exclusion_request import (
        ExcludedDocument,
        InForce,
        Request,
        Revocation,
        Wanted,
        find_documents,
        find_revoked,
        list_in_force,
        read_wanted,
    )
    from everytoken.provenance.takedown.forgotten_reflections import (
        follow_take_down,
        forget_reflections,
        reflected_faults,
        runs_to_merge_again,
    )
    from everytoken.provenance.takedown.former_indexes import keep_indexes

__getattr__, __dir__ = exports(__name__, __file__)
