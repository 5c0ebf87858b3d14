"""What a generator is asked: prompt files, constitution, messages."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.prompts.requests import DocumentRequest, RequestBuilder, SidecarRow, Skipped

__getattr__, __dir__ = exports(__name__, __file__)
