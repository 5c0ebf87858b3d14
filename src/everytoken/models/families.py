"""From parameters to a model: the one place that knows every family.

A family is its parameters (``parameters.py``: a member of the union ``ModelParameters``, told apart by ``family``), its
class, and how a new model's tensors are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everytoken.models.language_model import LanguageModel
from everytoken.models.llama import Llama, initialise_llama
from everytoken.models.mamba3 import RecurrentModel, initialise_recurrent
from everytoken.models.open_mythos import OpenMythos, initialise_open_mythos
from everytoken.models.parameters import (
    ComplexSsdParameters,
    LlamaParameters,
    Mamba3Parameters,
    ModelParameters,
    OpenMythosParameters,
)


@dataclass(frozen=True)
class Family:
    """How a model of a family is made.

    ``empty(parameters, vocab_size=, max_seq_len=)`` returns it with uninitialised tensors;
    ``initialise(model, parameters, seed)`` fills them, each by a draw that depends on the seed and its name alone.
    """

    empty: Callable[..., LanguageModel]
    initialise: Callable[[Any, Any, int], None]


FAMILIES: Mapping[type[ModelParameters], Family] = {
    LlamaParameters: Family(Llama, initialise_llama),
    Mamba3Parameters: Family(RecurrentModel, initialise_recurrent),
    ComplexSsdParameters: Family(RecurrentModel, initialise_recurrent),
    OpenMythosParameters: Family(OpenMythos, initialise_open_mythos),
}


def empty_model(parameters: ModelParameters, *, vocab_size: int, max_seq_len: int) -> LanguageModel:
    """Return a model of the family that the parameters name, its tensors uninitialised: to load a checkpoint
    into.
    """
    return FAMILIES[type(parameters)].empty(parameters, vocab_size=vocab_size, max_seq_len=max_seq_len)


def build_model(parameters: ModelParameters, *, vocab_size: int, max_seq_len: int, seed: int) -> LanguageModel:
    """Return a freshly initialised float32 model of the family that the parameters name."""
    model = empty_model(parameters, vocab_size=vocab_size, max_seq_len=max_seq_len)
    FAMILIES[type(parameters)].initialise(model, parameters, seed)
    return model
