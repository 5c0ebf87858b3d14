"""The list in force of a data folder: what a run takes that names none, and what it may not name."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from everytoken.corpus.exclusion import ExcludedAddress, ExcludedId, ExclusionParameters, write_list
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.takedown.exclusion_lists import (
    LISTS_FOLDER,
    list_of_run,
    list_told,
    put_in_force,
    remember,
    require_in_force,
)

FIRST = ExcludedId("a", "string", "asked")
SECOND = ExcludedAddress("web", 0, 17, "asked")


def listed(folder: Path, *entries: ExcludedId | ExcludedAddress) -> ExclusionParameters:
    """Write a list as an editor of another system does."""
    path = folder / f"{len(entries)}.jsonl"
    write_list(entries, path)
    content = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(content)
    return ExclusionParameters(path=path.name, sha256=hashlib.sha256(content).hexdigest())


def of_run(
    folder: Path, configured: ExclusionParameters | None, *, is_null_given: bool = False
) -> ExclusionParameters | None:
    return list_of_run(
        configured, is_null_given=is_null_given, root=folder, data=Path("data"), environment="the_environment"
    )


def test_without_one_in_force_a_run_takes_what_it_is_given(tmp_path: Path) -> None:
    assert of_run(tmp_path, None, is_null_given=True) is None
    given = listed(tmp_path, FIRST)
    assert of_run(tmp_path, given) == given


def test_a_list_that_a_run_was_given_is_kept_and_may_only_grow(tmp_path: Path) -> None:
    lists = tmp_path / "data" / LISTS_FOLDER
    one, both = listed(tmp_path, FIRST), listed(tmp_path, FIRST, SECOND)
    for given in (one, both):
        assert of_run(tmp_path, given) == given
        remember(lists, given, tmp_path)
        (tmp_path / given.path).rename(tmp_path / f"moved_{given.path}")
        taken = of_run(tmp_path, None)
        assert taken is not None
        assert taken.sha256 == given.sha256
        assert not Path(taken.path).is_absolute(), "a release has the parameters: its bytes are of no machine"
        assert (tmp_path / taken.path).read_bytes() == (tmp_path / f"moved_{given.path}").read_bytes()
    other = listed(tmp_path, FIRST)
    with pytest.raises(ProvenanceError, match=r"bring back 1 .* web/0/17.*conf/the_environment/"):
        of_run(tmp_path, other)
    with pytest.raises(ProvenanceError, match=r"is null.* bring back 2 "):
        of_run(tmp_path, None, is_null_given=True)
    put_in_force(lists, None)
    assert of_run(tmp_path, None) is None
    assert of_run(tmp_path, other) == other


def test_a_list_that_a_run_read_before_a_longer_one_was_in_force_does_not_replace_it(tmp_path: Path) -> None:
    lists = tmp_path / "data" / LISTS_FOLDER
    one, both = listed(tmp_path, FIRST), listed(tmp_path, FIRST, SECOND)
    remember(lists, both, tmp_path)
    with pytest.raises(ProvenanceError, match="was changed since this run began"):
        remember(lists, one, tmp_path)
    told = list_told(lists)
    assert told is not None
    assert told.sha256 == both.sha256
    for listed_by_run in (one, None):
        with pytest.raises(ProvenanceError, match="was changed since this run began"):
            require_in_force(lists, listed_by_run)
    require_in_force(lists, both)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in_force.json").write_text("{")
    with pytest.raises(ProvenanceError, match=r"in_force\.json does not say which list"):
        list_told(tmp_path)
