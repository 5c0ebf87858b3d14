"""Questions about the items of a list: attempts, replies stored under the id of their item, resuming."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.reflections.items.asked_items import AskedItems, Item, ask_items, request_seed
    from everytoken.reflections.items.asking_loop import (
        ItemFailed,
        OutcomeWriter,
        ask_each,
        run_to_its_end,
        write_session,
    )
    from everytoken.reflections.items.attempts import AcceptedReply, Attempts, AttemptsFailed, FailedAttempt
    from everytoken.reflections.items.forgetting import forget_items
    from everytoken.reflections.items.line_files import LineFile, parsed, records
    from everytoken.reflections.items.locked_values import LockedValues

__getattr__, __dir__ = exports(__name__, __file__)
