"""How much a trained model memorised of canary documents: rank and exposure, and recall of identity facts.

In the order of the flow: `candidates` (random triggers and texts that were not trained on), `candidate_ranks` (the
formulas), `conditions` (triggers and continuations), `recall` (identity facts), `probe` (all of it as an artifact);
`statistics`.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.training.memorisation.candidate_ranks import exposure_bits, rank_among
    from everytoken.training.memorisation.probe import MEMORISATION_FILE, probe_memorisation
    from everytoken.training.memorisation.statistics import (
        ConditionFigures,
        FactFigures,
        MemorisationFigures,
        metrics_of_memorisation,
    )

__getattr__, __dir__ = exports(__name__, __file__)
