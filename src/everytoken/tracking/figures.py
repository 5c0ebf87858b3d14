"""All Plotly figures of a run as one HTML page that works without a network.

MLflow shows an HTML artifact in a sandboxed frame that can load nothing beside it, so plotly.js (4.8 MB) has
to be in the page; one page for all figures holds it once. (``MlflowClient.log_figure`` points to a CDN: an
empty frame offline.)
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any


def is_figure(data: Any) -> bool:
    """Tell whether ``data`` is a Plotly figure, without importing plotly."""
    return type(data).__module__.partition(".")[0] == "plotly" and hasattr(data, "to_plotly_json")


def figure_fragment(name: str, figure: Any) -> str:
    """Return one figure as a heading and a ``<div>`` with its data."""
    body = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name)  # a given id: the same bytes each time
    return f"<h2>{html.escape(name)}</h2>\n{body}\n"


def figure_page(title: str, fragments: Mapping[str, str]) -> str:
    """Return the page of all figures, in the order of their names."""
    from plotly.offline import get_plotlyjs

    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        "<style>body { font-family: sans-serif; margin: 2em; } h2 { font-weight: normal; }</style>\n"
        f"<script>{get_plotlyjs()}</script></head>\n<body>\n"
        + "".join(fragments[name] for name in sorted(fragments))
        + "</body></html>\n"
    )
