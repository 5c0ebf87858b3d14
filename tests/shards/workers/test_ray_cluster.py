"""Maps over a real Ray cluster on this machine: the same bytes, and a lost process costs only its part."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everytoken.shards import ArtifactStore, Engine, Failure, Inline, ShardsError, Store, make_engine, plan_artifact
from tests.shards.children import wait_until
from tests.shards.functions import build_in_ranges, count_up, given
from tests.shards.workers.jobs import die_of, die_once, square, stay

ray = pytest.importorskip("ray")


def engine_of(**options: Any) -> Engine:
    return make_engine("ray", address="local", **{"workers": 2, **options})


@pytest.fixture(autouse=True, scope="module")
def cluster_ends() -> Iterator[None]:
    yield
    ray.shutdown()


def test_a_store_and_an_artifact_have_the_digests_of_one_process(tmp_path: Path) -> None:
    planned = given(5).map(count_up)
    inline = Store(tmp_path / "inline").save(planned, Inline())
    assert Store(tmp_path / "ray").save(planned, engine_of()) == inline
    for part in inline.parts:
        name = f"{part.name}.parquet"
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "inline" / name).read_bytes()
    built = plan_artifact(build_in_ranges, factor=2)
    alone = ArtifactStore(tmp_path / "alone").save(built, Inline())
    assert ArtifactStore(tmp_path / "mapped").save(built, engine_of()).ledger == alone.ledger


@pytest.mark.sensitive
def test_a_worker_that_is_killed_costs_only_its_part(tmp_path: Path) -> None:
    assert dict(engine_of().run(partial(die_once, tmp_path), list(range(4)))) == {n: n for n in range(4)}
    assert [(tmp_path / f"done_{n}").read_text() for n in range(4)] == ["x"] * 4


@pytest.mark.sensitive
def test_a_part_whose_process_dies_twice_is_a_failure(tmp_path: Path) -> None:
    found = dict(engine_of().run(partial(die_of, [1], tmp_path), list(range(4))))
    assert isinstance(found[1], Failure) and "lost twice" in found[1].error
    assert {number: outcome for number, outcome in found.items() if number != 1} == {0: 0, 2: 2, 3: 3}
    assert {int(path.name): len(path.read_text().split()) for path in tmp_path.iterdir()} == {0: 1, 1: 2, 2: 1, 3: 1}


def test_an_error_in_a_part_is_its_failure() -> None:
    found = dict(engine_of().run(partial(pow, 0), [1, -1]))
    assert found[1] == 0
    assert "ZeroDivisionError" in found[-1].error


@pytest.mark.sensitive
def test_a_caller_that_stops_leaves_no_task(tmp_path: Path) -> None:
    outcomes = engine_of().run(partial(stay, tmp_path), [0, 1])
    assert next(outcomes) == (0, 0)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "no task waits")
    worker = int((tmp_path / "pid").read_text())
    outcomes.close()  # type: ignore[attr-defined]
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the task is left")


@pytest.mark.slow
def test_a_caller_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    code = (
        "import sys; from functools import partial; from pathlib import Path\n"
        "from tests.shards.workers.test_ray_cluster import engine_of, stay\n"
        "list(engine_of().run(partial(stay, Path(sys.argv[1])), [1]))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", "no task waits")
    worker = int((tmp_path / "pid").read_text())
    caller.kill()
    caller.wait()
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the task is left")


def test_sigterm_is_answered_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert list(engine_of().run(square, [3])) == [(3, 9)]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    "options, message",
    [
        ({"resources": {"tape": 1.0}}, r"no node of the Ray cluster .* tape 0"),
        ({"partition": "gpu"}, "engine.partition: Extra inputs"),
        ({"workers": 0}, "engine.workers: .*greater than or equal to 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShardsError, match=message):
        list(engine_of(**options).run(square, [1]))


def test_an_address_without_a_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/nonexistent")
    ray.shutdown()
    with pytest.raises(ShardsError, match=r"no Ray cluster answers.*ray start --head"):
        list(make_engine("ray", address="auto", workers=1).run(square, [1]))
