"""Charts as SVG elements inside a page: curves and bars, without a script.

Colours are classes (``c0`` to ``c7``, ``axis``, ``label``) that the style of the page gives, one palette for a light
and one for a dark page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from everytoken.html_pages import Markup, element

PALETTE = 8
_WIDTH, _HEIGHT = 720, 260
_LEFT, _TOP, _BOTTOM = 64, 12, 40
_KEY_ROW = 18
_MOST_POINTS = 400
_TICKS = 5

CurvePoints = Sequence[tuple[float, float]]


def line_chart(curves: Mapping[str, CurvePoints], x: str, y: str) -> Markup:
    """Return curves by name.

    Args:
        curves: points in the order of x; of a long curve every n-th point is drawn, and the last.
        x: what the horizontal axis shows, with its unit; ``y`` likewise.
    """
    drawn = {name: _thinned(points) for name, points in curves.items() if points}
    everything = [point for points in drawn.values() for point in points]
    low_x, high_x = _bounds([point[0] for point in everything])
    low_y, high_y = _bounds([point[1] for point in everything])

    def place(point: tuple[float, float]) -> str:
        across = _LEFT + (point[0] - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - 8)
        return f"{across:.1f},{_up(point[1], low_y, high_y):.1f}"

    lines = []
    for number, points in enumerate(drawn.values()):
        kind = f"line c{number % PALETTE}"
        lines.append(element("polyline", points=" ".join(map(place, points)), fill="none", **{"class": kind}))
    ticks = [*_vertical_ticks(low_y, high_y), *_horizontal_ticks(low_x, high_x)]
    return _chart([*ticks, *lines], list(drawn), x, y)


def bar_chart(groups: Mapping[str, Mapping[str, float]], y: str) -> Markup:
    """Return bars from zero: a group for each name, in it a bar for each series; all groups have the same series."""
    series = list(dict.fromkeys(name for values in groups.values() for name in values))
    high = max((value for values in groups.values() for value in values.values()), default=0.0) or 1.0
    across = (_WIDTH - _LEFT - 8) / max(1, len(groups))
    bars = []
    for place, (name, values) in enumerate(groups.items()):
        left, width = _LEFT + place * across + across * 0.1, across * 0.8 / max(1, len(series))
        for number, one in enumerate(series):
            top = _up(values.get(one, 0.0), 0.0, high)
            where = {"x": f"{left + number * width:.1f}", "y": f"{top:.1f}", "width": f"{width * 0.92:.1f}"}
            told = element("title", f"{name}, {one}: {values.get(one, 0.0):.4g}")
            height = f"{_HEIGHT - _BOTTOM - top:.1f}"
            bars.append(element("rect", told, height=height, **where, **{"class": f"bar c{number % PALETTE}"}))
        middle = f"{left + across * 0.4:.1f}"
        shown = name if len(name) <= 18 else f"{name[:17]}…"
        bars.append(_label(shown, middle, _HEIGHT - _BOTTOM + 16, "middle"))
    return _chart([*_vertical_ticks(0.0, high), *bars], series, "", y)


def _chart(drawn: Sequence[Markup], names: Sequence[str], x: str, y: str) -> Markup:
    parts = [*drawn, _label(x, str(_WIDTH - 8), _HEIGHT - 6, "end"), _label(y, "0", 10, "start")]
    place, row = 0.0, 0
    for number, name in enumerate(names):
        width = 26 + 7.2 * len(name)
        if place and place + width > _WIDTH:
            place, row = 0.0, row + 1
        top = _HEIGHT + 4 + row * _KEY_ROW
        where = {"x": f"{place:.0f}", "y": str(top), "width": "12", "height": "12"}
        parts += [
            element("rect", **where, **{"class": f"bar c{number % PALETTE}"}),
            _label(name, f"{place + 18:.0f}", top + 11, "start"),
        ]
        place += width
    height = _HEIGHT + (row + 1) * _KEY_ROW + 8
    return element("svg", *parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", **{"aria-label": y, "class": "chart"})


def _vertical_ticks(low: float, high: float) -> Iterator[Markup]:
    for number in range(_TICKS):
        value = low + (high - low) * number / (_TICKS - 1)
        up = _up(value, low, high)
        where = {"x1": str(_LEFT), "x2": str(_WIDTH - 8), "y1": f"{up:.1f}", "y2": f"{up:.1f}"}
        yield element("line", **where, **{"class": "axis"})
        yield _label(_short(value), str(_LEFT - 8), up + 4, "end")


def _horizontal_ticks(low: float, high: float) -> Iterator[Markup]:
    for number in range(_TICKS):
        value = low + (high - low) * number / (_TICKS - 1)
        across = _LEFT + (_WIDTH - _LEFT - 8) * number / (_TICKS - 1)
        yield _label(_short(value), f"{across:.1f}", _HEIGHT - _BOTTOM + 16, "end" if number else "start")


def _label(text: str, x: str, y: float, anchor: str) -> Markup:
    return element("text", text, x=x, y=f"{y:.1f}", **{"text-anchor": anchor, "class": "label"})


def _up(value: float, low: float, high: float) -> float:
    return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _BOTTOM - _TOP - 8)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _thinned(points: CurvePoints) -> CurvePoints:
    stride = -(-len(points) // _MOST_POINTS)
    return points if stride <= 1 else [*points[:-1:stride], points[-1]]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
