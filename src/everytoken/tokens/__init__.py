"""Tokens: tokenizers, encoded documents, streams of windows, and the order in which training reads them.

What is used most is shown here; each folder shows the rest of what it offers.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.encoding import DocumentEncoder, Encoded, encode_part, open_encoder
    from everytoken.tokens.engines import installed_engines
    from everytoken.tokens.errors import StreamError, TokenizerError, TokensError
    from everytoken.tokens.order import (
        DataParameters,
        IntegerSchedule,
        SampleOrder,
        SppSchedule,
        TrainingWindows,
        WeightsFrom,
        WindowStream,
        integer_schedule,
        later_shares,
        open_training_windows,
        open_window_stream,
        window_of_sample,
    )
    from everytoken.tokens.streams import (
        IndexedTokens,
        WindowWriter,
        open_indexed,
        open_tokens,
        write_annotated_stream,
        write_compact_stream,
    )
    from everytoken.tokens.tokenizer import (
        DocumentTokenizer,
        EncodingRules,
        SpecialTokens,
        load_tokenizer_file,
        open_tokenizer,
        token_dtype,
        train_tokenizer,
    )

__getattr__, __dir__ = exports(__name__, __file__)
