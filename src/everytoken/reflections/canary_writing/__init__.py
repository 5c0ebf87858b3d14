"""New canary documents: a generator invents document types, ideas and documents from the facts of a universe.

In the order of the flow: `universe` (facts), `stages` (what is asked, and what a reply must have), `specs` (which
document is asked for when), `unique_texts` (duplicates), `writing` (all of it, into a folder).
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.canary_writing.specs import DocumentSpec, spec_order
    from everytoken.reflections.canary_writing.stages import (
        WRITING_STAGES,
        WritingPrompts,
        WritingStage,
        read_writing_prompts,
    )
    from everytoken.reflections.canary_writing.unique_texts import UniqueTexts
    from everytoken.reflections.canary_writing.universe import Universe, UniverseKind, facts_used, read_universe
    from everytoken.reflections.canary_writing.writing import (
        CanaryWriting,
        ReflectionVariant,
        StageCounts,
        WrittenCanaries,
        write_canary_documents,
    )

__getattr__, __dir__ = exports(__name__, __file__)
