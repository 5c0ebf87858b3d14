"""One runner makes every check: declared errors fail it, what cannot be known is said, and all else is raised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everytoken.checks.check import (
    READ_FAULTS,
    Check,
    Faults,
    Mismatch,
    NotMadeError,
    first_difference,
    made_by,
    require_equal,
    require_none,
    run_checks,
)
from everytoken.checks.files import Hashing, require_files, wrong_sizes
from everytoken.shards import DamagedStore, file_sha256
from everytoken.tokens import StreamError


def run(function: Callable[[Any], Any], *faults: type[Exception], **how: Any) -> list[Check]:
    return list(run_checks((("one", function),), 7, faults or READ_FAULTS, **how))


def raising(error: BaseException) -> Callable[[Any], Any]:
    def function(_: Any) -> Any:
        raise error

    return function


def test_what_a_check_found_is_in_numbers_or_in_words() -> None:
    assert run(lambda subject: {"windows": 10 * subject, "EOS": 1000}) == [
        Check("one", "passed", "70 windows, 1,000 EOS", numbers={"windows": 70, "EOS": 1000})
    ]
    assert run(lambda _: "all of it", covers="compact") == [Check("one", "passed", "all of it", "compact")]
    assert run(lambda _: None) == [], "it does not apply"


def test_a_difference_says_where_what_was_expected_what_was_found_and_what_to_do() -> None:
    (check,) = run(raising(Mismatch("a.bin window 3", "7", "8", "write it again", "it holds\n  a document")))
    assert not check.ok and check.outcome == "failed"
    assert check.fault == "a.bin window 3: expected 7, found 8: write it again\nit holds\n  a document"
    assert (check.place, check.expected, check.found, check.remedy) == ("a.bin window 3", "7", "8", "write it again")
    (check,) = run(lambda _: require_equal("bytes", 1000, 2000))
    assert check.fault == "bytes: expected 2,000, found 1,000"


@pytest.mark.parametrize("error", [DamagedStore("it is damaged"), OSError("it is damaged")])
def test_a_declared_error_fails_the_check_with_its_message(error: Exception) -> None:
    (check,) = run(raising(error))
    assert (check.outcome, check.fault) == ("failed", "it is damaged")


@pytest.mark.parametrize("error", [KeyError("rows"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), RecursionError()])
def test_what_a_reader_raises_for_bytes_that_nobody_wrote_is_damage(error: Exception) -> None:
    (check,) = run(raising(error))
    assert check.fault.startswith(f"it is damaged so that it cannot be read ({type(error).__name__}: ")


@pytest.mark.parametrize(
    "error", [AssertionError("ours"), NameError("ours"), StreamError("of another list"), KeyboardInterrupt()]
)
def test_an_error_that_is_not_declared_is_raised(error: BaseException) -> None:
    with pytest.raises(type(error)):
        run(raising(error))
    assert not run(raising(StreamError("declared")), StreamError)[0].ok


def test_a_check_that_cannot_be_made_is_no_fault_and_says_why() -> None:
    for function in (raising(NotMadeError("see sizes")), lambda _: made_by("sizes", None)):
        (check,) = run(function)
        assert (check.outcome, check.text, check.fault) == ("not made", "not checked: see sizes", "") and check.ok
    assert made_by("sizes", 3) == 3


def test_a_missing_file_is_the_fault_of_the_first_check_that_names_it(tmp_path: Path) -> None:
    missing: dict[Path, str] = {}
    absent, other = tmp_path / "absent", tmp_path / "other"
    checks = (
        ("files", lambda _: require_files(tmp_path, {"absent": None}, "the list knows")),
        ("content", lambda _: absent.read_text()),
        ("own", lambda _: other.read_text()),
        ("again", lambda _: other.read_text()),
    )
    found = list(run_checks(checks, None, READ_FAULTS, missing=missing))
    assert [check.outcome for check in found] == ["failed", "not made", "failed", "not made"]
    assert found[1].text == f"not checked: {absent} is missing, see files"
    assert missing == {absent: "files", other: "own"}
    assert [check.outcome for check in run_checks(checks, None, READ_FAULTS)] == ["failed"] * 4


def test_several_faults_are_one_error_that_names_the_first_of_them() -> None:
    require_none([])
    with pytest.raises(Faults, match=r"^0; 1; 2; 3; 4; and 3 more$"):
        require_none([str(number) for number in range(8)])


@pytest.mark.parametrize("at", [0, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 7])
def test_the_first_difference_is_found_in_any_block(at: int) -> None:
    expected = np.zeros((1 << 20) + 8, np.uint8)
    found = expected.copy()
    assert first_difference(found, expected) is None
    found[[at, -1]] = 1
    assert first_difference(found, expected) == at


def test_files_are_compared_with_their_list(tmp_path: Path) -> None:
    for name in ("whole", "long", "unlisted", ".hidden"):
        (tmp_path / name).write_bytes(b"12345")
    with pytest.raises(Faults) as caught:
        require_files(
            tmp_path, {"whole": 5, "long": 4, "lost": 1000, "gone": None}, "the list knows", remedy=": copy it"
        )
    assert str(caught.value).split("; ") == [
        f"{tmp_path}/lost: expected 1,000 bytes, it is missing: copy it",
        f"{tmp_path}/gone is missing: copy it",
        f"{tmp_path}/long: expected 4 bytes, found 5",
        f"{tmp_path}/unlisted: the list knows no such file",
    ]
    assert caught.value.missing == (tmp_path / "lost", tmp_path / "gone")
    assert require_files(tmp_path, {"whole": None, "long": 5}, "the list knows", own=["unlisted"]) == 1, (
        "the hidden one"
    )
    assert wrong_sizes(tmp_path, {"whole": 4, "lost": 3}) == [f"{tmp_path}/whole: expected 4 bytes, found 5"]


def test_files_are_hashed_once_and_what_is_known_is_not_hashed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode() * (3 << 20))
    right = {name: file_sha256(tmp_path / name) for name in ("a", "b")}
    with Hashing() as hashing:
        assert hashing.begin(tmp_path / "a") is hashing.begin(tmp_path / "a")
        assert hashing.wrong(tmp_path, right) == {}
        assert hashing.wrong(tmp_path, {**right, "b": "0" * 64}) == {
            "b": f"{tmp_path}/b: expected SHA-256 {'0' * 16}, found {right['b'][:16]}"
        }
        assert hashing.wrong(tmp_path, {"absent": "1"}, {"absent": "1"}) == {}
        with pytest.raises(FileNotFoundError):
            hashing.wrong(tmp_path, {"absent": "1"})
