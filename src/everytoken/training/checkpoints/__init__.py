"""Checkpoints: the model in a folder, generations of a run, export and import."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.training.checkpoints.exchange import export_checkpoint, import_checkpoint
    from everytoken.training.checkpoints.model import (
        CONFIG_FILE,
        MODEL_FILE,
        CheckpointConfig,
        load_config,
        load_model,
        load_model_tensors,
        model_tensors,
        parameters_sha256,
        with_rows,
        write_config,
    )
    from everytoken.training.checkpoints.sharded import (
        MODEL,
        OPTIMIZER,
        is_sharded,
        read_sharded,
        write_shard,
        write_whole_model,
    )
    from everytoken.training.checkpoints.store import CheckpointStore, ValidCheckpoint
    from everytoken.training.checkpoints.tensor_files import check_tensors, read_tensors, write_tensors
    from everytoken.training.checkpoints.verify import find_step_folders, require_intact, step_checks

__getattr__, __dir__ = exports(__name__, __file__)
