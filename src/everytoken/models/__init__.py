"""Language models: one module a family, all behind the contract of ``language_model.LanguageModel``.

This package itself imports no torch, so that parameters can be read anywhere; ``models.families.build_model``
does. A further family is its module, its parameters in ``parameters.py``, and one line in ``families.py``.
"""

from everytoken.models.errors import ModelsError
from everytoken.models.parameters import LlamaParameters, ModelParameters

__all__ = ["LlamaParameters", "ModelParameters", "ModelsError"]
