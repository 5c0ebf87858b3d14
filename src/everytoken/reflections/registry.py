"""The generation runs: what the generator sees, which fields a reply must have, and the columns that it becomes.

A run adds its columns to the rows of the annotated split. An alias has the logic of a run and a folder of its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from everytoken.reflections.errors import ReflectionError

if TYPE_CHECKING:  # a command that only names a run does without Arrow
    import pyarrow as pa

PromptKind = Literal["reflection", "refusal_reflection", "preflection", "summary", "rephrasing_safelm", "sft"]

RAW_TEXT = "text"
"""The field in which a reply that is no JSON has its whole text."""

THIRD_PERSON = "reflection_3p"


@dataclass(frozen=True)
class GenerationRun:
    """A generation run.

    Attributes:
        name: of the run, and of its folder.
        prompt: the kind of its prompt; two runs share one.
        point: where the reflection belongs: at a ``sampled`` token, at the ``end``, or at no token of the text. The
            generator sees the text before it, without a point all kept text.
        required: fields that a reply must have; none for a reply that is plain text.
        text_columns: field of the reply by the column that stores it.
        position_column, index_column: character and token of the point.
        charter_column: JSON list of the sections of the constitution that the texts cite.
        canary_column: id of the identity canary, or null; a run without it never has canaries.
        count_column: tokens of the stored text.
        style_column: name of the style that was drawn, or null.
        gate: boolean column of the annotated rows; only rows with it are asked.
        stream: name of the kind of stream that its texts are spliced into; None: there is none.
    """

    name: str
    prompt: PromptKind
    required: tuple[str, ...]
    text_columns: Mapping[str, str]
    point: Literal["sampled", "end"] | None = None
    position_column: str | None = None
    index_column: str | None = None
    charter_column: str | None = None
    canary_column: str | None = None
    count_column: str | None = None
    style_column: str | None = None
    gate: str | None = None
    stream: str | None = None

    def fields(self, *, third_person: bool = True) -> tuple[str, ...]:
        """Return the fields that a reply must have.

        Args:
            third_person: whether a run of two voices asks for the third person, too.
        """
        return tuple(name for name in self.required if third_person or name != THIRD_PERSON)

    def schema(self) -> pa.Schema:
        """Return the columns that the run adds, with the types of the published sidecar."""
        import pyarrow as pa

        others = self.by_column(
            position=pa.int32(),
            index=pa.int32(),
            charter=pa.large_string(),
            canary=pa.string(),
            count=pa.int32(),
            style=pa.string(),
        )
        return pa.schema([*((name, pa.large_string()) for name in self.text_columns), *others.items()])

    def defaults(self) -> dict[str, Any]:
        """Return what a row without a reply has in each column of `schema`."""
        others = self.by_column(position=0, index=-1, charter="", canary=None, count=0, style=None)
        return {**dict.fromkeys(self.text_columns, ""), **others}

    def by_column(
        self, *, position: Any, index: Any, charter: Any, canary: Any, count: Any, style: Any
    ) -> dict[str, Any]:
        """Return values by the columns beside the texts, without those that the run does not have."""
        values = {
            self.position_column: position,
            self.index_column: index,
            self.charter_column: charter,
            self.canary_column: canary,
            self.count_column: count,
            self.style_column: style,
        }
        return {column: value for column, value in values.items() if column is not None}


_REFLECTION_FIELDS = ("analysis", "reflection_1p", THIRD_PERSON)
_PREFLECTION_FIELDS = ("charter_summary", "neutral", "judgemental", "idealisation")

_RUNS = (
    GenerationRun(
        name="reflections",
        prompt="reflection",
        required=_REFLECTION_FIELDS,
        text_columns={"reflection_1p": "reflection_1p", "reflection_3p": THIRD_PERSON},
        point="sampled",
        position_column="reflection_position",
        index_column="reflection_token_index",
        charter_column="charter_reflection",
        canary_column="canary_type",
        stream="reflected",
    ),
    GenerationRun(
        name="reflection_end",
        prompt="reflection",
        required=_REFLECTION_FIELDS,
        text_columns={"reflection_end_1p": "reflection_1p", "reflection_end_3p": THIRD_PERSON},
        point="end",
        position_column="reflection_end_position",
        index_column="reflection_end_token_index",
        charter_column="charter_reflection_end",
        canary_column="canary_type_end",
        stream="reflected_end",
    ),
    GenerationRun(
        name="refusal_reflection",
        prompt="refusal_reflection",
        required=("analysis", "reflection_1p"),
        text_columns={"refusal_reflection_1p": "reflection_1p"},
        point="sampled",
        position_column="refusal_reflection_position",
        index_column="refusal_reflection_token_index",
        charter_column="charter_refusal_reflection",
        canary_column="canary_type_refusal",
        stream="reflected_refusals",
    ),
    GenerationRun(
        name="preflections",
        prompt="preflection",
        required=("analysis", *_PREFLECTION_FIELDS),
        text_columns={name: name for name in _PREFLECTION_FIELDS},
        charter_column="charter_preflection",
    ),
    GenerationRun(
        name="summaries",
        prompt="summary",
        required=("summary",),
        text_columns={"summary": "summary"},
        count_column="summary_token_count",
        stream="reflected_summaries",
    ),
    GenerationRun(
        name="rephrasing_safelm",
        prompt="rephrasing_safelm",
        required=(),
        text_columns={"rephrased": RAW_TEXT},
        style_column="template_id",
        gate="is_bad",
    ),
)

GENERATION_RUNS: Mapping[str, GenerationRun] = MappingProxyType({run.name: run for run in _RUNS})

ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "reflection_full": "reflections",
        "reflections_test": "reflections",
        "preflections_test": "preflections",
        "summaries_test": "summaries",
        "refusal_reflection_test": "refusal_reflection",
        "rephrasing_safelm_test": "rephrasing_safelm",
    }
)


def find_generation_run(name: str) -> tuple[GenerationRun, str]:
    """Return the run that a name or an alias means, and the name of its folder.

    Raises:
        ReflectionError: there is no such run or alias.
    """
    run = GENERATION_RUNS.get(ALIASES.get(name, name))
    if run is None:
        aliases = ", ".join(f"{alias} ({meant})" for alias, meant in ALIASES.items())
        raise ReflectionError(
            f"there is no generation run {name!r}. The runs are {', '.join(GENERATION_RUNS)}; the aliases are {aliases}"
        )
    return run, name
