"""A small fault in a module that decides bytes fails a test of that module."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.mutation.modules import MODULES
from tests.mutation.mutants import compiled, mutants_of
from tests.mutation.run import ROOT, SOURCES, all_mutants, chosen, equivalents

MUTANTS = 210
SEED = 15


def described(source: str) -> list[tuple[str, str, str]]:
    return [(mutant.function, mutant.before, mutant.after) for mutant in mutants_of("m.py", source)]


def test_each_kind_of_fault_is_made_and_the_source_stays() -> None:
    source = '''
class A:
    def f(self, x: int = 1) -> int:
        """Doc of 1."""
        if not x < 2 and self.g(x, y):
            raise ValueError(f"{x + 1} and 2")
        total += min(x, 1)
        return 3 if x else True
'''
    found = described(source)
    guard = "if not x < 2 and self.g(x, y):"
    expected = [
        ("raise ValueError(f'{x + 1} and 2')", "pass"),
        (guard, "if not x < 2 or self.g(x, y):"),
        (guard, "if x < 2 and self.g(x, y):"),
        (guard, "if not x <= 2 and self.g(x, y):"),
        (guard, "if not x >= 2 and self.g(x, y):"),
        (guard, "if not x < 3 and self.g(x, y):"),
        (guard, "if not x < 1 and self.g(x, y):"),
        (guard, "if not x < 2 and self.g(y, x):"),
        ("total += min(x, 1)", "pass"),
        ("total += min(x, 1)", "total -= min(x, 1)"),
        ("total += min(x, 1)", "total += max(x, 1)"),
        ("total += min(x, 1)", "total += min(x, 2)"),
        ("total += min(x, 1)", "total += min(x, 0)"),
        ("return 3 if x else True", "return 3 if not x else True"),
        ("return 3 if x else True", "return 4 if x else True"),
        ("return 3 if x else True", "return 2 if x else True"),
        ("return 3 if x else True", "return 3 if x else False"),
    ]
    assert Counter(found) == Counter(("A.f", *fault) for fault in expected)


def test_a_fault_is_in_the_code_that_runs() -> None:
    source = "def f(x):\n    return x + 1\n"
    results = set()
    for mutant in mutants_of("m.py", source):
        names: dict[str, object] = {}
        exec(compiled(mutant, source, "m.py"), names)
        results.add(names["f"](5))  # type: ignore[operator]
    assert results == {4, 7, 5}


def test_a_seed_chooses_the_same_mutants_as_evenly_as_modules_have_any() -> None:
    modules = list(MODULES)[:4]
    first, again, other = (chosen(seed, 20, modules) for seed in (1, 1, 2))
    assert first == again != other
    assert [len(mutants) for mutants in first.values()] == [5, 5, 5, 5]


def test_the_table_names_modules_and_tests_that_exist() -> None:
    assert [module for module in MODULES if not (SOURCES / module).is_file()] == []
    assert [test for tests in MODULES.values() for test in tests if not (ROOT / test.split("::")[0]).is_file()] == []


def test_every_equivalent_is_a_mutant_with_a_reason() -> None:
    listed = equivalents()
    assert all(reason.strip() for reason in listed.values())
    keys = {mutant.key for module in {key[0] for key in listed} for mutant in all_mutants(module)}
    assert sorted(set(listed) - keys) == []


@pytest.mark.slow
def test_95_percent_of_the_mutants_are_killed() -> None:
    command = [sys.executable, "-m", "tests.mutation.run", "--seed", str(SEED), "--mutants", str(MUTANTS)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
