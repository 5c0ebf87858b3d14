"""A sequence classifier of transformers as a scorer: the most probable of six labels is the class of a text.

**A text's score depends on the text, the model and the parameters, and not on what else is scored.** A kernel may
round another way for another shape, so the shape of a call may not depend on the other texts. Texts of ``n`` tokens
are padded to ``L``, the next multiple of 32 above ``n``, and wait in the bucket of that length. A call has a fixed
number of sequences of ``L`` tokens: the largest power of two that ``tokens_per_call`` holds, at least one. It is made
when so many wait, and at the end of a part the rest of a bucket is filled up with sequences of no text. At least one
position of every sequence is padding, as attention without any takes another kernel.

That leaves kernels whose rounding of a row depends on where it stands, and models that mix rows. So the first call of
a shape in a process is made twice, with the rows moved by one and every second one replaced, and the scores of the
others must be equal bit for bit.

The filling costs at most ``tokens_per_call`` tokens for each length that a part has texts of. Other hardware, library
versions and numbers of threads do give other bits: those are counted in ``scored_with``, and `published` scores are
the way to take a run's scores to another machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, PositiveInt, field_validator

from everytoken.arrays import SingleFloats
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.loading import environment_of, load_classifier, read_json, require_device
from everytoken.corpus.scoring.model_files import Model, ModelFolder, ModelStatistics
from everytoken.corpus.scoring.one_score_per_id import Scored, ScorerCounts, TextScorer
from everytoken.shards import Artifact

_MULTIPLE = 32  # of padded lengths: 64 shapes up to 2,048 tokens
_READ_CHARACTERS = 1 << 20  # tokenized together
_SHAPES = 1_024  # that a compiled model may be compiled for
_TEXT_CONFIGS = ("text_encoder", "decoder", "generator", "text_config")  # where `get_text_config` looks for one
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")  # that may name the padding token
Probability = Literal["softmax", "sigmoid", "identity"]
Tokens = npt.NDArray[np.int64]


class TransformersScorer(BaseModel):
    """A sequence classifier with six labels.

    Attributes:
        max_tokens: of a text that are read, with special tokens; the rest has no influence.
        max_chars: of a text that are tokenized.
        tokens_per_call: tokens of a call of the model at most, with padding (but one sequence at least): a bound of
            memory, and part of what decides the last bits of a score.
        device: ``cpu``, ``cuda`` or ``cuda:<number>``.
        dtype: of weights and activations; scores are float32 in any case.
        compile: whether the model goes through ``torch.compile``: it costs a compilation for each shape (up to
            ``max_tokens / 32``), and pays on a GPU with many texts.
        threads: of a process on the CPU; with another number the last bits may differ.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["transformers"]
    model: Model
    max_tokens: PositiveInt
    max_chars: PositiveInt
    tokens_per_call: PositiveInt
    device: str
    dtype: Literal["float32", "bfloat16"]
    compile: bool = False
    threads: PositiveInt

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
            raise ValueError(f"device must be cpu, cuda or cuda:<number>, found {device!r}")
        return device

    def probability(self, model: Artifact) -> Probability:
        """Return what makes a probability of a logit."""
        return "softmax"

    def without_path(self) -> Self:
        """Return the scorer as it is for recipes: where a folder lies decides nothing, the artifact knows its files."""
        if not isinstance(self.model, ModelFolder):
            return self
        return self.model_copy(update={"model": self.model.model_copy(update={"path": ""})})


def transformers_scorer(scorer: TransformersScorer, model: Artifact) -> TextScorer:
    """Return the scorer; the model is loaded at the first text, once a process.

    It counts ``truncated`` (texts that were not read to their end), ``tokens`` (read) and ``padded_tokens`` (that went
    through the model), and ``scored_with`` (texts by library versions, device and threads).
    """
    return _Transformers(scorer, model)


def require_fit(scorer: TransformersScorer, model: Artifact) -> None:
    """Check what the model's files tell without loading it, once, before any part: positions and padding token.

    Where they leave a value to the defaults of the model's type, the check waits for the loaded model.

    Raises:
        ScoringError: ``max_tokens`` is more than the model reads, there is no padding token, or a file is damaged.
    """
    assert model.folder is not None, "a made artifact has a folder"
    name = model_name(model)
    whole = read_json(model.folder, "config.json", name)
    nested = [whole[key] for key in _TEXT_CONFIGS if isinstance(whole.get(key), dict)]
    config = nested[0] if len(nested) == 1 else whole
    positions = config.get("max_position_embeddings")
    _require_positions(scorer, name, positions if type(positions) is int else None)
    files = [file for file in _TOKENIZER_FILES if file in model.ledger["files"]]
    of_tokenizer = any(read_json(model.folder, file, name).get("pad_token") is not None for file in files)
    if not of_tokenizer and "pad_token_id" in config:
        _padding(name, config["pad_token_id"], whole.get("pad_token_id"))


def model_name(model: Artifact) -> str:
    """Return a model as messages name it."""
    told = model.statistics_as(ModelStatistics)
    return f"model {told['repository']} at {told['revision']}" if told["repository"] else f"the model in {model.folder}"


def _require_positions(scorer: TransformersScorer, name: str, positions: int | None) -> None:
    if positions is not None and scorer.max_tokens >= positions:
        raise ScoringError(
            f"scorer.max_tokens is {scorer.max_tokens}, and {name} has {positions} positions, of which one is for "
            f"padding (every call has some). Set scorer.max_tokens to {positions - 1} or less."
        )


def _padding(name: str, *tokens: int | None) -> int:
    """Return the first that is one; -1 stands for none in configurations of old decoders."""
    if there := [token for token in tokens if token is not None and token >= 0]:
        return there[0]
    raise ScoringError(
        f"{name} has no padding token: neither its tokenizer nor its config.json has a pad_token. Set one "
        f"that the model was trained with, and save it again."
    )


class _Sequence(NamedTuple):
    number: int  # of the text; -1 for no text
    tokens: Tokens  # (n,)


class _Transformers:
    def __init__(self, scorer: TransformersScorer, model: Artifact) -> None:
        self._scorer, self._model = scorer, model

    def score(self, texts: Iterable[tuple[int, str]]) -> Generator[Scored, None, ScorerCounts]:
        truncated = tokens = padded = scored = 0
        environment: dict[str, int] = {}
        waiting: dict[int, list[_Sequence]] = {}  # by padded length
        texts = iter(texts)
        while some := list(_until_full(texts, self._scorer.max_chars)):
            classifier = _classifier(self._scorer, self._model)
            for sequence, is_cut in classifier.tokenize(some):
                truncated += is_cut
                tokens += len(sequence.tokens)
                length = classifier.padded_length(len(sequence.tokens))
                bucket = waiting.setdefault(length, [])
                bucket.append(sequence)
                if len(bucket) == classifier.rows(length):
                    padded += classifier.rows(length) * length
                    yield classifier.score(waiting.pop(length), length)
            scored += len(some)
        for length in sorted(waiting):
            padded += classifier.rows(length) * length
            yield classifier.score(waiting[length], length)
        if scored:
            environment = {classifier.environment: scored}
        return {"truncated": truncated, "tokens": tokens, "padded_tokens": padded, "scored_with": environment}


class _Text(NamedTuple):
    number: int
    start: str
    is_cut: bool


def _until_full(texts: Iterator[tuple[int, str]], max_chars: int) -> Iterator[_Text]:
    """Yield texts, as far as they are read, until there are enough to tokenize."""
    characters = 0
    while characters < _READ_CHARACTERS and (text := next(texts, None)) is not None:
        number, whole = text
        yield _Text(number, whole[:max_chars], len(whole) > max_chars)
        characters += min(len(whole), max_chars) + 64  # an empty text is not for nothing


class _Outputs(NamedTuple):
    """What a model gives of a text: its number of labels, and what makes a probability of a logit."""

    labels: int
    probability: Probability

    def of(self, logits: Any) -> Any:
        import torch

        match self.probability:
            case "softmax":
                return torch.softmax(logits, dim=-1)
            case "sigmoid":
                # softmax goes by row; torch.sigmoid rounds the last numbers of a tensor another way
                return torch.softmax(torch.stack([torch.zeros_like(logits), logits], dim=-1), dim=-1)[..., 1]
            case "identity":
                return logits


class _Classifier:
    """A loaded model and its tokenizer."""

    def __init__(
        self, scorer: TransformersScorer, folder: Path, name: str, code: str | None, outputs: _Outputs
    ) -> None:
        import torch

        self._scorer, self._name, self._outputs = scorer, name, outputs
        self.environment = environment_of(scorer.device, scorer.threads)
        model, tokenizer = load_classifier(folder, name, scorer.dtype, code)
        config = model.config.get_text_config()
        self._positions = getattr(config, "max_position_embeddings", None)
        _require_positions(scorer, name, self._positions)
        self._require_room(tokenizer.num_special_tokens_to_add())
        of_model = [getattr(of, "pad_token_id", None) for of in (config, model.config)]
        # the model's own goes first: a decoder scores the last token that is another, and without one the padding
        config.pad_token_id = self._pad = _padding(name, *of_model, tokenizer.pad_token_id)
        self._pads_left = tokenizer.padding_side == "left"
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(scorer.max_tokens, direction=tokenizer.truncation_side)
        self._filling = _Sequence(-1, self._tokens_of(self._tokenizer.encode("").ids))
        self._model: Callable[..., Any] = model.eval().to(scorer.device)
        if scorer.compile:
            import torch._dynamo.config as dynamo

            dynamo.recompile_limit = dynamo.accumulated_recompile_limit = _SHAPES
            self._model = torch.compile(model, dynamic=False)
        self._proven: set[int] = set()

    def _require_room(self, special: int) -> None:
        most = self._scorer.max_tokens
        if most <= special:
            raise ScoringError(
                f"scorer.max_tokens is {most}, and the {special} special tokens that {self._name} puts around a text "
                f"leave no room for it. Set scorer.max_tokens to at least {special + 1}."
            )

    def tokenize(self, texts: list[_Text]) -> Iterator[tuple[_Sequence, bool]]:
        """Yield the tokens of each text, and whether something of it is not read."""
        encodings = self._tokenizer.encode_batch_fast([text.start for text in texts])
        for text, encoding in zip(texts, encodings, strict=True):
            yield _Sequence(text.number, self._tokens_of(encoding.ids)), text.is_cut or bool(encoding.overflowing)

    def _tokens_of(self, ids: list[int]) -> Tokens:
        """Return the tokens; without any (an empty text, no special tokens) one padding token that is attended to."""
        return np.array(ids or [self._pad], np.int64)

    def padded_length(self, n: int) -> int:
        """Return the next multiple of 32 above ``n``, or the model's number of positions where that is less."""
        length = (n // _MULTIPLE + 1) * _MULTIPLE
        return length if self._positions is None else min(length, self._positions)

    def rows(self, length: int) -> int:
        """Return the number of sequences of a call: a power of two, which threads share without cutting one."""
        return 1 << max(0, (self._scorer.tokens_per_call // length).bit_length() - 1)

    def score(self, sequences: list[_Sequence], length: int) -> Scored:
        """Return the scores of at most ``rows(length)`` texts."""
        filled = sequences + [self._filling] * (self.rows(length) - len(sequences))
        outputs = self._run(filled, length)
        if length not in self._proven:
            self._prove(filled, length, outputs)
            self._proven.add(length)
        texts = slice(len(sequences))
        return Scored(np.array([sequence.number for sequence in sequences]), outputs[texts, self._outputs.labels :])

    def _prove(self, sequences: list[_Sequence], length: int, outputs: SingleFloats) -> None:
        """Make the call again with the rows moved by one and every second one replaced; the others must stay equal.

        So each place in a call is compared with one beside it, as where a text was or as where it is now.
        """
        others = [
            sequence if row % 2 == 0 else (self._filling if sequence.number >= 0 else sequences[0])
            for row, sequence in enumerate(sequences)
        ]
        moved = self._run([others[-1], *others[:-1]], length)
        expected, found = outputs[::2], np.roll(moved, -1, axis=0)[::2]
        differ = (expected.view(np.int32) != found.view(np.int32)).any(axis=1)
        if differ.any():
            scorer, largest = self._scorer, float(np.nanmax(np.abs(expected - found)))
            raise ScoringError(
                f"{self._name} on {scorer.device} in {scorer.dtype}: in a call of {len(sequences)} sequences of "
                f"{length} tokens, {np.count_nonzero(differ)} of {len(differ)} texts got other scores when other texts "
                f"stood beside them (logits or probabilities differ by up to {largest:.3g}), so scores would depend on "
                f"the rest of the corpus. Set scorer.threads to 1, or scorer.tokens_per_call to {_MULTIPLE} (one "
                f"sequence a call), or try scorer.dtype float32, scorer.compile false, or another device."
            )

    def _run(self, sequences: list[_Sequence], length: int) -> SingleFloats:
        """Return logits and probabilities beside each other, float32 (rows, 2 * labels)."""
        import torch

        ids = np.full((len(sequences), length), self._pad, np.int64)  # (rows, length)
        mask = np.zeros_like(ids)
        for row, (_, tokens) in enumerate(sequences):
            columns = slice(length - len(tokens), length) if self._pads_left else slice(len(tokens))
            ids[row, columns] = tokens
            mask[row, columns] = 1
        device = self._scorer.device
        try:
            with _exact(self._scorer), torch.inference_mode():
                inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
                logits = self._model(**{name: tensor.to(device) for name, tensor in inputs.items()}).logits.float()
                outputs = torch.cat([logits, self._outputs.of(logits)], dim=1).cpu().numpy()
        except torch.OutOfMemoryError as error:
            raise ScoringError(
                f"{self._name}: a call of {len(sequences)} sequences of {length} tokens does not fit into the memory "
                f"of {device} ({error}). Set scorer.tokens_per_call to less than {self._scorer.tokens_per_call}."
            ) from None
        except (IndexError, RuntimeError) as error:
            raise ScoringError(
                f"{self._name}: a call of {len(sequences)} sequences of {length} tokens fails "
                f"({type(error).__name__}: {error}). If an index is out of range, the model has fewer positions than "
                f"its config.json says (RoBERTa's numbers begin at 2): set scorer.max_tokens to less than "
                f"{self._scorer.max_tokens}. Else try another device or dtype, or scorer.compile false."
            ) from error
        labels = self._outputs.labels
        if outputs.shape != (len(sequences), 2 * labels):
            raise ScoringError(
                f"{self._name} gives logits of shape {tuple(logits.shape)} for {len(sequences)} sequences, expected "
                f"{(len(sequences), labels)}. Choose a sequence classifier with {labels} labels."
            )
        return np.ascontiguousarray(outputs)


def _classifier(scorer: TransformersScorer, model: Artifact) -> _Classifier:
    assert model.folder is not None, "a made artifact has a folder"
    told = model.statistics_as(ModelStatistics)
    code = model.root_digest if told["code"] else None
    outputs = _Outputs(len(told["labels"]), scorer.probability(model))
    return _loaded(scorer.without_path(), model.folder, model.root_digest, model_name(model), code, outputs)


@functools.lru_cache(maxsize=1)  # one model in memory, however many parts it scores
def _loaded(
    scorer: TransformersScorer, folder: Path, digest: str, name: str, code: str | None, outputs: _Outputs
) -> _Classifier:
    require_device(scorer.device)
    return _Classifier(scorer, folder, name, code, outputs)


@contextmanager
def _exact(scorer: TransformersScorer) -> Iterator[None]:
    """Set what torch has for the whole process as the parameters say, and back: others compute in it too."""
    import torch

    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    try:
        torch.set_num_threads(scorer.threads)
        if scorer.device != "cpu":
            torch.use_deterministic_algorithms(True)
            matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = False
        yield
    finally:
        torch.set_num_threads(threads)
        if scorer.device != "cpu":
            torch.use_deterministic_algorithms(deterministic)
            matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
