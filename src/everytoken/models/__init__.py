"""Language models: one module a family, all behind the contract of ``language_model.LanguageModel``.

This package itself imports no torch, so that parameters can be read anywhere; ``models.families.build_model``
does. A further family is its module, its parameters in ``parameters.py``, and one line in ``families.py``.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.models.counts import ParameterCounts, Precision
    from everytoken.models.errors import ModelsError
    from everytoken.models.families import build_model, empty_model
    from everytoken.models.gguf import GgufFile
    from everytoken.models.hugging_face import LlamaFacts, read_facts, read_model, write_hugging_face
    from everytoken.models.language_model import Cache, LanguageModel, TrainingPoint
    from everytoken.models.llama import KeyValueCache, Llama
    from everytoken.models.open_mythos import LoopCache, OpenMythos
    from everytoken.models.parameters import (
        ComplexSsdParameters,
        LlamaParameters,
        Mamba3Parameters,
        ModelParameters,
        OpenMythosParameters,
    )
    from everytoken.models.sizes import (
        cache_bytes_per_token,
        largest_tensor,
        layer_activation_bytes,
        layer_inference_bytes,
        layer_input_bytes,
        layer_parameter_counts,
        parameter_counts,
        state_bytes,
    )

__getattr__, __dir__ = exports(__name__, __file__)
