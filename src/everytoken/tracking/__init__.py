"""Run tracking: every ``kedro run`` is an MLflow run that can be compared by any parameter, seed and dataset digest."""

from .errors import TrackingError
from .hook import TrackingHook

__all__ = ["TrackingError", "TrackingHook"]
