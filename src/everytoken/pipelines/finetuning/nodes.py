"""Finetuning: the loop of Training on chats, where only what the assistant says counts, from a checkpoint."""

import json
import logging
from dataclasses import asdict

from everytoken.corpus.rendering import ConversationRenderer
from everytoken.generation import GenerationError, trained_chat_files
from everytoken.parameters import FinetuningParameters, IngestionParameters, TokenizationParameters, TrainingParameters
from everytoken.provenance.indexes import WindowsDescription, index_chat_windows, made_stream
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.chat import write_chat_windows
from everytoken.tokens.tokenizer import open_tokenizer
from everytoken.training.run import GENERATIONS_FILE, describe_checkpoint, generate_texts, train

logger = logging.getLogger(__name__)


def make_chat_windows(
    unannotated_documents: Shards,
    annotated_documents: Shards,
    exclusions: Shards,
    tokenizer: Artifact,
    tokenization: TokenizationParameters,
    parameters: FinetuningParameters,
) -> Artifact:
    """Turn the chats among the documents that are neither held out nor excluded into windows with a loss mask."""
    return plan_artifact(
        write_chat_windows,
        documents=[unannotated_documents, annotated_documents],
        tokenizer=tokenizer,
        eos_token=tokenization.eos_token,
        chats=parameters.chats,
        seq_length=tokenization.seq_length,
        max_lossy_share=tokenization.max_lossy_share,
        shuffle_memory=tokenization.shuffle_memory,
        exclusions=exclusions,
    )


def make_chat_index(
    unannotated_documents: Shards,
    annotated_documents: Shards,
    exclusions: Shards,
    chat_windows: Artifact,
    tokenizer: Artifact,
    tokenization: TokenizationParameters,
    parameters: FinetuningParameters,
) -> Artifact:
    """Cut the chats again, and keep which window has which of their tokens."""
    return plan_artifact(
        index_chat_windows,
        documents={"unannotated": unannotated_documents, "annotated": annotated_documents},
        order=("unannotated", "annotated"),
        exclusions=exclusions,
        stream=made_stream(chat_windows),
        tokenizer=tokenizer,
        eos_token=tokenization.eos_token,
        chats=parameters.chats,
        seq_length=tokenization.seq_length,
    )


def finetune_model(
    chat_windows: Artifact,
    checkpoint: Artifact,
    tokenizer: Artifact,
    held_out_documents: Shards,
    tokenization: TokenizationParameters,
    training: TrainingParameters,
    parameters: FinetuningParameters,
) -> Artifact:
    """Train the model of the checkpoint on the chats."""
    return plan_artifact(
        train,
        streams=[("chats", chat_windows)],
        seq_length=None,
        rules=tokenization.encoding_rules(tokenizer),
        model=training.model,
        training=parameters.optimisation,
        data=parameters.data,
        initial=checkpoint,
        held_out=held_out_documents if parameters.optimisation.held_out else None,
        checkpoints=parameters.checkpoints,
        distribution=parameters.distribution,
    )


def answer_prompts(
    checkpoint: Artifact, tokenizer: Artifact, tokenization: TokenizationParameters, parameters: FinetuningParameters
) -> Artifact:
    """Let a model go on with each prompt, which ends where the assistant begins."""
    return plan_artifact(
        generate_texts,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        eos_token=tokenization.eos_token,
        generation=parameters.generation,
    )


def compare_answers(pretrained_generations: Artifact, finetuned_generations: Artifact) -> list[dict[str, str]]:
    """Return for each prompt what the model writes before and after finetuning, and why it ended."""
    before, after = (
        json.loads(made.path(GENERATIONS_FILE).read_text(encoding="utf-8"))
        for made in (pretrained_generations, finetuned_generations)
    )
    return [
        {
            "prompt": old["prompt"],
            "before": old["text"],
            "before_finish": old["finish"],
            "after": new["text"],
            "after_finish": new["finish"],
        }
        for old, new in zip(before, after, strict=True)
    ]


def describe_chat_format(
    tokenizer: Artifact,
    ingestion: IngestionParameters,
    tokenization: TokenizationParameters,
    parameters: FinetuningParameters,
) -> dict[str, object]:
    """Return how one chats with the finetuned model: in the form of its chats, where they have one."""
    renderers = {name: source.renderer for name, source in ingestion.active_sources.items()}
    templates = {name: one.template for name, one in renderers.items() if isinstance(one, ConversationRenderer)}
    ids = open_tokenizer(tokenizer, tokenization.eos_token).tokenizer.get_vocab(with_added_tokens=True)
    try:
        return asdict(trained_chat_files(parameters.chats, templates, ids, tokenization.eos_token))
    except GenerationError as error:
        logger.warning("warning: `everytoken chat` needs a template: %s", error)
        return {"template": None, "reason": str(error)}


def describe_finetuning(
    finetuned_checkpoint: Artifact,
    chat_windows: Artifact,
    chat_index: Artifact,
    finetuned_samples: list[dict[str, str]],
    chat_format: dict[str, object],
) -> dict[str, object]:
    """Return what was trained, on which chats, out of which documents, and what the model answers."""
    return {
        **describe_checkpoint(finetuned_checkpoint),
        "chats": dict(chat_windows.statistics),
        "documents": chat_index.statistics_as(WindowsDescription)["splits"],
        "answers": finetuned_samples,
        "chat_format": chat_format,
    }
