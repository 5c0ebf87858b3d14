"""Verifying a run compares the lines of complete ranks with what their markers say."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from everytoken.cli import cli
from everytoken.reflections.ranks import RankFolder, find_run_folders, ranks_of
from everytoken.reflections.ranks.rank_loop import complete_rank
from tests.reflections.test_merging import result, run_folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two ranks, of which the first is complete."""
    lines = {"00000": [result(1), result(0)], "00001": [result(2)]}
    root = run_folder(tmp_path / "data/reflections", "reflections", 4, 2, lines)
    complete_rank(ranks_of(root)[0])
    return root


def verified(path: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["verify", str(path), *options])
    return done.exit_code, done.output


def test_a_run_is_verified_by_its_folder_or_one_above(run: Path) -> None:
    assert find_run_folders(run) == find_run_folders(run.parent) == [run]
    for path in (run, run.parent):
        code, output = verified(path, "--full")
        assert code == 0 and "ranks: 2 ranks, 1 complete, 2 results of complete ranks" in output, output


def _another_text(rank: RankFolder) -> None:
    rank.results.write_bytes(rank.results.read_bytes().replace(b"I 1.", b"I 9."))


def _cut(rank: RankFolder) -> None:
    rank.results.write_bytes(rank.results.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("damage", "options", "message"),
    [
        (_cut, (), "expected 4"),
        (_another_text, ("--full",), "its lines are not those that the marker"),
        (lambda rank: rank.results.unlink(), (), "found 0"),
        (lambda rank: rank.marker.write_text("{"), (), "completions/00000 is damaged"),
    ],
    ids=["cut", "another text", "gone", "marker"],
)
def test_a_damaged_rank_is_named_and_the_remedy_helps(
    run: Path, damage: Callable[[RankFolder], None], options: tuple[str, ...], message: str
) -> None:
    rank = ranks_of(run)[0]
    damage(rank)
    code, output = verified(run, *options)
    assert code == 1 and message in output and rank.name in output, output
    shutil.rmtree(rank.path)
    rank.marker.unlink()
    code, output = verified(run, "--full")
    assert code == 0 and "0 complete, 0 results of complete ranks" in output, output
