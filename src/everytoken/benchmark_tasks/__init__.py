"""Standard benchmarks: tasks of EleutherAI's lm-evaluation-harness (the extra ``eval``) on any model.

Importing this imports no harness: `open_tasks` does, and says so where it is not installed.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.benchmark_tasks.errors import TaskError
    from everytoken.benchmark_tasks.tasks import OpenedTasks, TaskResults, open_tasks

__getattr__, __dir__ = exports(__name__, __file__)
