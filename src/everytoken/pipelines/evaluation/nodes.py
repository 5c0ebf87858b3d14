"""Evaluation: bits per byte on held-out documents beside a unigram model, and what the model writes."""

import json

from plotly.graph_objects import Figure

from everytoken.parameters import EvaluationParameters, TokenizationParameters, TrainingParameters
from everytoken.reports import bits_per_byte_figure
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.streams import chosen_streams
from everytoken.training.evaluation import BitsPerByte, metrics_of_evaluation
from everytoken.training.run import GENERATIONS_FILE, evaluate, generate_texts


def measure_bits_per_byte(
    checkpoint: Artifact,
    held_out_documents: Shards,
    tokenizer: Artifact,
    tokenization: TokenizationParameters,
    training: TrainingParameters,
    parameters: EvaluationParameters,
    **made: Artifact | None,
) -> Artifact:
    """Measure the model, and a unigram model of the tokens that it was trained on, on the held-out documents."""
    return plan_artifact(
        evaluate,
        checkpoint=checkpoint,
        held_out=held_out_documents,
        streams=chosen_streams(training.streams, made),
        data=training.data,
        rules=tokenization.encoding_rules(tokenizer),
        evaluation=parameters.held_out,
    )


def generate_samples(
    checkpoint: Artifact,
    held_out_documents: Shards,
    tokenizer: Artifact,
    tokenization: TokenizationParameters,
    parameters: EvaluationParameters,
) -> Artifact:
    """Let the model continue each prompt; without prompts, the beginnings of held-out documents."""
    prompts = {} if parameters.generation.prompts is not None else {"held_out": held_out_documents}
    return plan_artifact(
        generate_texts,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        eos_token=tokenization.eos_token,
        generation=parameters.generation,
        **prompts,
    )


def report_evaluation(
    held_out_evaluation: Artifact, generations: Artifact
) -> tuple[dict[str, object], Figure, list[dict[str, object]]]:
    """Return the figures by source, their chart, and the generated texts."""
    figures = held_out_evaluation.statistics_as(BitsPerByte)
    samples = json.loads(generations.path(GENERATIONS_FILE).read_text(encoding="utf-8"))
    texts = [{key: sample[key] for key in ("prompt", "text", "finish")} for sample in samples]
    return metrics_of_evaluation(figures), bits_per_byte_figure(figures["by_source"], figures.get("loops")), texts
