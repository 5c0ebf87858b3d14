"""What decides the texts of a generator, and how they become part of the streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from everytoken.corpus.ingestion import Upstream
from everytoken.redaction import is_url, require_bare_folder
from everytoken.tagged_unions import keys_of_the_chosen_kind

_Alias = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
_Version = Annotated[str, Field(pattern=r"^v[1-9][0-9]*$")]
Voice = Literal["1p", "3p"]

PUBLISHED_RUN = "reflections"
"""The run whose columns may be published ones."""


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class RequestSampling(_Parameters):
    """How a generator draws its tokens; null: the server decides, as the parameter is not sent.

    ``presence_penalty``: subtracted from the logits of tokens that the reply has. ``max_tokens``: of a reply, thinking
    included; ``free_context``: all that the prompt leaves, and nothing is sent. ``thinking``: whether the model thinks
    before it answers; always sent.
    """

    temperature: NonNegativeFloat
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: PositiveInt | None = None
    presence_penalty: FiniteFloat | None = None
    max_tokens: PositiveInt | Literal["free_context"]
    thinking: bool


class _Generator(_Parameters):
    """What all generators have.

    ``alias``: name of the model; it chooses the folder of the prompts and the row of ``sampling``. ``sampling``: by a
    part of the alias, the longest that it contains.
    """

    alias: _Alias
    sampling: dict[_Alias, RequestSampling]

    @model_validator(mode="after")
    def _alias_has_a_row(self) -> Self:
        if not any(part in self.alias for part in self.sampling):
            raise ValueError(
                f"sampling has no row for the alias {self.alias!r}, only {sorted(self.sampling)}: add a row whose name "
                f"is a part of the alias"
            )
        return self

    @property
    def chosen_sampling(self) -> RequestSampling:
        """The row of the alias."""
        return self.sampling[max((part for part in self.sampling if part in self.alias), key=len)]


class _Client(_Generator):
    """What generators behind an HTTP API have.

    ``model``: the name that the server knows it by; null: the first that the server lists. ``concurrency``: requests
    that a rank has open. ``request_seconds``: until a request counts as lost. ``first_pause_seconds``: about, before a
    second try; each later pause is twice as long. None of the three decides what is asked.
    """

    model: str | None = None
    concurrency: PositiveInt = 1024
    request_seconds: PositiveFloat = 600.0
    first_pause_seconds: PositiveFloat = 1.0


class OpenAiGenerator(_Client):
    """A server with OpenAI's API.

    ``endpoint``: its URL, which ends in ``/v1``. ``api_key_variable``: the environment variable that has the key; null
    for a server without keys.
    """

    kind: Literal["openai"]
    endpoint: str
    api_key_variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None

    @field_validator("endpoint")
    @classmethod
    def _is_a_url(cls, endpoint: str) -> str:
        require_bare_folder("endpoint", endpoint)
        if not is_url(endpoint):
            raise ValueError("endpoint must be a URL, such as http://localhost:30000/v1")
        return endpoint


class ServerGenerator(_Client):
    """A server with OpenAI's API that a rank starts and stops.

    ``command``: program and arguments; ``{port}`` is replaced. ``port``: 0 for a free one. ``health``: path that
    answers 200 when the server is ready; it is asked every ``check_seconds``. ``start_seconds``: until a start counts
    as failed. ``environment``: variables that it gets besides those of the rank.
    """

    kind: Literal["server"]
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    port: Annotated[int, Field(ge=0, lt=65_536)] = 0
    health: Annotated[str, Field(pattern=r"^/")] = "/health"
    check_seconds: PositiveFloat = 10.0
    start_seconds: PositiveFloat = 1200.0
    environment: dict[str, str] = {}


class EmbeddedGenerator(_Generator):
    """A small model that runs in the process of the rank, from a GGUF file in a wheel.

    ``project``, ``version``, ``sha256``: of the wheel. ``member``: path of the file in it. ``fetched``: folder of the
    wheel. ``batch``: documents that are decoded together.
    """

    kind: Literal["embedded"]
    project: str
    version: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]
    member: str
    fetched: str
    batch: PositiveInt = 16


GeneratorParameters = OpenAiGenerator | ServerGenerator | EmbeddedGenerator
_GENERATORS: dict[str, type[BaseModel]] = {
    "openai": OpenAiGenerator,
    "server": ServerGenerator,
    "embedded": EmbeddedGenerator,
}


class ReflectionSeeds(_Parameters):
    """``reflection_seed``: of points and styles. ``generation_seed``: of the seeds that requests carry."""

    reflection_seed: NonNegativeInt
    generation_seed: NonNegativeInt


class IdentityCanaries(_Parameters):
    """Facts about the model that some reflections are asked to mention.

    ``facts``: YAML file of the facts. ``seed``: of the draw. ``rate``: share of documents that get one. ``inject``: ids
    of the facts that are drawn from, whatever the file says of them; null: those whose action is ``inject``.
    ``disabled``: no document gets one.
    """

    facts: str
    seed: NonNegativeInt
    rate: Annotated[float, Field(ge=0, le=1)]
    inject: tuple[str, ...] | None = None
    disabled: bool = False


class PromptVersions(_Parameters):
    """The version of each kind of prompt, ``v<N>``."""

    reflection: _Version
    refusal_reflection: _Version
    preflection: _Version
    summary: _Version
    rephrasing_safelm: _Version


class PromptFiles(_Parameters):
    """Files that the messages are made of.

    ``folder``: the prompts, ``<alias>/<kind>_v<N>.md``; those of summaries and rephrasing are in ``shared/``.
    ``constitution``: Markdown whose sections have headings ``### X.Y title``. ``guidelines``: how to write.
    ``versions``: of each kind.
    """

    folder: str
    constitution: str
    guidelines: str
    versions: PromptVersions


class SplicingParameters(_Parameters):
    """How a reflection becomes part of its window.

    ``voice``: which is spliced. ``marker``: a token of the tokenizer before it; null for none. ``canaries``: windows
    with an identity canary have their reflection (``splice``), have none (``bare``), or are masked (``drop``).
    """

    voice: Voice
    marker: Annotated[str, Field(min_length=1)] | None = None
    canaries: Literal["splice", "bare", "drop"]


class PublishedReflections(_Parameters):
    """Reflections that somebody published, in place of a generator.

    ``upstream``: the parquet files. ``generator``: name of the model that wrote them. ``allow``: kinds of faults that
    do not end the run; all are counted and listed: ``changed`` (another text of an id), ``ambiguous`` (repeated
    documents that are not equally many), ``gone`` (no such document), ``bad_index`` (outside the text). ``memory``:
    bytes for finding the documents; changes no byte.
    """

    upstream: Upstream
    generator: _Alias
    allow: tuple[Literal["changed", "ambiguous", "gone", "bad_index"], ...] = ()
    memory: PositiveInt


class DevelopmentParameters(_Parameters):
    """How versions of a prompt are written and compared.

    ``rubric``: file that says how a judge scores; ``templates``: folder of the first versions, and of the request for
    a better one. ``seed``: of the samples of rows, and of the seeds that requests carry. ``items``: rows of a sample.
    A reply is rejected if a score is at most ``floor``, or the mean of all scores is below ``bound``.
    ``generating_attempts``, ``judging_attempts``: of an item, over all starts. ``examples``: rejected replies, and
    accepted ones, that a request for a better version shows. ``judge``: who judges and improves; null: the generator.
    """

    rubric: str
    templates: str
    seed: NonNegativeInt
    items: PositiveInt
    floor: Annotated[int, Field(ge=0, le=5)]
    bound: Annotated[float, Field(ge=1, le=5)]
    generating_attempts: PositiveInt
    judging_attempts: PositiveInt
    examples: PositiveInt
    judge: GeneratorParameters | None = Field(default=None, discriminator="kind")

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_chosen_judge(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("judge") is None:
            return data
        return {**data, "judge": keys_of_the_chosen_kind(data["judge"], _GENERATORS)}


class ReflectionParameters(_Parameters):
    """All generation runs of an environment, and how their texts are spliced.

    ``rows``: first row of the annotated split, and the row behind the last one; null for all. ``rows_per_task``: rows
    of a rank. ``include_reflection_3p``: whether runs with two voices ask for the third person. ``max_attempts``: of a
    document. ``allow_missing``: whether rows without a result may be merged, as empty texts. ``published``: where the
    columns of the run ``reflections`` are from in place of a generator; null: a generator writes them. ``frozen``:
    record that fixes generator and prompt (`everytoken prompts freeze`); null: nothing is fixed. ``development``: of
    prompts; null where none are developed.
    """

    rows: tuple[NonNegativeInt, PositiveInt] | None = None
    rows_per_task: PositiveInt
    include_reflection_3p: bool = True
    max_attempts: PositiveInt
    allow_missing: bool = False
    seeds: ReflectionSeeds
    canaries: IdentityCanaries
    prompts: PromptFiles
    generator: GeneratorParameters = Field(discriminator="kind")
    splice: SplicingParameters
    published: PublishedReflections | None = None
    frozen: str | None = None
    development: DevelopmentParameters | None = None

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_chosen_generator(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "generator" not in data:
            return data
        return {**data, "generator": keys_of_the_chosen_kind(data["generator"], _GENERATORS)}

    @model_validator(mode="after")
    def _has_rows(self) -> Self:
        if self.rows is not None and self.rows[0] >= self.rows[1]:
            raise ValueError(f"rows are [{self.rows[0]:,}, {self.rows[1]:,}), which is none: give first < end")
        return self

    @model_validator(mode="after")
    def _spliced_voice_is_asked_for(self) -> Self:
        if self.splice.voice == "3p" and not self.include_reflection_3p:
            raise ValueError(
                "splice.voice is 3p, and include_reflection_3p is false: splice 1p, or ask for the third person"
            )
        return self

    def generator_of(self, run: str) -> str:
        """Return the name of the model that wrote the texts of a run."""
        if self.published is not None and run == PUBLISHED_RUN:
            return self.published.generator
        return self.generator.alias
