"""The parameters of reflections that an environment of the project has, with changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everytoken.configuration import read_plainly
from everytoken.reflections import ReflectionParameters

ROOT = Path(__file__).resolve().parents[2]


def parameters(env: str = "local", **changes: Any) -> ReflectionParameters:
    found = read_plainly(ROOT / "conf", env, "parameters")
    assert found is not None
    return ReflectionParameters.model_validate({**found["reflection"], **changes})
