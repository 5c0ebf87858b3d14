"""A tokenizer that exists before the job: its plan, and what is wrong with it, said before any document is read."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from everytoken.parameters import (
    ArchiveTokenizer,
    GivenTokenizer,
    HubTokenizer,
    TokenizationParameters,
    TrainedTokenizer,
)
from everytoken.shards import Artifact, plan_artifact
from everytoken.tokens.tokenizer import load_archive_tokenizer, load_hub_tokenizer, load_tokenizer_file

logger = logging.getLogger(__name__)


def plan_given_tokenizer(
    chosen: GivenTokenizer | HubTokenizer | ArchiveTokenizer, parameters: TokenizationParameters
) -> Artifact:
    """Return the plan of a tokenizer that exists before the job."""
    # only where there are some: a tokenizer without keeps the recipe that it had before there was this parameter
    added = {"add_tokens": chosen.add_tokens} if chosen.add_tokens else {}
    if isinstance(chosen, GivenTokenizer):
        return plan_artifact(
            load_tokenizer_file, path=chosen.path, sha256=chosen.sha256, eos_token=parameters.eos_token, **added
        )
    if isinstance(chosen, HubTokenizer):
        return plan_artifact(
            load_hub_tokenizer,
            repository=chosen.repository,
            revision=chosen.revision,
            sha256=chosen.sha256,
            eos_token=parameters.eos_token,
            fetched=Path(parameters.fetched),
            **added,
        )
    return plan_artifact(
        load_archive_tokenizer,
        place=chosen.place,
        sha256=chosen.sha256.lower(),
        member=chosen.member,
        eos_token=parameters.eos_token,
        fetched=Path(parameters.fetched),
        **added,
    )


def require_given_tokenizer(parameters: TokenizationParameters, made: Artifact | None) -> None:
    """Make a tokenizer of the hub or of an archive once, to see that it can be used with EOS; its files are fetched.

    Args:
        made: the tokenizer that is stored, or None. What these parameters made was checked then.

    Raises:
        TokenizerError: the files cannot be had or read, or the vocabulary lacks EOS.
    """
    chosen = parameters.tokenizer
    if isinstance(chosen, TrainedTokenizer | GivenTokenizer):  # see `consistency`
        return
    recipe = plan_given_tokenizer(chosen, parameters).recipe
    assert recipe is not None, "a planned artifact"
    if made is not None and made.ledger["fingerprint"] == recipe.fingerprint([]):
        return
    logger.info("tokenizer: looking at %s before anything is read", chosen.label)
    try_given_tokenizer(chosen, parameters)


def try_given_tokenizer(
    chosen: GivenTokenizer | HubTokenizer | ArchiveTokenizer, parameters: TokenizationParameters
) -> None:
    """Make a tokenizer in a folder that is removed again; raises as `require_given_tokenizer`."""
    recipe = plan_given_tokenizer(chosen, parameters).recipe
    assert recipe is not None, "a planned artifact"
    with tempfile.TemporaryDirectory(prefix="everytoken-tokenizer-") as folder:
        recipe(Path(folder))
