"""Text from a model, token by token: how tokens are drawn, what of a prompt is read again, conversations.

It knows models by their contract alone (`everytoken.models.LanguageModel`), so every family talks.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.generation.chat_files import ChatFiles, read_chat_files
    from everytoken.generation.chat_template import JinjaTemplate, jinja_of_marks
    from everytoken.generation.conversation import ChatFormat, Conversation, Message
    from everytoken.generation.decoding import Finish, Reply, Step, speak, speak_in_steps
    from everytoken.generation.errors import GenerationError, NonFiniteLogits
    from everytoken.generation.logprobs import DrawnToken, score
    from everytoken.generation.opened_model import OpenedModel
    from everytoken.generation.parameters import GenerationParameters
    from everytoken.generation.prefix import PrefixReader
    from everytoken.generation.sampling import draw
    from everytoken.generation.saved_state import load_state, save_state
    from everytoken.generation.side_by_side import SequencePlaces
    from everytoken.generation.text_pieces import TextPieces
    from everytoken.generation.trained_template import trained_chat_files

__getattr__, __dir__ = exports(__name__, __file__)
