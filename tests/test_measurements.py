import doctest
import platform
from pathlib import Path

import pytest

from everytoken import measurements
from everytoken.measurements import processor_name, rate, utilisation


def test_the_examples_of_the_module_hold():
    assert doctest.testmod(measurements).attempted and not doctest.testmod(measurements).failed


def test_a_rate_without_time_is_unknown():
    assert rate(10, 4.0) == 2.5 and rate(0, 4.0) == 0
    assert rate(10, 0.0) is None and rate(10, None) is None


@pytest.mark.parametrize("peak", [None, 0.0, 29.9])
def test_a_share_of_a_peak_that_is_unknown_or_too_low_is_unknown(peak):
    assert utilisation(30.0, peak) is None


def test_a_share_of_a_peak_is_at_most_one():
    assert utilisation(30.0, 30.0) == 1 and utilisation(15.0, 30.0) == 0.5


@pytest.mark.parametrize("found", [PermissionError, UnicodeDecodeError])
def test_a_processor_that_cannot_be_read_is_no_error(monkeypatch, found):
    def refused(path, **options):
        if found is PermissionError:
            raise PermissionError(path)
        return b"processor : 0\nmodel name : A\xffB\n".decode(options["encoding"], options.get("errors", "strict"))

    monkeypatch.setattr(Path, "read_text", refused)
    expected = platform.processor() or platform.machine() if found is PermissionError else "A�B"
    assert processor_name() == expected
