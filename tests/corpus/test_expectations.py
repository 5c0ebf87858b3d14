from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from pydantic import ValidationError

from everytoken.corpus import ExpectationError, ExpectParameters

REASON = "Which files were used cannot be known"


def expect(**levels: Any) -> ExpectParameters:
    return ExpectParameters.model_validate({"because": REASON, **levels})


def printed(caplog: pytest.LogCaptureFixture, expected: ExpectParameters, **found: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="everytoken"):
        expected.check(**found)
    return [record.getMessage() for record in caplog.records]


def test_a_fatal_value_that_differs_stops_with_all_that_do() -> None:
    expected = expect(fatal={"shards": 63_911, "first_shards": [1502, 22656], "longest_document": 1919})
    expected.check(shards=63_911, first_shards=[1502, 22656, 56218])
    with pytest.raises(ExpectationError) as caught:
        expected.check(shards=42, first_shards=[7, 1, 9], longest_document=1919)
    message = str(caught.value)
    assert "shards: found 42, expected 63,911; first shards: found [7, 1], expected [1502, 22656]" in message
    assert "set expect.fatal.shards, expect.fatal.first_shards to null" in message and "1,919" not in message


@pytest.mark.parametrize(
    ("name", "expected", "found"),
    [
        ("revisions", {"dolma3": "6" * 40}, {}),
        ("revisions", {"dolma3": "6" * 40}, {"dolma3": "6" * 40, "mine": "7" * 40}),
        ("first_shards", [3, 1, 2], [3, 1]),
        ("tokenizer_sha256", "a" * 64, "b" * 64),
        ("annotated_rows", 0, 1),
        ("share_at_cap", 0.254, 0.2545001),
        ("share_at_cap", 0.0, 0.4),
        ("share_at_cap", 0.254, None),
    ],
)
def test_what_differs_is_never_taken_for_the_same(name: str, expected: Any, found: Any) -> None:
    with pytest.raises(ExpectationError, match=f"{name.replace('_', ' ')}: found .*, expected "):
        expect(fatal={name: expected}).check(**{name: found})


def test_a_share_is_as_exact_as_it_is_written() -> None:
    expected = expect(fatal={"share_at_cap": 0.254})
    for share in (0.25351, 0.254, 0.25449):
        expected.check(share_at_cap=share)


def test_a_value_to_compare_is_printed_with_the_reason_where_it_differs(caplog: pytest.LogCaptureFixture) -> None:
    expected = expect(compare={"annotated_rows": 102_772_028, "share_at_cap": 0.254})
    assert printed(caplog, expected, annotated_rows=7, unannotated_rows=8, share_at_cap=0.2541) == [
        f"annotated rows: found 7, expected 102,772,028. {REASON}",
        "share at cap: 0.25410, as expected",
    ]
    differs = printed(caplog, expect(compare={"share_at_cap": 0.254}, because=None), share_at_cap=2 / 3)
    assert differs == ["share at cap: found 0.66667, expected 0.254"]


def test_a_replay_leaves_no_room_for_values_that_are_compared_elsewhere() -> None:
    expected = expect(fatal={"shards": 1}, compare={"annotated_rows": 10, "unannotated_rows": 20})
    expected.require(annotated_rows=10, unannotated_rows=20)
    with pytest.raises(ExpectationError, match=r"annotated rows: found 11, expected 10\..*expect\.compare\.annotated"):
        expected.require(annotated_rows=11, unannotated_rows=20)


def test_nothing_that_is_expected_means_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for nothing in (ExpectParameters(), expect(fatal=None, compare={})):
        assert printed(caplog, nothing, shards=1, annotated_rows=2) == []
        nothing.require(annotated_rows=2)
        assert not nothing.expects("longest_document")
    assert expect(compare={"longest_document": 5}).expects("longest_document")


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({"fatal": {"shards": 5}, "compare": {"shards": 6}}, "shards is both in fatal and in compare"),
        ({"fatal": {"shard": 5}}, "fatal.shard\n  Extra inputs"),
        ({"compare": {"share_at_cap": 25.4}}, "less than or equal to 1"),
    ],
)
def test_an_expectation_that_says_no_one_thing_is_refused(levels: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        expect(**levels)
