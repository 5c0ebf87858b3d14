"""The command ``everytoken`` (and the project commands of ``kedro``): what Kedro itself does not give."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import click


@click.group()
def cli() -> None:
    """Language-model training data, exact to the token."""


@cli.command()
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
def summary(env: str | None) -> None:
    """Print documents, tokens and digests at each stage, and where to look next."""
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project

    logging.disable(logging.INFO)
    project = Path.cwd()
    if not (project / "pyproject.toml").exists():
        raise click.ClickException(f"{project} is no Kedro project; run this where pyproject.toml is")
    bootstrap_project(project)
    with KedroSession.create(project_path=project, env=env) as session:
        catalog = cast(KedroSession, session).load_context().catalog
        click.echo("\n".join(_lines(catalog, "" if env is None else f" --env {env}")))


# dataset, what is counted, the metric that counts its tokens, and what kind of count that is
_STAGES = (
    ("documents", "documents", None, ""),
    ("scored_documents", "documents", None, ""),
    ("annotated_documents", "documents", ("subsampling_metrics", "estimated_tokens", "annotated"), " est."),
    ("unannotated_documents", "documents", ("subsampling_metrics", "estimated_tokens", "unannotated"), " est."),
    ("held_out_documents", "documents", ("subsampling_metrics", "estimated_tokens", "held_out"), " est."),
    ("tokenizer", None, None, ""),
    ("annotated_tokens", "documents", ("tokenization_metrics", "annotated", "tokens"), ""),
    ("unannotated_tokens", "documents", ("tokenization_metrics", "unannotated", "tokens"), ""),
    ("annotated_stream", "windows", ("tokenization_metrics", "annotated_stream", "tokens"), ""),
    ("compact_stream", "windows", ("tokenization_metrics", "compact_stream", "tokens"), ""),
    ("checkpoint", None, ("training_metrics", "tokens"), ""),
    ("held_out_evaluation", None, None, ""),
)


def _lines(catalog: Any, env: str) -> Iterator[str]:
    yield f"{'stage':<24}{'rows':>22}{'tokens':>16}  digest"
    missing = []
    for name, unit, tokens, kind in _STAGES:
        if not catalog.exists(name):
            missing.append(name)
            continue
        held = catalog.get(name).ledger_summary()
        rows = f"{held['rows']:,} {unit}" if unit else ""
        count = _metric(catalog, tokens) if tokens else None
        yield f"{name:<24}{rows:>22}{'' if count is None else f'{count:,.0f}{kind}':>16}  {held['root_digest'][:16]}"
    if missing:
        yield f"not made yet: {', '.join(missing)} (kedro run{env})"
    if catalog.exists("evaluation_metrics"):
        yield from _bits_per_byte(catalog.load("evaluation_metrics"))
    yield ""
    yield "where to look next"
    yield f"  kedro viz run{env}           the graph, with previews of every dataset"
    yield "  mlflow server --backend-store-uri sqlite:///mlflow.db     every run with its seeds, parameters and digests"


def _metric(catalog: Any, path: tuple[str, ...]) -> float | None:
    if not catalog.exists(path[0]):
        return None
    value = catalog.load(path[0])
    for key in path[1:]:
        value = value[key]
    return float(value)


def _bits_per_byte(metrics: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{'held-out bits per byte':<24}{'documents':>12}{'unigram model':>16}{'trained model':>16}"
    by_source = metrics["by_source"]
    for name, figures in [*sorted(by_source.items()), ("all sources", metrics["total"])]:
        yield (
            f"{name:<24}{figures['documents']:>12,}{figures['unigram_bits_per_byte']:>16.3f}"
            f"{figures['bits_per_byte']:>16.3f}"
        )
