"""What a run is going to make, said before it begins, and contradicting parameters, refused before it begins."""

from __future__ import annotations

import logging
from typing import Any

from kedro.framework.hooks import hook_impl
from kedro.io import DataCatalog, DatasetError
from kedro.pipeline import Pipeline

logger = logging.getLogger(__name__)

_TOKENIZER = "tokenizer"
_LANGUAGES = "languages"


class ContractHook:
    """Checks the parameters of a run against each other; a whole job begins with its contract."""

    @hook_impl
    def before_pipeline_run(self, run_params: dict[str, Any], pipeline: Pipeline, catalog: DataCatalog) -> None:
        """Refuse what contradicts; log the contract, unless only some pipelines were asked for."""
        from everytoken.contract import contract_lines, require_consistent, require_given_tokenizer

        groups = groups_of(pipeline, catalog)
        require_consistent(groups, streams_of(pipeline))
        if any(_TOKENIZER in node.outputs for node in pipeline.nodes):
            require_given_tokenizer(groups["tokenization"], _stored(catalog, _TOKENIZER))
        if any(_LANGUAGES in node.outputs for node in pipeline.nodes) and groups["ingestion"].languages is not None:
            from everytoken.corpus import require_identifier

            require_identifier(groups["ingestion"].languages.version)
        for line in () if run_params.get("pipeline_names") else contract_lines(groups):
            logger.info("%s", line)


def _stored(catalog: DataCatalog, name: str) -> Any:
    """Return a dataset that was made; None: it was not, or is damaged and is made again."""
    from everytoken.shards import ShardsError

    try:
        return catalog.load(name) if catalog.exists(name) else None
    except (ShardsError, DatasetError):
        return None


def groups_of(pipeline: Pipeline, catalog: DataCatalog) -> dict[str, Any]:
    """Return the parameters that the nodes of a pipeline read, as their models, by name."""
    names = sorted(name for name in pipeline.inputs() if name.startswith("params:"))
    return {name.removeprefix("params:"): catalog.load(name) for name in names}


def streams_of(pipeline: Pipeline) -> frozenset[str] | None:
    """Return the names of the streams that a pipeline can train on; None: it does not train by name."""
    from everytoken.tokens.streams import kind_of_dataset

    trained = [node for node in pipeline.nodes if node.name.rsplit(".", 1)[-1] == "train_model"]
    if not trained:
        return None
    return frozenset(kind.name for node in trained for kind in map(kind_of_dataset, node.inputs) if kind is not None)
