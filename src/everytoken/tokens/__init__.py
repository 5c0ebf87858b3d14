"""Tokens: tokenizers, encoded documents, streams of windows, and the order in which training reads them."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tokens.encoding.encode_part import encode_part
    from everytoken.tokens.encoding.encoder import DocumentEncoder, Encoded, open_encoder
    from everytoken.tokens.engines.registry import SpecialTokens, installed_engines
    from everytoken.tokens.errors import StreamError, TokenizerError, TokensError
    from everytoken.tokens.order.integer_schedule import IntegerSchedule, integer_schedule
    from everytoken.tokens.order.loader import TrainingWindows, WindowStream, open_training_windows, open_window_stream
    from everytoken.tokens.order.parameters import DataParameters, WeightsFrom
    from everytoken.tokens.order.sample_order import SampleOrder
    from everytoken.tokens.order.spp_schedule import SppSchedule, later_shares, window_of_sample
    from everytoken.tokens.streams.megatron import IndexedTokens, WindowWriter, open_indexed
    from everytoken.tokens.streams.packed import write_annotated_stream, write_compact_stream
    from everytoken.tokens.tokenizer.document_tokenizer import DocumentTokenizer, open_tokenizer, token_dtype
    from everytoken.tokens.tokenizer.sources import load_tokenizer_file, train_tokenizer

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "DataParameters",
    "DocumentEncoder",
    "DocumentTokenizer",
    "Encoded",
    "IndexedTokens",
    "IntegerSchedule",
    "SampleOrder",
    "SpecialTokens",
    "SppSchedule",
    "StreamError",
    "TokenizerError",
    "TokensError",
    "TrainingWindows",
    "WeightsFrom",
    "WindowStream",
    "WindowWriter",
    "encode_part",
    "installed_engines",
    "integer_schedule",
    "later_shares",
    "load_tokenizer_file",
    "open_encoder",
    "open_indexed",
    "open_tokenizer",
    "open_training_windows",
    "open_window_stream",
    "token_dtype",
    "train_tokenizer",
    "window_of_sample",
    "write_annotated_stream",
    "write_compact_stream",
]
