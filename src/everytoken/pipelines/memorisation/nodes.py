"""Memorisation: what the model kept of canary documents and identity facts, and what it would know by chance."""

import logging
from pathlib import Path

from plotly.graph_objects import Figure

from everytoken.parameters import EvaluationParameters, TokenizationParameters
from everytoken.reflections.points import read_fact_probes, read_identity_facts
from everytoken.reports import memorisation_figure
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.canary import CanaryParameters
from everytoken.training import TrainingError
from everytoken.training.memorisation import MemorisationFigures, metrics_of_memorisation, probe_memorisation

logger = logging.getLogger(__name__)


def measure_memorisation(
    checkpoint: Artifact,
    canary_tokens: Shards,
    held_out_documents: Shards,
    tokenizer: Artifact,
    tokenization: TokenizationParameters,
    canary: CanaryParameters,
    parameters: EvaluationParameters,
) -> Artifact:
    """Compare triggers, continuations and facts with random triggers, untrained texts and other values."""
    probe = parameters.memorisation
    if probe is None:  # a job without it has no such node; this one may run alone
        raise TrainingError(
            "evaluation.memorisation is null: give its seed, controls, documents and continuation_tokens "
            "(docs/evaluation.md)"
        )
    asked = probe.facts
    facts = () if asked is None else read_fact_probes(Path(asked.probes), read_identity_facts(Path(asked.facts)))
    return plan_artifact(
        probe_memorisation,
        checkpoint=checkpoint,
        canaries=canary_tokens,
        held_out=held_out_documents,
        rules=tokenization.encoding_rules(tokenizer),
        triggers=canary.trigger_rule,
        facts=facts,
        probe=probe,
    )


def report_memorisation(memorisation_evaluation: Artifact) -> tuple[dict[str, object], Figure]:
    """Return the figures by condition, coverage fraction and fact, and their chart."""
    figures = memorisation_evaluation.statistics_as(MemorisationFigures)
    quantile = figures["controls"]["trigger_exposure_quantile"]
    for fraction, one in figures["by_fraction"].items():
        logger.info(
            "coverage %s: exposure of triggers %.2f bits (95th percentile of random ones %.2f), of continuations %.2f",
            fraction,
            one["trigger_exposure"],
            quantile,
            one["continuation_exposure"],
        )
    return metrics_of_memorisation(figures), memorisation_figure(figures)
