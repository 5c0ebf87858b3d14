"""The page of a generation run: what was made, and windows with their reflections."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.report.page import reflections_page
    from everytoken.reflections.report.windows_as_texts import (
        SHOWN_WINDOWS,
        ReflectedWindow,
        reflected_windows,
        reflection_lengths,
    )

__getattr__, __dir__ = exports(__name__, __file__)
