"""A trial: the stages of a run that can run on its first parts, in a data folder of their own, and what they took."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everytoken.submission import (
    SUBMISSIONS,
    TRIAL,
    RunOrder,
    Submission,
    SubmissionError,
    TrialRun,
    submissions_in,
)

if TYPE_CHECKING:
    from kedro.pipeline import Pipeline
    from kedro.pipeline.node import Node

    from everytoken.parameters import IngestionParameters

_TRIED = frozenset({"ingestion", "annotation", "subsampling", "splitting", "tokenization"})
_TRIED_OF_PACKING = "packing.encode_"  # its shards are of one size, which few documents may not fill
_NO_MIXTURE = "ingestion.mixture=null"
_FIRST = "ingestion.plan_shards"
_SHORT = 0.1  # seconds
_PLAN = "01_raw/shard_plan.json"


def trial_params(parts: int, ingestion: IngestionParameters | None) -> str:
    """Return the parameters of a run that a trial changes, as ``--params`` takes them.

    What says how much there is of the whole is switched off: expected numbers, and the budgets of a mixture.
    """
    changed = [f"ingestion.plan.try_parts={parts}", "expect.fatal=null", "expect.compare=null"]
    if ingestion is not None and ingestion.mixture is not None:
        changed.append(_NO_MIXTURE)
    return ",".join(changed)


def plan_trial(whole: Pipeline, trial: Pipeline, job: Pipeline, data: Path, params: str) -> TrialRun:
    """Choose the nodes of a trial: of the run that is asked for, and those of the job that feed them.

    Args:
        whole: what the run has with its own parameters.
        trial: what it has with those of the trial.
        job: that of the environment with those of the trial.
        data: folder of the data of the run.
        params: see `trial_params`.

    Raises:
        ClickException: no stage of the run can run on a part of its data.
    """
    tried = _with_sources(filter(_is_tried, trial.nodes), [node for node in job.nodes if _is_tried(node)])
    names = sorted(node.name for node in tried)
    if _FIRST not in names:
        asked = ", ".join(sorted({_pipeline_of(node) for node in whole.nodes}))
        raise click.ClickException(
            f"nothing of {asked} can be tried on a few parts: a trial reads the files of the sources and ends with "
            "their tokens. See what the configuration names with everytoken plan and everytoken preflight, or submit "
            "the run itself"
        )
    left_out = [*(["the mixture"] if _NO_MIXTURE in params.split(",") else []), *_left_out(whole.nodes, names)]
    return TrialRun(str(data / TRIAL), tuple(names), tuple(left_out), params)


def _pipeline_of(node: Node) -> str:
    return str(node.namespace or "").partition(".")[0]


def _is_tried(node: Node) -> bool:
    return _pipeline_of(node) in _TRIED or node.name.startswith(_TRIED_OF_PACKING)


def _with_sources(chosen: Iterable[Node], feeding: Sequence[Node]) -> list[Node]:
    found = {node.name: node for node in chosen}
    made_by = {dataset: node for node in feeding for dataset in node.outputs}
    waiting = [*found.values()]
    while waiting:
        for dataset in waiting.pop().inputs:
            source = made_by.get(dataset)
            if source is not None and source.name not in found:
                found[source.name] = source
                waiting.append(source)
    return [*found.values()]


def _left_out(wanted: Sequence[Node], tried: Sequence[str]) -> Iterator[str]:
    """Yield the pipelines that do not run; of one that runs in part, its nodes that do not."""
    in_part = {_pipeline_of(node) for node in wanted if node.name in tried}
    left = [node for node in wanted if node.name not in tried]
    yield from dict.fromkeys(node.name if _pipeline_of(node) in in_part else _pipeline_of(node) for node in left)


def empty_trial_folder(submission: Submission, order: RunOrder) -> None:
    """Remove the data of the trial before: every trial does its work, and finds none done.

    The lists of documents that were taken down come from the data folder of the run: no trial brings one back.

    Raises:
        SubmissionError: the folder holds something else than a trial.
    """
    from everytoken.provenance.takedown import LISTS_FOLDER

    assert order.trial is not None, "a trial was ordered"
    folder = Path(order.trial.data)
    left = [path for path in folder.iterdir() if path.name != SUBMISSIONS]
    before = [one for one in submissions_in(folder) if one.number != submission.number]
    if any(one.order().trial is None for one in before) or (left and not before):
        raise SubmissionError(
            f"{folder} holds data that is of no trial (submit-test), and a trial would remove it. Move it, or give the "
            "environment another data folder (globals.yml)"
        )
    for path in left:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if (lists := folder.parent / LISTS_FOLDER).exists():
        shutil.copytree(lists, folder / LISTS_FOLDER)


def told_of_trial(trial: TrialRun) -> dict[str, Any]:
    """Return what a trial has read and made until now, and what each stage took."""
    from everytoken.configuration import COSTS_FILE, read_costs

    plan = Path(trial.data) / _PLAN
    read = whole = None
    if plan.exists():
        said = json.loads(plan.read_bytes())
        slice_ = said["parameters"]
        read, whole = len(set(said["order"])), slice_["n_shards"] or said["n_total"] - slice_["offset"]
    took = [asdict(cost) for cost in read_costs(Path(trial.data) / COSTS_FILE)]
    return {"data": trial.data, "parts": read, "parts_of_the_run": whole, "took": took, "left_out": [*trial.left_out]}


def trial_lines(told: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that show it."""
    if told["parts"] is not None:
        yield f"tried on     {told['parts']:,} of {told['parts_of_the_run']:,} parts, in {told['data']}"
    short = [cost["seconds"] for cost in told["took"] if cost["seconds"] < _SHORT]
    for cost in told["took"]:
        if cost["seconds"] < _SHORT:
            continue
        memory = "" if cost["peak_bytes"] is None else f"  {cost['peak_bytes'] / 1e9:5.2f} GB"
        yield f"took         {cost['seconds']:8.1f} s{memory}  {cost['stage']}"
    if short:
        yield f"took         {sum(short):8.1f} s           {len(short)} more stages together"
    if told["left_out"]:
        yield f"did not run  {', '.join(told['left_out'])}: a trial ends with the tokens"
