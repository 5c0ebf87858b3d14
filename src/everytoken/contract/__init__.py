"""What a job is going to make, said before it begins, and parameters that contradict each other, refused."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.contract.consistency import (
        ContractError,
        contradictions,
        not_looked_up,
        require_consistent,
    )
    from everytoken.contract.given_tokenizer import (
        plan_given_tokenizer,
        require_given_tokenizer,
        try_given_tokenizer,
    )
    from everytoken.contract.lines import contract_lines
    from everytoken.contract.shards_configuration import data_configuration

__getattr__, __dir__ = exports(__name__, __file__)
