"""Post-training data (SFT): prompts that users wrote, and for each a cited and an uncited answer of a generator.

`parameters`, `mix` (which prompts), `pools` (their files), `prompts` (the file of prompts), `messages` (what is asked),
`replies` (what is accepted), `generation` (ranks), `export` (chats).
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.sft.export import CHAT_SCHEMA, ChatExport, file_sizes, require_ranks, write_chats
    from everytoken.reflections.sft.generation import SFT_RUN, SKIPPED, PromptRequests, SftPlan, require_prompts
    from everytoken.reflections.sft.messages import facts_message, hint_of, hinted_message
    from everytoken.reflections.sft.mix import draw_mix, prompts_digest, rows_of_pools
    from everytoken.reflections.sft.parameters import HarmCategory, PromptMix, PromptPool, SftParameters
    from everytoken.reflections.sft.pools import PoolPrompt, read_pool
    from everytoken.reflections.sft.prompts import PROMPTS_FILE, PromptStatistics, read_prompts, write_prompts
    from everytoken.reflections.sft.replies import ANSWER_FIELDS, AnswerPair, AnswerRules, is_skip

__getattr__, __dir__ = exports(__name__, __file__)
