"""``everytoken new``: what a sample of somebody's files says, the configuration that follows, and its two files.

`sample` reads, `decisions` are pure functions from its facts to values, `files` writes them with their reasons.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.new_environment.decisions import Decisions, decide, require_enough
    from everytoken.new_environment.errors import NewEnvironmentError
    from everytoken.new_environment.files import facts_lines, require_new, write_environment
    from everytoken.new_environment.sample import SampleFacts, look_at, sampled_classes

__getattr__, __dir__ = exports(__name__, __file__)
