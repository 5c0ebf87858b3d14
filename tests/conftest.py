"""Settings of all tests: no telemetry, one thread in torch, quiet hypothesis deadlines on a busy machine."""

import os

from hypothesis import settings

os.environ.update(DO_NOT_TRACK="1", MLFLOW_DISABLE_TELEMETRY="true")

# The machine may be busy: a slow example is not a failure, a wrong one is. Examples are the same in every run.
settings.register_profile("everytoken", deadline=None, derandomize=True)
settings.load_profile("everytoken")
