"""Reflections: short texts that a generator writes about documents, and streams that contain them."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.errors import BlankReply, PromptMissing, ReflectionError, RefusedReply
    from everytoken.reflections.frozen_prompts import freeze_prompt
    from everytoken.reflections.parameters import (
        PUBLISHED_RUN,
        DevelopmentParameters,
        EmbeddedGenerator,
        GeneratorParameters,
        IdentityCanaries,
        OpenAiGenerator,
        PromptFiles,
        ReflectionParameters,
        RequestSampling,
        ServerGenerator,
        SplicingParameters,
        Voice,
    )
    from everytoken.reflections.registry import (
        ALIASES,
        GENERATION_RUNS,
        RAW_TEXT,
        THIRD_PERSON,
        GenerationRun,
        PromptKind,
        find_generation_run,
    )

__getattr__, __dir__ = exports(__name__, __file__)
