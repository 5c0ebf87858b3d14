"""What a report reads: ledgers, report files, parameters and costs that runs left. Nothing is calculated again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everytoken import __version__
from everytoken.cli.summary import StagesLeft, reason_of, stages_left
from everytoken.configuration import COSTS_FILE, StageCost, groups_of, read_costs
from everytoken.contract import contract_lines

_PATH = re.compile(r"(?<![\w:/.])~?/(?:[^\s/:'\"]+/)+([^\s/:'\"]*)")
_REPORTS = (
    *("ingestion_report", "score_report", "strata_report", "tokenization_report", "subsampling_metrics"),
    *("annotation_metrics", "training_metrics", "training_history", "pretraining_metrics", "pretraining_history"),
    *("finetuning_metrics", "finetuning_history", "evaluation_metrics", "generated_samples", "finetuned_samples"),
    *("shard_plan", "language_report", "memorisation_metrics"),
)


@dataclass(frozen=True)
class RunLeft:
    """What runs of an environment left in its data folder.

    Attributes:
        groups: parameters of the job, as their models, by name.
        reports: what is in the report files that are there, by dataset.
        makers: the pipeline that makes a dataset, for each dataset of the job.
        contract: a name and a text for each thing that the job makes.
        costs: what stages took; none where they were made before costs were measured.
    """

    env: str
    groups: Mapping[str, Any]
    stages: StagesLeft
    reports: Mapping[str, Any]
    makers: Mapping[str, str]
    contract: Sequence[tuple[str, str]]
    costs: Sequence[StageCost]
    version: str = __version__

    def missing(self, *datasets: str) -> str:
        """Return which of some datasets of the job there are not, and what makes them; empty where all are there."""
        lacking = [name for name in datasets if name in self.makers and not self._is_there(name)]
        option = "" if self.env in ("local", "base") else f" --env {self.env}"
        by_maker: dict[str, list[str]] = {}
        for name in lacking:
            by_maker.setdefault(self.makers[name], []).append(name)
        return " ".join(
            f"Missing: {', '.join(names)} (kedro run{option} --pipelines {maker} makes it)."
            for maker, names in by_maker.items()
        )

    def _is_there(self, name: str) -> bool:
        return name in self.reports or name in self.stages.read


def run_left(context: Any, catalog: Any, pipelines: Mapping[str, Any]) -> RunLeft:
    """Read what runs of an environment left."""
    job, loader = pipelines["__default__"], context.config_loader
    groups = groups_of(job, catalog)
    costs = Path(context.project_path, loader["globals"]["data"], COSTS_FILE)
    return RunLeft(
        env=str(loader.env or loader.default_run_env or "base"),
        groups=groups,
        stages=stages_left(catalog, pipelines),
        reports=dict(_reports(catalog)),
        makers={name: (node.namespace or "").split(".")[0] for node in job.nodes for name in node.outputs},
        contract=[_name_and_text(line) for line in contract_lines(groups)],
        costs=read_costs(costs),
    )


def _reports(catalog: Any) -> Iterator[tuple[str, Any]]:
    for name in _REPORTS:
        dataset = catalog.get(name)
        if dataset is not None and dataset.exists():
            try:
                yield name, dataset.load()
            except Exception as error:  # a file that cannot be read must not hide the others
                yield name, UnreadableReport(without_paths(reason_of(error)))


@dataclass(frozen=True)
class UnreadableReport:
    """A report file that cannot be read, and why."""

    reason: str


def _name_and_text(line: str) -> tuple[str, str]:
    name, text = line[:12].strip(), line[12:].strip()
    return name, without_paths(text)


def without_paths(text: str) -> str:
    """Return a text in which each absolute path is its last part: a report names no place on a machine."""
    return _PATH.sub(lambda found: f"…/{found[1]}", text)
