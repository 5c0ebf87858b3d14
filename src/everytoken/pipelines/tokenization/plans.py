"""What is said of a tokenizer that exists before the job, and the proof of the engines that encode with one."""

from collections.abc import Sequence

from everytoken.parameters import TokenizationParameters, TrainedTokenizer
from everytoken.shards import Artifact, Shards, plan_artifact
from everytoken.tokens.engines import (
    FASTEST,
    REFERENCE,
    certificates_folder,
    certify_engines,
    installed_engines,
    reference_version,
)
from everytoken.tokens.tokenizer import (
    EncodingRules,
    TokenizerIds,
    require_claims,
)


def check_claims(tokenizer: Artifact, parameters: TokenizationParameters) -> None:
    """Compare a tokenizer that exists before the job with what the parameters say of it.

    Raises:
        TokenizerError: its vocabulary or EOS are others.
    """
    chosen = parameters.tokenizer
    if not isinstance(chosen, TrainedTokenizer):
        found = tokenizer.statistics_as(TokenizerIds)
        require_claims(found, vocab_size=chosen.expect_vocab_size, eos_id=chosen.expect_eos_id)


def plan_certificate(rules: EncodingRules, samples: Sequence[Shards], parameters: TokenizationParameters) -> Artifact:
    """Return the plan of the proof that the fast engines which are installed give equal ids on ``samples``."""
    proof = parameters.certificate
    return plan_artifact(
        certify_engines,
        rules=rules,
        engines={} if parameters.engine == REFERENCE else installed_engines(),
        reference=reference_version(),
        samples=list(samples),
        cases=proof.cases,
        documents=proof.documents,
        seed=proof.seed,
        kept_in=certificates_folder(),
        **({} if parameters.engine in (FASTEST, REFERENCE) else {"always": True}),
    )
