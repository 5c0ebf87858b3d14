"""Trace: from a token of a batch to the document that it came from."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.trace.batch_page import write_batch_page
    from everytoken.provenance.trace.batch_picture import write_batch_picture
    from everytoken.provenance.trace.spans import NumberedSpan, ReflectionSpan, TextSpan
    from everytoken.provenance.trace.steps import TracedSequence, token_at, trace_step, trace_window
    from everytoken.provenance.trace.windows import is_only, require_cut, require_same_ids, require_same_length

__getattr__, __dir__ = exports(__name__, __file__)
