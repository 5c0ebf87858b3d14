"""Where in a document a reflection belongs, and which identity canary it mentions."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.points.fact_probes import FactProbe, read_fact_probes
    from everytoken.reflections.points.facts import Fact, draw_fact, injected_facts, read_identity_facts
    from everytoken.reflections.points.placement import published_index_of_null_id, sampled_index, sampled_share

__getattr__, __dir__ = exports(__name__, __file__)
