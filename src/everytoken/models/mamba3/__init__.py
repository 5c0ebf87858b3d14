"""Mamba-3 (SISO and MIMO) and the variant `complex_ssd_lite`: a state of constant size in place of a cache."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.models.mamba3.mixer import Mixer
    from everytoken.models.mamba3.model import RecurrentModel, initialise_recurrent
    from everytoken.models.mamba3.scan import chunked_scan
    from everytoken.models.mamba3.sizes import RecurrentSizes
    from everytoken.models.mamba3.state import LayerState, RecurrentState

__getattr__, __dir__ = exports(__name__, __file__)
