"""The command ``everytoken`` (and the project commands of ``kedro``): what Kedro itself does not give."""

from __future__ import annotations

import sys
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
    from kedro.framework.project import pipelines
    from kedro.framework.session import KedroSession
    from kedro.framework.startup import bootstrap_project

    project = Path.cwd()
    if not (project / "pyproject.toml").exists():
        raise click.ClickException(f"{project} is no Kedro project; run this where pyproject.toml is")
    bootstrap_project(project)
    with KedroSession.create(project_path=project, env=env) as session:
        catalog = cast(KedroSession, session).load_context().catalog
        click.echo("\n".join(_lines(catalog, pipelines["__default__"], "" if env is None else f" --env {env}")))


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


def _lines(catalog: Any, pipeline: Any, env: str) -> Iterator[str]:
    yield f"{'stage':<24}{'rows':>22}{'tokens':>16}  digest"
    missing = []
    for name, unit, tokens, kind in _STAGES:
        if not catalog.exists(name):
            missing.append(name)
            continue
        held = catalog.get(name).ledger_summary()
        rows = f"{held['rows']:,} {unit}" if unit else ""
        count = _metric(catalog, tokens) if tokens else None
        older = _inputs_made_anew(name, catalog, pipeline)
        note = f"  made from another {' and '.join(older)}" if older else ""
        amount = "" if count is None else f"{count:,.0f}{kind}"
        yield f"{name:<24}{rows:>22}{amount:>16}  {held['root_digest'][:16]}{note}"
    if missing:
        yield f"not made yet: {', '.join(missing)} (kedro run{env})"
    if catalog.exists("evaluation_metrics"):
        yield from _bits_per_byte(catalog.load("evaluation_metrics"))
    yield ""
    commands = Path(sys.executable).parent
    here = f"{commands.relative_to(Path.cwd())}/" if commands.is_relative_to(Path.cwd()) else ""
    yield "where to look next"
    yield f"  {here}kedro viz run{env}"
    yield "      the graph, with a preview of every dataset"
    yield f"  {here}mlflow server --backend-store-uri sqlite:///mlflow.db --host 127.0.0.1"
    yield "      http://127.0.0.1:5000/#/experiments/1/runs: every run with seeds, parameters and digests, to compare"


def _inputs_made_anew(name: str, catalog: Any, pipeline: Any) -> list[str]:
    """Return the inputs of a dataset that now hold something else than what it was made from."""
    (node,) = pipeline.only_nodes_with_outputs(name).nodes
    made_anew = []
    for source in node.inputs:
        dataset = catalog.get(source)
        if hasattr(dataset, "part_digests") and catalog.exists(source):
            content = dataset.ledger_summary()["root_digest"], dataset.part_digests()
            if not catalog.get(name).is_made_from(*content):
                made_anew.append(source)
    return made_anew


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
