"""OpenMythos: a transformer that loops one block, with experts, a stable injection, and halting."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.models.open_mythos.cache import LoopCache
    from everytoken.models.open_mythos.experts import Routing
    from everytoken.models.open_mythos.sizes import OpenMythosSizes
    from everytoken.models.open_mythos.transformer import LastPass, OpenMythos, initialise_open_mythos

__getattr__, __dir__ = exports(__name__, __file__)
