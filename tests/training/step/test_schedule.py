from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everytoken.training.step.schedule import learning_rate


@given(st.data(), st.integers(1, 500), st.floats(1e-6, 1), st.floats(0, 1))
def test_the_rate_rises_to_the_peak_then_falls_to_exactly_the_smallest(data, steps, peak, min_ratio):
    warmup = data.draw(st.integers(0, steps - 1))
    rates = [
        learning_rate(step, peak=peak, min_ratio=min_ratio, warmup_steps=warmup, steps=steps) for step in range(steps)
    ]
    assert rates[-1] == min_ratio * peak
    assert all(0 <= rate <= peak * (1 + 1e-12) for rate in rates)
    assert all(a < b for a, b in pairwise(rates[:warmup]))
    assert all(a >= b for a, b in pairwise(rates[warmup:]))
    if warmup:
        assert rates[warmup - 1] == peak


def test_a_step_outside_the_schedule_is_an_error():
    for step in (-1, 10):
        with pytest.raises(ValueError, match="outside the schedule of 10 steps"):
            learning_rate(step, peak=1.0, min_ratio=0.1, warmup_steps=2, steps=10)
