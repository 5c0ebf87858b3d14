"""Where tokens came from.

- `releases`: a corpus without its text; `verification`: whether a release, and streams, are what they say
- `replay`: the documents of a release again, from upstream
- `builds`: what differs between two
- `indexes`: from tokens to documents and back; `questions`: what they are asked
- `takedown`: documents that leave a corpus

Every module is imported by its own name.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.errors import ProvenanceError
    from everytoken.provenance.hashed_texts import text_digests, text_hash, text_hashes

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "ProvenanceError",
    "text_digests",
    "text_hash",
    "text_hashes",
]
