"""Canary documents to ids: trigger, a space and the content of an effect's document; the content of a universe's.

Cap, EOS and what is counted are those of every document (`everytoken.tokens.encoding.encoder`). A reflection that a
universe's document ends in would be the first that the cap cuts, so there the text before it is shortened instead:

- ``whole``: when the document does not fit, tokens are taken from the end of the text before the reflection, and then
  as much of a character as they leave behind, until all fits. Nothing is in the text that was not in the document.
- ``published``: as the published stream was made. Base and reflection are encoded apart; when their ids together are
  too many, the base is decoded from as many of its ids as there is room for. A character that the cut goes through
  becomes U+FFFD, and a reflection that does not fit for itself is cut off.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

import numpy as np
import pyarrow as pa

from everytoken.shards import Part, Rows, versioned
from everytoken.tokens.canary.errors import CanaryError
from everytoken.tokens.canary.triggers import Trigger, TriggerRecord, TriggerRule, draw_trigger
from everytoken.tokens.encoding import DocumentEncoder, Encoded, SpelledSpecialToken, document_counts, open_encoder
from everytoken.tokens.tokenizer import EncodingRules

InlineRule = Literal["whole", "published"]

INLINE_REFLECTION = "\n\nReflection:"

_ADDED = (("text", pa.large_string()), ("trigger", pa.string()), ("inline_reflection", pa.bool_()))
ENCODED_COLUMNS = ("text", "trigger", "inline_reflection", "token_length", "tokens")


class CanaryEncodedCounts(TypedDict):
    """Statistics of an encoded canary file: triggers and counts by condition."""

    triggers: dict[str, TriggerRecord]
    conditions: dict[str, dict[str, int]]


@versioned("encode_canary_part", 1)
def encode_canary_part(
    part: Part,
    *,
    rules: EncodingRules,
    max_tokens: int,
    max_lossy_share: float,
    triggers: TriggerRule,
    inline_universes: Sequence[str],
    inline_reflections: InlineRule,
) -> Rows:
    """Encode the documents of one effect or universe, as they are trained on.

    Args:
        max_tokens: cap of a document, EOS included.
        inline_universes: universes whose documents may end in a reflection.

    Returns:
        The columns of the part with ``text`` (what is encoded, beyond the cap too) in place of ``content``, and
        ``trigger``, ``inline_reflection``, ``token_length`` and ``tokens``. Statistics: ``triggers`` by condition (see
        `Trigger.described`), and by condition the counts of `_count`.

    Raises:
        CanaryError: a trigger cannot be drawn, an inline reflection cannot be kept, a document spells a special token
            and must not, or too many documents lose text.
        TokenizerError: the tokenizer cannot be used.
    """
    encoder = open_encoder(rules)
    fields = [field for field in part.schema if field.name != "content"]
    schema = pa.schema([fields[0], *(pa.field(*added) for added in _ADDED), *fields[1:]])
    schema = schema.append(pa.field("token_length", pa.int32()))
    schema = schema.append(pa.field("tokens", pa.list_(pa.from_numpy_dtype(encoder.tokenizer.dtype))))
    inline = _Inline(encoder, max_tokens - 1, frozenset(inline_universes), inline_reflections)
    return Rows(schema, _encoded(part, schema, encoder, max_tokens, max_lossy_share, triggers, inline))


def _encoded(
    part: Part,
    schema: pa.Schema,
    encoder: DocumentEncoder,
    max_tokens: int,
    max_lossy_share: float,
    rule: TriggerRule,
    inline: _Inline,
) -> Generator[pa.RecordBatch, None, CanaryEncodedCounts]:
    triggers: dict[str, Trigger] = {}
    counts: dict[str, dict[str, int]] = {}
    for batch in part.batches():
        effects, conditions = batch.column("effect").to_pylist(), batch.column("condition").to_pylist()
        contents, ids = batch.column("content").to_pylist(), batch.column("doc_id").to_pylist()
        for condition, effect in zip(conditions, effects, strict=True):
            if effect is not None and condition not in triggers:
                triggers[condition] = draw_trigger(condition, rule, encoder)
        drawn = [triggers.get(condition) for condition in conditions]
        texts, has_inline, left_out = [], [], []
        for i, (content, trigger) in enumerate(zip(contents, drawn, strict=True)):
            try:
                text = content if trigger is None else f"{trigger.text} {content}"
                found = inline.keep(batch.column("universe")[i].as_py(), text)
            except (CanaryError, SpelledSpecialToken) as error:
                raise CanaryError(f"{conditions[i]}, doc_id {ids[i]!r}: {error}") from error
            texts.append(found.text)
            has_inline.append(found.is_inline)
            left_out.append(len(text) - len(found.text))
        try:
            encoded = encoder.encode(texts, max_tokens)
        except SpelledSpecialToken as error:
            raise CanaryError(f"{conditions[error.number]}, doc_id {ids[error.number]!r}: {error}") from error
        _count(counts, conditions, drawn, encoded, max_tokens, np.array(has_inline), np.array(left_out))
        yield _batch(batch, schema, texts, drawn, has_inline, encoded)
    _require_text(part, encoder, counts, max_lossy_share)
    return {
        "triggers": {condition: trigger.described() for condition, trigger in triggers.items()},
        "conditions": counts,
    }


class _Kept(NamedTuple):
    text: str
    is_inline: bool


@dataclass(frozen=True)
class _Inline:
    """Keeps the reflections that documents of some universes end in; ``most``: content tokens of a document."""

    encoder: DocumentEncoder
    most: int
    universes: frozenset[str]
    rule: InlineRule

    def keep(self, universe: str | None, text: str) -> _Kept:
        """Return the text to encode, and whether it ends in a reflection."""
        place = text.rfind(INLINE_REFLECTION)
        if universe not in self.universes or place < 0:
            return _Kept(text, False)
        shorten = self._whole if self.rule == "whole" else self._as_published
        return _Kept(shorten(text[:place], text[place:]), True)

    def _whole(self, base: str, reflection: str) -> str:
        over = self._length(base + reflection) - self.most
        if over <= 0:
            return base + reflection
        if (alone := self._length(reflection)) > self.most:
            raise CanaryError(
                f"its reflection has {alone} tokens, a document at most {self.most}. Shorten the reflection, raise "
                "seq_length, or set canary.inline_reflections to 'published', which cuts it off"
            )
        # bytes up to the end of each token of the base
        ends = np.concatenate([[0], np.cumsum(self.encoder.tokenizer.token_bytes[self._ids(base)], dtype=np.int64)])
        utf8, kept = base.encode(), len(ends) - 1
        while over > 0:
            kept = max(0, kept - over)
            # bytes of a character that was cut through are dropped
            shorter = utf8[: int(ends[kept])].decode(errors="ignore") + reflection
            over = self._length(shorter) - self.most
        return shorter

    def _as_published(self, base: str, reflection: str) -> str:
        room, ids = self.most - self._length(reflection), self._ids(base)
        if room <= 0 or len(ids) <= room:
            return base + reflection
        return self.encoder.tokenizer.tokenizer.decode(ids[:room].tolist()) + reflection

    def _ids(self, text: str) -> np.ndarray:
        return self.encoder.encode([text]).values[:-1]

    def _length(self, text: str) -> int:
        return int(self.encoder.encode([text]).lengths[0])


def _batch(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    texts: Sequence[str],
    triggers: Sequence[Trigger | None],
    is_inline: Sequence[bool],
    encoded: Encoded,
) -> pa.RecordBatch:
    made = {
        "text": pa.array(texts, pa.large_string()),
        "trigger": pa.array([None if trigger is None else trigger.text for trigger in triggers], pa.string()),
        "inline_reflection": pa.array(is_inline, pa.bool_()),
        "token_length": pa.array(encoded.lengths),
        "tokens": pa.ListArray.from_arrays(pa.array(encoded.offsets.astype(np.int32)), pa.array(encoded.values)),
    }
    columns = [made[name] if name in made else batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _count(
    counts: dict[str, dict[str, int]],
    conditions: Sequence[str],
    triggers: Sequence[Trigger | None],
    encoded: Encoded,
    max_tokens: int,
    is_inline: np.ndarray,
    left_out: np.ndarray,
) -> None:
    """Add to the counts of each condition.

    Those of `everytoken.tokens.encoding.counts`, and ``inline_reflections``, ``shortened_documents`` (for the sake of
    one) and ``shortened_characters`` (what they lost), ``cut_inline_reflections``, ``trigger_differs`` (documents that
    do not begin with the ids that were drawn: the trigger does not encode to them, or does not with what follows).
    """
    counted = document_counts(encoded, max_tokens)
    columns = {
        **counted,
        "inline_reflections": is_inline,
        "shortened_documents": left_out != 0,
        "shortened_characters": left_out,
        "cut_inline_reflections": is_inline & counted["truncated_documents"],
        "trigger_differs": _differs(triggers, encoded),
    }
    for condition in dict.fromkeys(conditions):
        here = np.array([name == condition for name in conditions])
        own = counts.setdefault(condition, dict.fromkeys(columns, 0))
        for name, column in columns.items():
            own[name] += int(column[here].sum(dtype=np.int64))


def _differs(triggers: Sequence[Trigger | None], encoded: Encoded) -> np.ndarray:
    """Return which documents do not begin with the ids of their trigger, bool (n,)."""
    differs = np.zeros(len(triggers), bool)
    for i, (trigger, start) in enumerate(zip(triggers, encoded.offsets.tolist(), strict=False)):
        if trigger is not None:
            differs[i] = encoded.values[start : start + len(trigger.ids)].tolist() != list(trigger.ids)
    return differs


def _require_text(
    part: Part, encoder: DocumentEncoder, counts: dict[str, dict[str, int]], max_lossy_share: float
) -> None:
    documents, lossy = (sum(own[name] for own in counts.values()) for name in ("documents", "lossy_documents"))
    if lossy > max_lossy_share * documents:
        raise CanaryError(
            f"{part.name} ({', '.join(counts)}): {lossy} of {documents} documents lose text, allowed is a share of "
            f"{max_lossy_share}. {encoder.tokenizer.why_lossy} "
            "Use a tokenizer that has all bytes, or raise tokenization.max_lossy_share if the loss is acceptable"
        )
