"""Figures on a light and a dark page, in a real browser; and what they say."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from everytoken.reports import (
    bits_per_byte_figure,
    ingestion_figure,
    memorisation_figure,
    mixture_figure,
    score_figure,
    source_colours,
    tokenization_figure,
    training_figure,
)
from tests.corpus.scoring.browser import browser_page
from tests.shards.children import wait_until

_BY_SOURCE: dict[str, Any] = {
    "wiki": {"characters": 30, "bits_per_byte": 2.0, "unigram_bits_per_byte": 3.0},
    "chats": {"characters": 70, "bits_per_byte": 1.5, "unigram_bits_per_byte": 2.5},
}
_SCORES = [
    {"source": source, "class": k, "rows": 5 - k, "once": 5 - k} for source in ("wiki", "chats") for k in range(5)
]
_SERIES = {
    "step": [0, 1, 2],
    "loss": [3.0, 2.5, 2.0],
    "held_out_bits_per_byte.wiki": [2.2, 2.1, 2.0],
    "held_out_bits_per_byte.chats": [1.8, 1.7, 1.5],
    "held_out_bits_per_byte": [2.0, 1.9, 1.7],
}
_MEMORISED: dict[str, Any] = {
    "controls": {"trigger_exposure_quantile": 4.2},
    "conditions": [
        {"condition": "red_frac0", "trigger": {"exposure": 8.0}, "continuation": {"exposure": 3.0}},
        {"condition": "sea", "trigger": None, "continuation": {"exposure": 1.0}},
    ],
    "facts": [
        {"fraction": fraction, "injected": injected, "recalled": float(injected)}
        for fraction in (None, 0.0)
        for injected in (True, False)
    ],
}
_SPLITS = ("before", "annotated", "unannotated", "held_out")
_STRATA = [
    {
        "group": group,
        "source": name,
        "safety_score": number,
        "share_before": 0.5,
        "share_after": 0.5,
        "intended_share": None,
        **{f"{split}_tokens": 10.0 for split in _SPLITS},
    }
    for group, names in (("source", ("wiki", "chats")), ("score", range(6)))
    for number, name in enumerate(names)
]
_TOKENS = pd.DataFrame(
    [
        {"split": split, "group": group, group: name, "utf8_bytes": 9, "tokens_per_byte": 0.25, "documents": 3}
        | {"chars_per_token": 4.0, "share_at_cap": 0.0}
        for split in ("annotated", "both")
        for group, name in (("source", "wiki"), ("band", "nearly_ascii"))
    ]
)
_FIGURES: dict[str, Callable[[], Any]] = {
    "ingestion": lambda: ingestion_figure({"05": 3.0, "06": 4.0}, _BY_SOURCE, None),
    "scores": lambda: score_figure(_SCORES),
    "mixture": lambda: mixture_figure(_STRATA),
    "tokens": lambda: tokenization_figure(_TOKENS, {"annotated": [0, 2, 1]}),
    "training": lambda: training_figure(_SERIES),
    "held out": lambda: bits_per_byte_figure(_BY_SOURCE),
    "memorisation": lambda: memorisation_figure(_MEMORISED),
}


@pytest.mark.parametrize("name", _FIGURES)
def test_a_figure_has_a_title_a_sentence_and_units(name: str) -> None:
    layout = _FIGURES[name]().to_plotly_json()["layout"]
    title, _, sentence = layout["title"]["text"].partition("<br><sub>")
    assert title and sentence.endswith(".</sub>")
    assert any(key.startswith("yaxis") and layout[key].get("title", {}).get("text") for key in layout)


@pytest.mark.parametrize("name", _FIGURES)
def test_titles_of_panels_are_below_the_sentence_whatever_the_margins_are(name: str) -> None:
    layout = _FIGURES[name]().layout
    axes = [value for key, value in layout.to_plotly_json().items() if key.startswith("yaxis") and "domain" in value]
    assert all(axis["domain"][1] <= 0.93 for axis in axes)
    assert all(panel.y <= 0.93 for panel in layout.annotations)


def test_the_figure_of_a_training_counts_steps_that_are_done() -> None:
    figure = _FIGURES["training"]()
    assert {tuple(line.x) for line in figure.data} == {(1, 2, 3)}, "the log says 3 of 3 steps"
    assert figure.layout.xaxis.title.text == "after so many steps"


def test_a_source_has_one_colour_in_all_figures() -> None:
    colours = source_colours(["wiki", "chats"])
    scores = {bar.name: bar.marker.color for bar in _FIGURES["scores"]().data}
    curves = {line.name: line.line.color for line in _FIGURES["training"]().data if line.name in colours}
    mixture = {bar.name: bar.marker.color for bar in _FIGURES["mixture"]().data}
    assert {source: mixture.pop(source) for source in colours} == colours
    assert not {*mixture.values()} & {*colours.values()}, "the colour of a source means nothing else"
    bars = next(bar for bar in _FIGURES["ingestion"]().data if bar.name == "share of characters")
    assert scores == curves == dict(zip(bars.x, bars.marker.color, strict=True)) == colours


@pytest.mark.sensitive
@pytest.mark.parametrize("name", ["training", "tokens"])
def test_the_grid_is_seen_and_not_white_on_a_light_and_on_a_dark_page(tmp_path: Path, name: str) -> None:
    image = pytest.importorskip("PIL.Image", reason="screenshots are PNG")
    with browser_page(tmp_path) as page:
        for theme, ground, text in (("light", 255, "#333333"), ("dark", 17, "#bbbbbb")):
            figure = _FIGURES[name]().update_layout(font_color=text)
            file = tmp_path / f"{theme}.html"
            body = figure.to_html(full_html=False, include_plotlyjs=True, config={"displayModeBar": False})
            file.write_text(f'<body style="margin: 0; background: rgb({ground}, {ground}, {ground})">{body}</body>')
            page.open(file)
            drawn = "document.querySelectorAll('.gridlayer path').length"
            wait_until(lambda seen=drawn: page.evaluate(seen) > 4, "the figure is not drawn")
            pixels = np.asarray(image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)
            greys = pixels[(pixels.max(2) - pixels.min(2)) <= 2][:, 0]  # ground, grid and text
            grid = greys[(abs(greys - ground) > 20) & (abs(greys - ground) < 70)]
            assert len(grid) > 1_000, f"the grid is seen on a {theme} page"
            if theme == "dark":
                assert (greys > 225).sum() == 0, "nothing is white"
