"""Run tracking: every ``kedro run`` is an MLflow run that can be compared by any parameter, seed and dataset digest."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.tracking.compare import add_to_newest_run, compare_runs, read_recorded
    from everytoken.tracking.delivery import FOLDER, deliver, waiting
    from everytoken.tracking.errors import TrackingError
    from everytoken.tracking.hook import TrackingHook, refuse_unread, tracking_settings
    from everytoken.tracking.opening import TrackingSettings, open_store
    from everytoken.tracking.run import record_results
    from everytoken.tracking.store import mlflow_environment

__getattr__, __dir__ = exports(__name__, __file__)
