"""Languages: the language of each document of the corpus, in a dataset of its own, and how much there is of each."""

import logging

import pandas as pd

from everytoken.corpus import (
    LanguageError,
    LanguageLine,
    LanguageStatistics,
    identify_part,
    language_table,
    require_identifier,
)
from everytoken.parameters import IngestionParameters
from everytoken.shards import Shards

logger = logging.getLogger(__name__)

_MOST_IN_LOG = 8


def identify_languages(documents: Shards, parameters: IngestionParameters) -> Shards:
    """Identify the language of each document."""
    if parameters.languages is None:  # a job without it has no such node; this one may run alone
        raise LanguageError("ingestion.languages is null: give how languages are identified (docs/guide.md)")
    require_identifier(parameters.languages.version)
    return documents.map(identify_part, parameters=parameters.languages)


def say_languages_are_identified(languages: Shards) -> Shards:
    """Let the subsampling wait for the languages in a run that identifies them."""
    return languages


def report_languages(languages: Shards) -> pd.DataFrame:
    """Return documents and characters of each language, by source and in all."""
    lines = language_table(languages.statistics_as(LanguageStatistics))
    in_all = [line for line in lines if line["group"] == "all"]
    shown = [f"{line['language']} {line['share']:.1%}" for line in in_all[:_MOST_IN_LOG]]
    more = f", and {len(in_all) - len(shown)} more" if len(in_all) > len(shown) else ""
    logger.info("languages, by characters: %s%s", ", ".join(shown), more)
    return pd.DataFrame(lines, columns=list(LanguageLine.__annotations__))
