"""Counting: the tokens of every document that was read, by the tokenizer of the job, before documents are selected."""

from everytoken.contract import ContractError, plan_given_tokenizer
from everytoken.parameters import TokenizationParameters, TrainedTokenizer
from everytoken.pipelines.tokenization.plans import check_claims, plan_certificate
from everytoken.shards import Artifact, Shards
from everytoken.tokens.encoding import count_part_tokens


def take_counting_tokenizer(parameters: TokenizationParameters) -> Artifact:
    """Take the tokenizer of the job, which must exist before it."""
    chosen = parameters.tokenizer
    if isinstance(chosen, TrainedTokenizer):  # a run with a mixture is refused earlier; this node may run alone
        raise ContractError(
            f"tokenization.tokenizer of {chosen.vocab_size:,} tokens is trained on documents that are selected by "
            "their tokens: give a tokenizer that exists (kind: file, hub or archive)"
        )
    return plan_given_tokenizer(chosen, parameters)


def prove_counting_engines(documents: Shards, tokenizer: Artifact, parameters: TokenizationParameters) -> Artifact:
    """Check what is said of the tokenizer; compare the fast engines with the reference, for the counts."""
    check_claims(tokenizer, parameters)
    return plan_certificate(parameters.counting_rules(tokenizer), [documents], parameters)


def count_tokens(
    documents: Shards, tokenizer: Artifact, certificate: Artifact, parameters: TokenizationParameters
) -> Shards:
    """Count the tokens of every document that was read, content and EOS."""
    return documents.map(count_part_tokens, **parameters.counting(tokenizer, certificate, documents.rows))


def say_tokens_are_counted(token_counts: Shards) -> Shards:
    """Let the selection wait for the counts in a run that makes them."""
    return token_counts
