"""Workers that Slurm or Ray start. What one does with a part is the same everywhere."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.shards.workers.attempts import ONE_CORE, attempt
    from everytoken.shards.workers.job_queue import JobGroup, JobQueue, JobShape
    from everytoken.shards.workers.ray_cluster import ray_engine
    from everytoken.shards.workers.slurm import Slurm, slurm_engine

__getattr__, __dir__ = exports(__name__, __file__)
