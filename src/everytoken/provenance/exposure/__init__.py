"""Exposure: from a document or a phrase to the steps that trained on it."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.exposure.counts import Held, exposures_of, windows_holding
    from everytoken.provenance.exposure.phrases import document_exposure
    from everytoken.provenance.exposure.questions import Questions
    from everytoken.provenance.exposure.unused_documents import Unused, unused_at, unused_with_id

__getattr__, __dir__ = exports(__name__, __file__)
