"""Types of previews: Kedro-Viz shows one as its type is named."""

from typing import Any, NewType

JSONPreview = NewType("JSONPreview", str)
TablePreview = NewType("TablePreview", dict[str, Any])
PlotlyPreview = NewType("PlotlyPreview", dict[str, Any])
