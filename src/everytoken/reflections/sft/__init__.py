"""Post-training data (SFT): prompts that users wrote, and for each a cited and an uncited answer of a generator.

`parameters`, `mix` (which prompts), `pools` (their files), `prompts` (the file of prompts), `messages` (what is asked),
`replies` (what is accepted), `requests` (a prompt and its result line), `generation` (ranks), `export` (chats).
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.sft.mix import prompts_digest, draw_mix, rows_of_pools
    from everytoken.reflections.sft.parameters import HarmCategory, PromptMix, PromptPool, SftParameters
    from everytoken.reflections.sft.pools import PoolPrompt, read_pool
    from everytoken.reflections.sft.prompts import PROMPTS_FILE, PromptStatistics, read_prompts, write_prompts

__getattr__, __dir__ = exports(__name__, __file__)
