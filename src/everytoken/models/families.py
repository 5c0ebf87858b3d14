"""From parameters to a model: the one place that knows every family."""

from __future__ import annotations

from everytoken.models.language_model import LanguageModel
from everytoken.models.llama import Llama, initialise_llama
from everytoken.models.parameters import ModelParameters


def empty_model(parameters: ModelParameters, *, vocab_size: int, max_seq_len: int) -> LanguageModel:
    """Return a model of the family that the parameters name, its tensors uninitialised: to load a checkpoint
    into.
    """
    match parameters.family:
        case "llama":
            return Llama(parameters, vocab_size=vocab_size, max_seq_len=max_seq_len)


def build_model(parameters: ModelParameters, *, vocab_size: int, max_seq_len: int, seed: int) -> LanguageModel:
    """Return a freshly initialised float32 model of the family that the parameters name."""
    match parameters.family:
        case "llama":
            model = Llama(parameters, vocab_size=vocab_size, max_seq_len=max_seq_len)
            initialise_llama(model, parameters, seed)
            return model
