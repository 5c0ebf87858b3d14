"""Diff: two builds or releases compared, by document, stream and parameter."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.diff.builds import diff_builds
    from everytoken.provenance.diff.document_differences import compare_documents

__getattr__, __dir__ = exports(__name__, __file__)
