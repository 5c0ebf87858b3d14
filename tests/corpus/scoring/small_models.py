"""Small classifiers that are made, saved and loaded like large ones, and texts for them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from everytoken.arrays import SingleFloats
from everytoken.corpus.scoring.model_files import ModelFolder, fetch_model, model_identity
from everytoken.corpus.scoring.one_score_per_id import TextScorer
from everytoken.corpus.scoring.transformer import TransformersScorer
from everytoken.seeds import python_random
from everytoken.shards import Artifact, ArtifactStore, plan_artifact

WORDS = [
    *("the", "weather", "is", "fine", "today", "and", "a", "screw", "holds", "what", "you"),
    *("hate", "damn", "tea", "film", "theorem", "ugly", "idiot"),
]
SPECIAL = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}

# A model of its own code, with what is hard about such code: a module that imports another, another repository in
# auto_map, a table that the constructor computes and that is in no file, and a method that transformers had once.
OWN_CONFIGURATION = """
from transformers import PretrainedConfig

class OwnConfig(PretrainedConfig):
    model_type = "own"

    def __init__(self, vocab_size=100, hidden_size=16, trait=None, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size, self.hidden_size, self.trait = vocab_size, hidden_size, trait
"""
OWN_MODELING = """
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from .configuration import OwnConfig

class OwnForSequenceClassification(PreTrainedModel):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.classifier = torch.nn.Linear(config.hidden_size, config.num_labels)
        self.register_buffer("weights", 1.0 / torch.arange(1, 4097).float(), persistent=False)
        self.post_init()

    def forward(self, input_ids, attention_mask):
        added = self.get_extended_attention_mask(attention_mask, input_ids.shape)[:, 0, 0]
        here = self.weights[: input_ids.shape[1]] * (added == 0)
        embedded = self.embeddings(input_ids)
        pooled = (embedded * here.to(embedded.dtype)[..., None]).sum(dim=1)
        if self.config.trait == "mixes rows":
            pooled = pooled - pooled.mean(dim=0)
        if self.config.trait == "looks for padding" and attention_mask.all():
            pooled = pooled + 1.0  # as attention takes another kernel then, and rounds another way
        return SequenceClassifierOutput(logits=self.classifier(pooled))
"""


def save_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL).save_pretrained(folder)


def save_modernbert(folder: Path, *, labels: int = 6, **changes: Any) -> Path:
    """Save a classifier whose random weights are large enough for scores that differ."""
    save_tokenizer(folder)
    values = {"vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    values |= {"num_attention_heads": 4, "max_position_embeddings": 512, "num_labels": labels, "pad_token_id": 1}
    values |= {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
    values |= {"initializer_range": 0.5, "initializer_cutoff_factor": 3.0, "classifier_pooling": "mean", **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.ModernBertForSequenceClassification(transformers.ModernBertConfig(**values))
    model.save_pretrained(folder)
    return folder


def save_other(folder: Path, kind: str, **changes: Any) -> Path:
    """Save a classifier of another kind: ``Llama`` scores the last token, ``Roberta`` numbers positions from 2."""
    save_tokenizer(folder)
    values = {"vocab_size": 400, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    values |= {"num_attention_heads": 2, "max_position_embeddings": 66, "num_labels": 6, "pad_token_id": 1}
    values |= {"bos_token_id": 2, "eos_token_id": 3, "initializer_range": 0.5, **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**values)
        getattr(transformers, f"{kind}ForSequenceClassification")(config).save_pretrained(folder)
    return folder


def own_model_files(folder: Path, *, trait: str | None = None) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the files of a model, and those of the repository with its code."""
    from safetensors.torch import save

    save_tokenizer(folder)
    config = {"model_type": "own", "vocab_size": 400, "hidden_size": 16, "trait": trait}
    config["id2label"] = {str(k): f"class {k}" for k in range(6)}
    config["auto_map"] = {
        "AutoConfig": "org/code--configuration.OwnConfig",
        "AutoModelForSequenceClassification": "org/code--modeling.OwnForSequenceClassification",
    }
    generator = torch.Generator().manual_seed(0)
    shapes = {"embeddings.weight": (400, 16), "classifier.weight": (6, 16), "classifier.bias": (6,)}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"config.json": json.dumps(config).encode(), "model.safetensors": save(weights)}
    code = {"configuration.py": OWN_CONFIGURATION.encode(), "modeling.py": OWN_MODELING.encode()}
    return files, code


def save_own_model(folder: Path, *, trait: str | None = None) -> Path:
    files, code = own_model_files(folder, trait=trait)
    for name, content in {**files, **code}.items():
        (folder / name).write_bytes(content)
    return folder


def as_artifact(source: Path, place: Path, *, custom_code: bool = False) -> Artifact:
    model = ModelFolder(kind="folder", path=str(source), custom_code=custom_code)
    identity = model_identity(model)
    return ArtifactStore(place).save(plan_artifact(fetch_model, identity=identity, model=model, fetched=place.parent))


def scorer(**changes: Any) -> TransformersScorer:
    base: dict[str, Any] = {
        "kind": "transformers",
        "model": {"kind": "folder", "path": "", "custom_code": False},
        "max_tokens": 128,
        "max_chars": 5_000,
        "tokens_per_call": 512,
        "device": "cpu",
        "dtype": "float32",
        "compile": False,
        "threads": 1,
    }
    return TransformersScorer.model_validate({**base, **changes})


def some_texts(n: int) -> list[str]:
    """Return texts of 0 to 150 tokens, most of them short."""
    generator: random.Random = python_random(11)
    lengths = [int(150 * generator.random() ** 3) for _ in range(n)]
    return [" ".join(generator.choices(WORDS, k=length)) for length in lengths]


def probabilities(scored_by: TextScorer, texts: list[str], rows: list[int] | None = None) -> tuple[SingleFloats, Any]:
    """Score the texts of ``rows`` together; return their probabilities in that order, and what was counted."""
    rows = list(range(len(texts))) if rows is None else rows
    made = np.full((len(rows), 6), np.nan, np.float32)
    scored = scored_by.score((place, texts[row]) for place, row in enumerate(rows))
    while True:
        try:
            some = next(scored)
        except StopIteration as stop:
            assert not np.isnan(made).any(), "every text has a score"
            return made, stop.value
        made[some.numbers] = some.probabilities
