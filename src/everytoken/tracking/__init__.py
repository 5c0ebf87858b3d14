"""Run tracking: every ``kedro run`` is an MLflow run that can be compared by any parameter, seed and dataset digest."""

from everytoken.tracking.errors import TrackingError
from everytoken.tracking.hook import TrackingHook

__all__ = ["TrackingError", "TrackingHook"]
