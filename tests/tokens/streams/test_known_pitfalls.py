"""The ten pitfalls of the published path from shards to a trainer, and a test of the right behaviour for each.

`COVERED` names the tests elsewhere; the others are here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from everytoken.tokens.errors import StreamError
from everytoken.tokens.streams import FlatTokens, open_tokens
from tests import test_run
from tests.tokens.order import test_permutation, test_windows
from tests.tokens.streams import test_padded_shards, test_raw_shards

ROOT = Path(__file__).resolve().parents[3]

COVERED = {
    3: test_run.test_a_mistyped_key_in_a_file_is_refused,  # keys of the configuration were read by nobody
    4: test_padded_shards.test_padding_counts_in_no_loss_and_everything_else_does,  # EOS and padding share an id
    6: (
        test_raw_shards.test_shards_that_are_packed_again_leave_open_ones_as_they_were,  # a changed shard spoilt a view
        test_raw_shards.test_a_saved_tensor_is_mapped_and_not_loaded,  # one file was loaded whole
    ),
    7: test_raw_shards.test_windows_are_those_of_the_concatenation,  # windows over shards were read number by number
    8: test_windows.test_raw_shards_and_a_tensor_are_streams_beside_windows,  # raw shards could not be read
    10: (
        test_permutation.test_every_number_comes_once_and_goes_back,  # nothing was shuffled
        test_windows.test_any_ranks_read_the_rows_of_the_global_batch,  # a last batch was dropped
    ),
}


def test_every_pitfall_has_a_test() -> None:
    here = {int(name.split("_")[2]) for name in globals() if name.startswith("test_pitfall_")}
    assert here | set(COVERED) == set(range(1, 11)) and not here & set(COVERED)


def test_pitfall_1_nothing_outside_the_package_is_put_on_the_path() -> None:
    """There a guard passed because a folder beside the repository had what the repository lacks."""
    for file in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"sys\.path(\.insert|\.append|\.extend|\[| *\+?=)", file.read_text(encoding="utf-8")), file


@pytest.mark.parametrize("check", ["sizes", "sampled", "full"])
def test_pitfall_2_a_missing_path_is_an_error_and_no_random_data(tmp_path: Path, check: str) -> None:
    with pytest.raises(StreamError, match=r"there are no tokens at .*pretrain_data\.bin: no folder, no file"):
        open_tokens(tmp_path / "pretrain_data.bin")
    test_windows.test_what_is_not_there_is_an_error(tmp_path, check)


def test_pitfall_5_a_command_works_from_any_folder_of_the_project() -> None:
    """There only one of two ways to call the same file found its package."""
    words = [Path(sys.executable).with_name("everytoken"), "plan", "--env", "mamba_small"]
    done = subprocess.run(words, cwd=ROOT / "docs", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "mamba3" in done.stdout


def test_pitfall_9_targets_are_the_inputs_shifted_by_one() -> None:
    """There made-up targets had nothing to do with their inputs, and no seed."""
    tokens = FlatTokens([np.arange(40, dtype="<u4")])
    window = tokens.windows(8).read(np.array([2]))[0]
    assert window[1:].tolist() == [token + 1 for token in window[:-1].tolist()]
