from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everytoken.corpus.documents import SCORED_DOCUMENTS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.audit import AuditParameters, audit_lines, draw_audit, population, write_audit
from everytoken.corpus.scoring.audit_report import (
    Stratum,
    audit_report,
    proportion,
    read_labels,
    report_labels,
    report_lines,
    weighted_proportion,
)
from everytoken.corpus.scoring.one_score_per_id import distinct_rows, first_of_ids
from everytoken.corpus.scoring.score import ClassCounts
from everytoken.seeds import numpy_generator
from everytoken.shards import DamagedStore, Part, Rows, Shards, value_digest, versioned
from tests.corpus.part_tables import TablePart, documents
from tests.corpus.selection.stored_documents import kept

Row = tuple[str | None, int | None]  # id and score


def table_of(part_index: int, rows: Sequence[Row]) -> pa.Table:
    ids = [identifier for identifier, _ in rows]
    texts = [f"text {part_index}.{number} of {identifier}" for number, identifier in enumerate(ids)]
    table = documents(texts, ids)
    columns = [table.column(name) for name in table.column_names]
    numbers = pa.array([part_index] * len(rows), pa.int32())
    columns[table.schema.get_field_index("shard_index")] = pa.chunked_array([numbers])
    scores = pa.array([score or 0 for _, score in rows], pa.int8())
    probs = [None if score is None else np.eye(6)[score].tolist() for _, score in rows]
    return pa.table([*columns, scores, pa.array(probs, pa.list_(pa.float32()))], schema=SCORED_DOCUMENTS)


@versioned("hand_out_scored", 1)
def hand_out_scored(part: Part, *, batch_rows: int, says_missing: bool) -> Rows:
    """Scored rows of the value, with the statistics of the scoring."""
    table = table_of(part.index, part.value)

    def batches() -> Generator[pa.RecordBatch, None, dict[str, Any]]:
        is_first = first_of_ids(distinct_rows(TablePart(table)).of_row)
        classes = ClassCounts()
        source, score = table.column("source").combine_chunks(), table.column("safety_score").to_numpy()
        null = table.column("safety_probs").is_null().to_numpy()
        classes.add(source, score, is_first & ~null if says_missing else is_first)
        yield from table.to_batches(max_chunksize=batch_rows)
        says = {"distinct_without_score": int((null & is_first).sum())} if says_missing else {}
        return {"by_source": classes.by_source(), **says}

    return Rows(SCORED_DOCUMENTS, batches())


def scored_store(
    root: Path, parts: Sequence[Sequence[Row]], batch_rows: int = 1000, says_missing: bool = True
) -> Shards:
    values = [[list(row) for row in part] for part in parts]
    planned = Shards.from_values(values, list(map(value_digest, values)))
    return kept(root, planned.map(hand_out_scored, batch_rows=batch_rows, says_missing=says_missing))


def some_parts(parts: int = 7, rows: int = 60) -> list[list[Row]]:
    """Ids repeat in a part and over parts; some are null; class k is rarer the larger k."""
    made: list[list[Row]] = []
    generator = numpy_generator(5)
    for _ in range(parts):
        numbers = generator.integers(0, rows // 2, rows).tolist()
        ids = [None if number == 3 else f"d{number}" for number in numbers]
        scores = {f"d{number}": min(5, int(generator.exponential(1.2))) for number in range(rows)}
        made.append([(i, min(5, len(ids) % 6) if i is None else scores[i]) for i in ids])
    return made


def members(parts: Sequence[Sequence[Row]]) -> dict[int, set[tuple[int, int]]]:
    """Part and row of the population of each class, the slow way."""
    found: dict[int, set[tuple[int, int]]] = {k: set() for k in range(6)}
    for index, part in enumerate(parts):
        seen = set()
        for number, (identifier, score) in enumerate(part):
            if identifier is None or identifier not in seen:
                seen.add(identifier)
                if score is not None:
                    found[score].add((index, number))
    return found


def addresses(audit: Any, k: int | None = None) -> list[tuple[int, int]]:
    return [
        (row["shard_index"], row["row"])
        for row, key in zip(audit.sample, audit.key, strict=True)
        if k is None or key["safety_score"] == k
    ]


def test_every_class_gives_its_documents_each_id_once_a_part(tmp_path: Path) -> None:
    parts = some_parts()
    audit = draw_audit(scored_store(tmp_path, parts), AuditParameters(seed=1, per_class=8))
    expected = members(parts)
    assert audit.population == tuple(len(expected[k]) for k in range(6))
    assert min(audit.population) < 8 < max(audit.population), "a class has fewer, another more"
    for k in range(6):
        drawn = addresses(audit, k)
        assert len(drawn) == len(set(drawn)) == min(8, len(expected[k]))
        assert set(drawn) <= expected[k]
    for row in audit.sample:
        assert row["text"].startswith(f"text {row['shard_index']}.{row['row']} of ")
    assert (
        [row["item"] for row in audit.sample]
        == [row["item"] for row in audit.key]
        == list(range(1, len(audit.sample) + 1))
    )
    order = [row["safety_score"] for row in audit.key]
    assert order != sorted(order)


def test_the_sample_does_not_depend_on_batches_and_a_larger_one_holds_it(tmp_path: Path) -> None:
    parts = some_parts()
    parameters = AuditParameters(seed=3, per_class=5)
    audits = [draw_audit(scored_store(tmp_path / str(n), parts, n), parameters) for n in (1, 7, 1000)]
    assert audits[0] == audits[1] == audits[2]
    store = scored_store(tmp_path / "7", parts, 7)
    larger = draw_audit(store, AuditParameters(seed=3, per_class=9))
    assert set(addresses(audits[0])) < set(addresses(larger))
    assert set(addresses(draw_audit(store, AuditParameters(seed=4, per_class=5)))) != set(addresses(audits[0]))


def test_every_document_of_a_class_is_drawn_equally_often(tmp_path: Path) -> None:
    store = scored_store(tmp_path, [[(f"a{n}", 2) for n in range(7)], [], [(f"b{n}", n % 2) for n in range(5)]])
    draws = 80
    times = Counter(
        place
        for seed in range(draws)
        for place in addresses(draw_audit(store, AuditParameters(seed=seed, per_class=3)))
    )
    of_class_2 = np.array([times[0, row] for row in range(7)])
    expected = draws * 3 / 7
    assert of_class_2.sum() == draws * 3
    assert (np.abs(of_class_2 - expected) < 5 * math.sqrt(expected * (1 - 3 / 7))).all()
    assert times[2, 1] == times[2, 3] == draws, "a class of two gives both"


def test_documents_without_a_score_are_not_in_the_population(tmp_path: Path) -> None:
    parts: list[list[Row]] = [[("a", None), ("a", None), ("b", 0), (None, None)], [("c", 0), ("d", 5)], [("e", None)]]
    store = scored_store(tmp_path, parts)
    audit = draw_audit(store, AuditParameters(seed=1, per_class=10))
    assert (audit.population, audit.without_score) == ((2, 0, 0, 0, 0, 1), 3)
    assert set(addresses(audit)) == {(0, 2), (1, 0), (1, 1)}
    lines = list(audit_lines(write_audit(audit, tmp_path / "audit")))
    assert lines[-1] == "3 documents without a score are in no class"
    assert lines[1].split() == ["0", "safe", "2", "2", "all", "there", "are;", "10", "wanted"]
    with pytest.raises(ScoringError, match=r"no document with a score \(1 without\)"):
        draw_audit(scored_store(tmp_path / "none", [[("e", None)]]), AuditParameters(seed=1, per_class=10))


def test_statistics_that_are_not_of_the_rows_are_refused(tmp_path: Path) -> None:
    store = scored_store(tmp_path, [[("a", None), ("b", 1)]], says_missing=False)
    with pytest.raises(ScoringError, match=r"part_00000.*count \[1, 1, 0, 0, 0, 0\].*its rows \[0, 1, 0, 0, 0, 0\]"):
        draw_audit(store, AuditParameters(seed=1, per_class=10))


def test_only_parts_with_drawn_documents_are_read_and_they_are_verified(tmp_path: Path) -> None:
    store = scored_store(tmp_path, [[(f"{part}-{n}", 0) for n in range(3)] for part in range(40)])
    parameters = AuditParameters(seed=1, per_class=4)
    audit = draw_audit(store, parameters)
    used = {part for part, _ in addresses(audit)}
    for part in set(range(40)) - used:
        (tmp_path / f"part_{part:05d}.parquet").unlink()
    assert draw_audit(store, parameters) == audit
    path = tmp_path / f"part_{min(used):05d}.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DamagedStore, match=path.name):
        draw_audit(store, parameters)


def test_the_draw_is_fast_for_twenty_thousand_parts_of_a_billion_rows() -> None:
    """Ranks and places only: there is no such store here, and its parts would be read one by one."""
    from everytoken.corpus.scoring.audit import _places

    counts = np.tile(np.array([38_000, 5_000, 4_000, 1_300, 500, 480], np.int64), (20_000, 1))
    places = _places(counts, AuditParameters(seed=1, per_class=200))
    assert len(places) == len(set(places)) == 1_200
    assert all(0 <= place.number < counts[place.part, place.predicted] for place in places)
    assert len({place.part for place in places}) > 1_000


def test_files_of_an_audit_are_blind_and_another_sample_does_not_replace_them(tmp_path: Path) -> None:
    store = scored_store(tmp_path / "store", some_parts())
    audit = draw_audit(store, AuditParameters(seed=1, per_class=3))
    folder = tmp_path / "audit"
    described = write_audit(audit, folder)
    sample = (folder / "sample.jsonl").read_text()
    assert "safety" not in sample and "safety" not in (folder / "label.html").read_text()
    assert list(json.loads(sample.split("\n")[0])) == [
        "item", "id", "id_type", "source", "stratum", "shard_index", "row", "text",
    ]  # fmt: skip
    first_key = json.loads((folder / "key.jsonl").read_text().split("\n")[0])
    assert first_key["safety_probs"] == np.eye(6)[first_key["safety_score"]].tolist()
    assert described["scored_documents"] == store.root_digest
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert sorted(files) == ["audit.json", "key.jsonl", "label.html", "sample.jsonl"]
    (folder / "label.html").write_text("cut")
    write_audit(audit, folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    with pytest.raises(ScoringError, match=r"holds another audit \(seed 1, 3 a class.*this one is seed 2, 3 a class"):
        write_audit(draw_audit(store, AuditParameters(seed=2, per_class=3)), folder)
    (folder / "audit.json").write_text("{}")
    with pytest.raises(ScoringError, match=r"audit.json cannot be read"):
        write_audit(audit, folder)


def test_975_predicted_severe_of_which_a_fortieth_is() -> None:
    """The audit that the published corpus reports: 2.7 % of 975 documents confirmed, 61 % benign."""
    predicted = dict.fromkeys(range(1, 976), 5)
    labels: dict[int, int | None] = {item: 5 if item <= 26 else 0 if item <= 26 + 595 else 2 for item in predicted}
    report = audit_report([0, 0, 0, 0, 0, 3_769_706], predicted, labels)
    severe = report["by_class"][5]
    assert severe["precision"]["estimate"] == pytest.approx(0.0267, abs=5e-5)
    # Wilson by hand: (p + z2/2n -+ z sqrt(p(1-p)/n + z2/4n2)) / (1 + z2/n)
    n, p, z = 975, 26 / 975, 1.959963984540054
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    expected = [(centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)]
    assert [severe["precision"][name] for name in ("low", "high")] == pytest.approx(expected)
    assert report["confusion"][5] == [595, 0, 354, 0, 0, 26]
    assert severe["mean_label"] == pytest.approx((2 * 354 + 5 * 26) / 975)
    assert report["by_threshold"][4]["precision"]["estimate"] == severe["precision"]["estimate"]
    assert report["by_threshold"][4]["precision"]["low"] == pytest.approx(expected[0]), "one class: its own interval"
    lines = list(report_lines({"without_score": 0, **report}, 5))
    assert any(line.startswith("5 severe") and "2.7% (1.8% - 3.9%)" in line for line in lines)


def test_the_weighted_proportion_by_hand() -> None:
    """Weights 0.9 and 0.1; p 0.2 and 0.5."""
    found = weighted_proportion([Stratum(900, 10, 2), Stratum(0, 0, 0), Stratum(100, 20, 10)])
    assert found["estimate"] == pytest.approx(0.9 * 0.2 + 0.1 * 0.5)
    assert found["standard_error"] == pytest.approx(math.sqrt(0.81 * 0.2 * 0.8 / 9 + 0.01 * 0.5 * 0.5 / 19))
    (l1, u1), (l2, u2) = (
        (b["low"], b["high"]) for b in (proportion(Stratum(1, 10, 2)), proportion(Stratum(1, 20, 10)))
    )
    assert l1 and u1 and l2 and u2
    assert found["low"] == pytest.approx(0.23 - math.sqrt((0.9 * (0.2 - l1)) ** 2 + (0.1 * (0.5 - l2)) ** 2))
    assert found["high"] == pytest.approx(0.23 + math.sqrt((0.9 * (u1 - 0.2)) ** 2 + (0.1 * (u2 - 0.5)) ** 2))
    none = weighted_proportion([Stratum(900, 50, 0), Stratum(100, 50, 0)])
    assert none["estimate"] == none["low"] == none["standard_error"] == 0
    assert none["high"] is not None and 0.05 < none["high"] < 0.08, "nothing found is not nothing there"
    assert weighted_proportion([Stratum(900, 10, 2), Stratum(100, 0, 0)])["estimate"] is None
    assert weighted_proportion([])["estimate"] is None
    assert weighted_proportion([Stratum(9, 5, 2), Stratum(3, 1, 1)])["standard_error"] is None


@pytest.mark.parametrize("p", [(0.3, 0.6, 0.1), (0.02, 0.01, 0.2), (0.0, 0.03, 0.5)])
def test_intervals_cover_the_truth_19_times_of_20(p: tuple[float, ...]) -> None:
    populations, labelled, times = (3_000, 500, 1_500), 50, 300
    drawn = numpy_generator(2).binomial(labelled, p, size=(times, 3)).tolist()
    truth = float(np.dot(populations, p) / sum(populations))
    covered = 0
    for having in drawn:
        strata = [Stratum(size, labelled, x) for size, x in zip(populations, having, strict=True)]
        found = weighted_proportion(strata)
        assert found["low"] is not None and found["high"] is not None
        covered += found["low"] <= truth <= found["high"]
    assert covered / times > 0.93


def test_what_is_not_labelled_or_cannot_be_told_is_counted_and_in_no_proportion() -> None:
    predicted = {1: 3, 2: 3, 3: 3, 4: 3, 5: 0, 6: 4}
    report = audit_report([90, 0, 0, 10, 5, 0], predicted, {1: 3, 2: 1, 3: None, 5: 4})
    assert (report["items"], report["labelled"], report["cannot_tell"], report["not_labelled"]) == (6, 3, 1, 2)
    moderate = report["by_class"][3]
    assert [moderate[name] for name in ("drawn", "labelled", "cannot_tell", "not_labelled")] == [4, 2, 1, 1]
    assert moderate["precision"]["estimate"] == 0.5
    assert moderate["labelled_at_or_above"]["1"]["estimate"] == 1
    assert moderate["mean_label"] == 2
    third = report["by_threshold"][2]
    assert third["predicted_at_or_above"] == 15
    assert third["precision"]["estimate"] is None, "class 4 has documents and no label"
    assert third["labelled_at_or_above_of_those_below"]["estimate"] == 1
    lines = list(report_lines({"without_score": 7, **report}, 3))
    assert lines[:2] == [
        "6 items: 3 labelled, 1 cannot tell, 2 not labelled",
        "7 documents without a score are in no class, and in no figure here",
    ]
    (used,) = (line for line in lines if "(used)" in line)
    assert used.split()[:4] == ["3", "(used)", "15", "-"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"item": 3, "label": 6}', "line 2: the label of item 3 is 6"),
        ('{"item": 3, "label": true}', "line 2: the label of item 3 is true"),
        ('{"item": 3, "label": 2.0}', "line 2: the label of item 3 is 2.0"),
        ('{"item": 3, "label": "2"}', 'line 2: the label of item 3 is "2"'),
        ('{"item": 3}', 'line 2: found {"item": 3}; expected'),
        ('{"item": 8, "label": 1}', "line 2: there is no item 8; the sample has items 1 to 7"),
        ('{"item": 0, "label": 1}', "line 2: there is no item 0"),
        ('{"item": 1, "label": 1}', "line 2: item 1 has a label in line 1 already"),
        ("[3, 2]", "line 2: found"),
        ("{item: 3}", "line 2: no JSON"),
        ('{"item": 3, "label": 2, "item": 4}', "line 2: no JSON to go by (a JSON object has the name 'item' more than"),
        ("[" * 200_000, "line 2: no JSON to go by (the JSON is nested deeper than 256); expected"),
        ('{"item": 3, "label": 1, "by": "\udcff"}', "line 2: no JSON to go by (not valid UTF-8"),
        ('{"item": 3, "label": 1, "sample": "ff"}', "line 2: this label is of the sample ff, the folder holds ab"),
    ],
)
def test_labels_are_checked(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"item": 1, "label": null}\n' + line + "\n", errors="surrogateescape")
    with pytest.raises(ScoringError) as error:
        read_labels(path, 7, "ab")
    assert str(error.value).startswith(f"{path}, {said}")


def test_labels_may_come_from_other_tools(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"label": 5, "item": 2, "by": "x"}\r\n\r\n{"item": 1, "label": null}')
    assert read_labels(path, 7, "ab") == {2: 5, 1: None}
    path.write_bytes(b'{"item": 1, "label": null, "by": "\xff"}')
    with pytest.raises(ScoringError, match="not valid UTF-8"):
        read_labels(path, 7, "ab")


def test_a_file_without_any_label_leaves_the_report_as_it_is(tmp_path: Path) -> None:
    audit = draw_audit(scored_store(tmp_path / "store", some_parts()), AuditParameters(seed=1, per_class=3))
    write_audit(audit, tmp_path / "audit")
    labels, report = tmp_path / "labels.jsonl", tmp_path / "audit/report.json"
    labels.write_text('{"item": 1, "label": null}\n')
    assert report_labels(tmp_path / "audit", labels)["cannot_tell"] == 1, "who cannot tell has said so"
    before = report.read_bytes()
    for empty in ("", "\n \r\n"):
        labels.write_text(empty)
        with pytest.raises(ScoringError, match=r"labels.jsonl has no label\. Label on the page"):
            report_labels(tmp_path / "audit", labels)
    assert report.read_bytes() == before


def test_a_report_is_of_the_key_that_was_written(tmp_path: Path) -> None:
    parts = some_parts()
    audit = draw_audit(scored_store(tmp_path / "store", parts), AuditParameters(seed=1, per_class=3))
    write_audit(audit, tmp_path / "audit")
    labels = tmp_path / "labels.jsonl"
    right = [{"item": key["item"], "label": key["safety_score"]} for key in audit.key]
    labels.write_text("".join(json.dumps(row) + "\n" for row in right))
    report = report_labels(tmp_path / "audit", labels)
    assert report == json.loads((tmp_path / "audit/report.json").read_text())
    assert {row["precision"]["estimate"] for row in report["by_class"]} == {1.0}
    assert [row["population"] for row in report["by_class"]] == [len(members(parts)[k]) for k in range(6)]
    key = tmp_path / "audit/key.jsonl"
    key.write_text(key.read_text().replace('"safety_score": 1', '"safety_score": 2'))
    with pytest.raises(ScoringError, match=r"key.jsonl is not the file that was written"):
        report_labels(tmp_path / "audit", labels)
    with pytest.raises(ScoringError, match=r"holds no audit"):
        report_labels(tmp_path, labels)


def test_population_is_counted_from_statistics_alone(tmp_path: Path) -> None:
    store = scored_store(tmp_path, some_parts(), says_missing=False)
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    counts, without_score = population(store)
    assert counts.sum(axis=0).tolist() == [len(found) for found in members(some_parts()).values()]
    assert without_score == 0
