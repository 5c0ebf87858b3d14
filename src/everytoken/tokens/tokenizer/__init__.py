"""A tokenizer: where it comes from, what its file holds, the pieces that it cuts text into."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.tokenizer.archive import BpeFiles
    from everytoken.tokens.tokenizer.document_tokenizer import (
        TOKENIZER_FILE,
        DocumentTokenizer,
        byte_symbols,
        library_tokenizer,
        open_tokenizer,
        token_dtype,
    )
    from everytoken.tokens.tokenizer.encoding_rules import EncodingRules, SpecialTokens, StoredTokenizer
    from everytoken.tokens.tokenizer.probe import ProbeRecord, library_record, probe_record
    from everytoken.tokens.tokenizer.sources import (
        load_archive_tokenizer,
        load_hub_tokenizer,
        load_tokenizer_file,
        require_tokens,
        train_tokenizer,
    )
    from everytoken.tokens.tokenizer.statistics import (
        TokenizerIdentity,
        TokenizerIds,
        TokenizerStatistics,
        require_claims,
    )
    from everytoken.tokens.tokenizer.text_pieces import PIECE_CHARACTERS, cut_text
    from everytoken.tokens.tokenizer.token_texts import bytes_of_token, decoded

__getattr__, __dir__ = exports(__name__, __file__)
