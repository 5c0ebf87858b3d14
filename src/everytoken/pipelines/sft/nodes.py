"""Post-training data: the functions of the nodes."""

from __future__ import annotations

from pathlib import Path

from everytoken.corpus.ingestion import Upstream
from everytoken.corpus.upstreams import UpstreamFile
from everytoken.parameters import IngestionParameters, ReflectionParameters, SftParameters
from everytoken.reflections.ranks import read_run_config
from everytoken.reflections.sft import (
    ChatExport,
    SftPlan,
    require_prompts,
    require_ranks,
    write_chats,
    write_prompts,
)
from everytoken.shards import Artifact, Shards, file_sha256, plan_artifact


def find_pools(parameters: SftParameters) -> dict[str, Upstream]:
    """Return where the prompts are; saving it lists the files."""
    return {name: pool.upstream for name, pool in parameters.mix.drawn_pools.items()}


def make_prompts(
    sft_files: dict[str, list[UpstreamFile]], parameters: SftParameters, ingestion: IngestionParameters
) -> Artifact:
    """Draw the prompts of all pools."""
    return plan_artifact(
        write_prompts,
        mix=parameters.mix,
        files=sft_files,
        digests={name: [file.planned_digest() for file in files] for name, files in sft_files.items()},
        limits=ingestion.reading,
    )


def ask_for_answers(sft_prompts: Artifact, parameters: SftParameters, reflection: ReflectionParameters) -> SftPlan:
    """Plan a cited and an uncited answer of each prompt; saving it asks the generator."""
    return SftPlan(parameters, reflection, sft_prompts)


def make_chats(
    sft_replies: Shards, sft_prompts: Artifact, parameters: SftParameters, reflection: ReflectionParameters
) -> Artifact:
    """Check that all prompts were asked; turn their answers into chats."""
    require_ranks(sft_replies)
    require_prompts(sft_prompts, read_run_config(Path(sft_replies.values[0]["folder"])))
    return plan_artifact(
        write_chats,
        replies=sft_replies,
        prompts=sft_prompts,
        facts=reflection.canaries.facts,
        facts_sha256=file_sha256(Path(reflection.canaries.facts)),
        family_name=parameters.family_name,
        rows_per_file=parameters.rows_per_file,
        rows_per_group=parameters.rows_per_group,
    )


def report_chats(sft_chats: Artifact) -> dict[str, object]:
    """Return the numbers of the chats: rows in and out, those set aside by reason, facts, sources."""
    found = sft_chats.statistics_as(ChatExport)
    return {name: value for name, value in found.items() if name != "content_sha256"}
