"""How torch computes: threads, determinism and precision for a stretch of code, put back afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from everytoken.measurements import processor_name, rate
from everytoken.seeds import torch_generator
from everytoken.training.parameters import ExecutionParameters

logger = logging.getLogger(__name__)

_MOST_PRODUCTS = 300

# torch replaces this module by an object whose attribute the type checker cannot see
_settings: Any = torch.utils.deterministic


@contextmanager
def execution(parameters: ExecutionParameters) -> Iterator[None]:
    """Run the body with these threads, this float32 product precision, and deterministic algorithms only."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic = torch.get_deterministic_debug_mode()
    fill = _settings.fill_uninitialized_memory
    torch.set_num_threads(parameters.threads)
    torch.set_float32_matmul_precision(parameters.matmul_precision)
    # as use_deterministic_algorithms, which also imports the compiler: 1.2 s of a process that may never compile
    torch.set_deterministic_debug_mode("error")
    # filling fresh memory with NaN only guards against reading it unwritten, and cost 8 % of a training step
    _settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.set_deterministic_debug_mode(deterministic)
        _settings.fill_uninitialized_memory = fill


def autocast(parameters: ExecutionParameters, device_type: str = "cpu") -> AbstractContextManager[Any]:
    """Return the context of a forward pass: bfloat16 autocast, or nothing for float32."""
    return torch.autocast(device_type, torch.bfloat16) if parameters.precision == "bfloat16" else nullcontext()


@cache
def matrix_peak(parameters: ExecutionParameters, device_type: str = "cpu", seconds: float = 0.2) -> float | None:
    """Return FLOP/s of the fastest product of two square matrices in so many seconds, of one product at least.

    A measurement: what a training step could reach at most. None where the device cannot make the products, with a
    warning. Cached, so a process measures once.
    """
    try:
        return _matrix_peak(parameters, device_type, seconds)
    except RuntimeError as error:  # of torch: no memory left next to the model, say
        logger.warning("the peak of matrix products was not measured, so MFU is not known: %s", error)
        return None


def _matrix_peak(parameters: ExecutionParameters, device_type: str, seconds: float) -> float | None:
    small, large = (256, 1024) if device_type == "cpu" else (1024, 8192)
    dtype = torch.bfloat16 if parameters.precision == "bfloat16" else torch.float32
    with execution(parameters):
        best = _fastest_product(small, dtype, device_type, 0.0)
        # emulated bfloat16 takes 10 s for a large product: the small one is enough to know that it is slow
        size = large if best * (large / small) ** 3 < 10 * seconds else small
        if size == large:
            best = _fastest_product(large, dtype, device_type, seconds)
    return rate(2 * size**3, best)


def _fastest_product(size: int, dtype: torch.dtype, device_type: str, seconds: float) -> float:
    """Return the seconds of the fastest product of two square matrices in so many seconds, of one at least."""
    generator = torch_generator(0, "matrix peak")
    a, b = (torch.randn(size, size, generator=generator).to(device_type, dtype) for _ in range(2))
    torch.mm(a, b)[0, 0].item()  # threads and kernels are made at the first
    best, ends = float("inf"), time.perf_counter() + seconds
    for _ in range(_MOST_PRODUCTS):  # a clock that stands still would give no end
        started = time.perf_counter()
        torch.mm(a, b)[0, 0].item()  # waits for the device
        now = time.perf_counter()
        best = min(best, now - started)
        if now >= ends:
            break
    return best


def describe_machine(parameters: ExecutionParameters) -> dict[str, object]:
    """Return what the bits of a run depend on beside its inputs: torch, CPU, threads, precision.

    ``float32_matmul_error`` is the largest error of a 512 x 512 x 512 product of N(0, 1) numbers against
    float64: about 1e-4 for true float32, about 0.1 where the precision setting lets the CPU use bfloat16.
    """
    generator = torch_generator(0, "matmul error")
    a, b = (torch.randn(512, 512, generator=generator) for _ in range(2))
    with execution(parameters):
        error = (a @ b - (a.double() @ b.double())).abs().max().item()
    return {
        "torch": torch.__version__,
        "cpu": processor_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": parameters.threads,
        "precision": parameters.precision,
        "matmul_precision": parameters.matmul_precision,
        "float32_matmul_error": error,
    }
