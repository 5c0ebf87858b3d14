"""What an environment says: its files, the job that it runs, and the refusal of keys that nothing reads."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.configuration.contract_of_run import ContractHook, groups_of, streams_of
    from everytoken.configuration.costs import COSTS_FILE, CostsHook, StageCost, read_costs
    from everytoken.configuration.errors import ConfigurationError, MissingConfigurationError
    from everytoken.configuration.failures import (
        few_lines,
        missing_dataset,
        nearest,
        parameters_in_words,
        unexpected,
        unknown_pipelines,
        unknown_selection,
    )
    from everytoken.configuration.files import CONFIG_LOADER_ARGS, read_credentials, read_plainly
    from everytoken.configuration.jobs import (
        ConfigurationHook,
        JobConfigLoader,
        JobContext,
        ReplayHook,
        ResultsPlace,
        SystemErrorHook,
        require_local,
        results_in,
    )
    from everytoken.configuration.missing import MissingInputsHook
    from everytoken.configuration.stages import StageProgress, StagesHook, stage_in
    from everytoken.configuration.viz_files import VizFilesHook

__getattr__, __dir__ = exports(__name__, __file__)
