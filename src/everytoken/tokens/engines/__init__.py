"""Engines that turn text into ids, and the certificate that proves a fast one equal to the reference."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.engines.adversarial import adversarial_cases
    from everytoken.tokens.engines.certificate import certify_engines, chosen_engine
    from everytoken.tokens.engines.comparison import EngineProof, compare_engines
    from everytoken.tokens.engines.guard import Measured, check_cut, encode_measured, open_guarded
    from everytoken.tokens.engines.kept_verdicts import (
        FASTEST,
        ComparedOn,
        EngineVerdict,
        KeptVerdicts,
        certificates_folder,
        corpus_bytes_of_proof,
        fastest_of,
        proven_engine,
    )
    from everytoken.tokens.engines.registry import (
        REFERENCE,
        EngineName,
        TokenizerEngine,
        installed_engines,
        open_engine,
        reference_version,
    )

__getattr__, __dir__ = exports(__name__, __file__)
