"""Whether a release is whole, agrees with itself, and is what given streams were made of."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.verification.indexes import index_checks, is_index, stored_around
    from everytoken.provenance.verification.published_files import PublishedStreams
    from everytoken.provenance.verification.published_streams import published_checks
    from everytoken.provenance.verification.reflected_streams import is_reflected, splice_checks
    from everytoken.provenance.verification.releases import (
        each_release_check,
        find_streams,
        is_meant_as_release,
        release_checks,
    )

__getattr__, __dir__ = exports(__name__, __file__)
