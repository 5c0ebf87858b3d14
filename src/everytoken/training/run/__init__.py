"""A training run: the plan, the job, its processes, the session, and the artifact functions."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.training.run.artifacts import GENERATIONS_FILE, evaluate, generate_texts, prepare_job, train
    from everytoken.training.run.description import CheckpointDescription, describe_checkpoint
    from everytoken.training.run.inference_memory import InferenceMemory, evaluation_memory, generation_memory
    from everytoken.training.run.job import write_job
    from everytoken.training.run.launch import nodes_command
    from everytoken.training.run.plan import Plan, make_training_plan
    from everytoken.training.run.statistics import GeneratedStatistics, TrainedStatistics

__getattr__, __dir__ = exports(__name__, __file__)
