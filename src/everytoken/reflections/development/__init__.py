"""Prompt development: first versions, replies judged by a rubric, better versions, and their comparison."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.development.candidates import (
        Candidate,
        Trial,
        development_of,
        try_candidate,
        versioned_builder,
    )
    from everytoken.reflections.development.comparison import (
        Ranking,
        VersionFigures,
        figures_of,
        rank_versions,
    )
    from everytoken.reflections.development.improving import EVAL, Improvement, improve_prompt
    from everytoken.reflections.development.page import ranking_lines, versions_page
    from everytoken.reflections.development.samples import sampled_rows
    from everytoken.reflections.development.scores import DIMENSIONS, Judgement, parse_judgement
    from everytoken.reflections.development.seeding import seed_prompt

__getattr__, __dir__ = exports(__name__, __file__)
