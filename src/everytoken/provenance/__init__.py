"""Where tokens came from.

- `indexes`: from tokens to documents and back; `lookup`: documents, streams and runs by digest, name or address
- `trace`: from a token to its document; `exposure`: from a document to the steps that read it
- `releases`: a corpus without its text; `verification`: whether a release, and streams, are what they say
- `replay`: the documents of a release again, from upstream; `diff`: two builds compared
- `takedown`: documents that leave a corpus
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.provenance.errors import ProvenanceError
    from everytoken.provenance.hashed_texts import text_digests, text_hash, text_hashes

__getattr__, __dir__ = exports(__name__, __file__)
