"""How many loops a training step takes: a pure function of the run's seed and the step."""

from __future__ import annotations

import math

import torch

from everytoken.models.language_model import TrainingPoint
from everytoken.models.parameters import FixedDepth, OpenMythosParameters, PoissonDepth, UniformDepth
from everytoken.seeds import torch_generator

_LOG_DEVIATION = 0.5


def loops_of_step(parameters: OpenMythosParameters, point: TrainingPoint) -> int:
    """Return the loops of the step, at least 1; the same in every process and for every micro-batch."""
    generator = torch_generator(point.seed, "depth", point.step)
    match parameters.depth:
        case FixedDepth():
            return parameters.max_loops
        case UniformDepth(least=least, most=most):
            return int(torch.randint(least, most + 1, (), generator=generator))
        case PoissonDepth(mean=mean):
            # the rate has the mean `mean` (Geiping et al. 2025)
            log_rate = math.log(mean) - _LOG_DEVIATION**2 / 2
            log_rate += _LOG_DEVIATION * float(torch.randn((), generator=generator, dtype=torch.float64))
            rate = torch.tensor(math.exp(log_rate), dtype=torch.float64)
            return 1 + int(torch.poisson(rate, generator=generator))
