"""Commands for texts: an environment for one's own, labels for their scores, a stream of files of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from everytoken.cli.project import project, project_folder


@click.command("new")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def new_command(name: str, files: tuple[Path, ...]) -> None:
    """Write conf/NAME, the environment of a corpus of FILES: one folder, or files of one.

    A sample of FILES decides vocabulary, windows, scores and steps; the reason is next to each value. Change
    what you like, then run it.

    Example:
      everytoken new mine my_folder
      kedro run --env mine
    """
    import yaml

    from everytoken.new_environment import (
        decide,
        facts_lines,
        look_at,
        require_enough,
        require_new,
        sampled_classes,
        write_environment,
    )

    conf = project_folder() / "conf"
    require_new(conf, name)
    facts = look_at(files)
    require_enough(facts)
    base = yaml.safe_load((conf / "base/parameters_ingestion.yml").read_text(encoding="utf-8"))
    scorer = yaml.safe_load((conf / "base/parameters_annotation.yml").read_text(encoding="utf-8"))["annotation"]
    classes = sampled_classes(facts, scorer["scorer"]) if facts.language == "en" else None
    written = write_environment(conf, name, facts, decide(facts, classes), list(base["ingestion"]["sources"]))
    click.echo("\n".join(facts_lines(facts)))
    click.echo("\nwritten: " + ", ".join(str(path.relative_to(conf.parent)) for path in written))
    click.echo(f"then:    kedro run --env {name}")


@click.command("audit-scores")
@click.option("--env", default=None, help="Kedro environment, as for `kedro run --env`.")
@click.option(
    "--per-class", type=click.IntRange(1), help="Documents of each class.  [default: annotation.audit.per_class]"
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the draw.  [default: annotation.audit.seed]")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the audit.  [default: 08_reporting/score_audit in the folder of the environment's data]",
)
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The labels that the page saved: report on them instead of drawing.",
)
def audit_scores(
    env: str | None, per_class: int | None, seed: int | None, out: Path | None, labels: Path | None
) -> None:
    """Draw scored documents of every class to label without seeing the score; with --labels, say how right scores are.

    Open label.html of the folder in a browser, label, save labels.jsonl, and give it to --labels.

    Example:
      everytoken audit-scores --per-class 20
      everytoken audit-scores --labels labels.jsonl
    """
    from kedro.io.core import DatasetError

    from everytoken.cli.summary import reason_of
    from everytoken.corpus.scoring import (
        PAGE_FILE,
        REPORT_FILE,
        AuditParameters,
        audit_lines,
        draw_audit,
        report_labels,
        report_lines,
        write_audit,
    )

    if labels is not None and (per_class is not None or seed is not None):
        raise click.UsageError("--labels reports on an audit that is drawn already: --seed and --per-class do nothing")
    out, labels = (None if path is None else path.resolve() for path in (out, labels))  # of the folder one is in
    with project(env) as (context, catalog):
        if context.params["annotation"].scorer.kind == "none":
            raise click.ClickException("nothing is scored here (annotation.scorer.kind is none): choose a scorer first")
        folder = out or (Path(context.config_loader["globals"]["data"]) / "08_reporting" / "score_audit").resolve()
        try:
            if labels is not None:
                report = report_labels(folder, labels)
                threshold = context.params["subsampling"].annotation_threshold
                click.echo("\n".join([*report_lines(report, threshold), "", f"The same in {folder / REPORT_FILE}"]))
                return
            given = {name: value for name, value in (("seed", seed), ("per_class", per_class)) if value is not None}
            parameters = AuditParameters.model_validate({**context.params["annotation"].audit.model_dump(), **given})
            drawn = write_audit(draw_audit(catalog.load("scored_documents"), parameters), folder)
        except DatasetError as error:
            raise click.ClickException(reason_of(error)) from error
        options = ("" if env is None else f" --env {env}") + ("" if out is None else f" --out {out}")
        click.echo("\n".join(audit_lines(drawn)))
        click.echo(f"\nlabel in a browser: {folder / PAGE_FILE}")
        click.echo(f"then: everytoken audit-scores{options} --labels labels.jsonl")


@click.command("tokenize")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of documents.bin and .idx."
)
@click.option(
    "--tokenizer",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The tokenizer.json that encodes.",
)
@click.option("--eos", required=True, help="The token that ends each document, as <|endoftext|>.")
@click.option("--workers", type=click.IntRange(1), help="Processes that encode.  [default: one a core]")
@click.option("--text-field", default="text", show_default=True, help="Field or column of the text in each row.")
@click.option(
    "--special-tokens-in-text",
    type=click.Choice(["literal", "control", "error"]),
    default="literal",
    show_default=True,
    help="A special token that a text spells stays plain text, becomes the token, or is an error.",
)
@click.option("--max-tokens", default="none", show_default=True, help="Cap of a document, EOS included, or none.")
@click.option(
    "--max-lossy-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Most documents, as a share, whose tokens do not spell their text.",
)
@click.option(
    "--engine",
    default="fastest",
    show_default=True,
    help="Engine that encodes: fastest, tokenizers or another installed one.",
)
@click.option(
    "--certificate",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of engines' proofs.  [default: the user's cache]",
)
@click.option(
    "--cases",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Texts that the proof of an engine compares.",
)
@click.option(
    "--recheck-share",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Share of the documents that the reference encodes again.",
)
@click.option(
    "--recheck-documents",
    type=click.IntRange(0),
    default=100,
    show_default=True,
    help="About so many documents at most; each file rounds its share.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of certificate and recheck.")
@click.option(
    "--max-line-bytes", type=click.IntRange(1), default=1 << 29, show_default=True, help="Most bytes of a line."
)
@click.option(
    "--keep-parts", is_flag=True, help="Keep each file's tokens in OUT.parts: more files need only themselves."
)
def tokenize_command(files: tuple[Path, ...], **options: Any) -> None:
    """Write the documents of FILES as one Megatron stream; no project is needed.

    FILES are .jsonl, .json, .txt (each also with .gz or .zst after it), .parquet or .arrow. Each row is a document, and
    each document a sequence: its tokens and EOS, in the order of the files' names. The bytes are the same for any
    number of workers and any engine. An interrupted run resumes where it stopped.

    Example:
      everytoken tokenize a.jsonl b.jsonl --out stream --tokenizer tokenizer.json --eos '<|endoftext|>'
      everytoken verify stream
    """
    from everytoken.shards import start_server

    # it imports for the workers while this process imports
    start_server(["concurrent.futures.process", "everytoken.text_to_stream.encode_file"])
    from everytoken.text_to_stream import EXPECTED_ERRORS, tokenize_files

    try:
        click.echo("\n".join(tokenize_files(files, **options)))
    except EXPECTED_ERRORS as error:
        raise click.ClickException(str(error)) from error
