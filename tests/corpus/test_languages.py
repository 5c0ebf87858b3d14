"""Languages of real texts, joined to documents by their addresses, as a table and as strata of a draw."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everytoken.corpus import (
    LanguageError,
    LanguageParameters,
    LanguageStatistics,
    SamplingError,
    identify_part,
    language_table,
    require_identifier,
)
from everytoken.corpus.documents import SCORED_DOCUMENTS
from everytoken.corpus.languages import identify_language
from everytoken.corpus.sampling import estimate_part_tokens, select_split, totals_of
from everytoken.pipelines.subsampling.nodes import estimate_tokens
from everytoken.shards import Part, Rows, Shards, Store, Unchanged, make_engine, versioned
from tests.corpus.part_tables import TablePart, collect, documents, value_part
from tests.corpus.sampling.test_sampling import subsampling

# the first article of the Universal Declaration of Human Rights
TEXTS = {
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt "
    "und sollen einander im Geiste der Brüderlichkeit begegnen.",
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
    "conscience and should act towards one another in a spirit of brotherhood.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
}
TOO_LITTLE = ("", "ok", "12345 + 67 = 12412, 3.14159 > 2.71828; 1/2 1/3 1/4", "\n\n--- *** ---\n")


def parameters(**changes: Any) -> LanguageParameters:
    base = {"kind": "langid", "version": "0.4.0", "max_characters": 2000, "min_letters": 10, "min_confidence": 0.5}
    return LanguageParameters.model_validate({**base, **changes})


@pytest.mark.parametrize("language", TEXTS)
def test_the_language_of_a_text_is_found(language: str) -> None:
    found, confidence = identify_language(TEXTS[language], parameters())
    assert found == language and confidence > 0.9 and confidence == round(confidence, 2)
    assert identify_language(TEXTS[language].upper(), parameters())[0] == language


def test_a_text_that_says_too_little_is_undetermined() -> None:
    assert [identify_language(text, parameters()) for text in TOO_LITTLE] == [("und", 0.0)] * 4
    few = parameters(min_letters=1, min_confidence=0.02)
    assert identify_language("ok", few) == ("und", 0.01), "no n-gram is known"
    mixed = " ".join(TEXTS.values())
    assert identify_language(mixed, parameters(min_confidence=1))[0] == "und"
    assert identify_language(TEXTS["fr"] + TEXTS["de"] * 9, parameters(max_characters=len(TEXTS["fr"])))[0] == "fr"


def test_languages_are_those_of_the_library() -> None:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    library = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text in TEXTS.values():
        for length in (20, 30, 60, 200):
            language, confidence = library.classify(text[:length])
            found = identify_language(text[:length], parameters(min_letters=1, min_confidence=0.02))
            assert found == (language, pytest.approx(confidence, abs=0.006))


def test_each_document_has_a_row_with_its_address() -> None:
    texts = [*TEXTS.values(), *TOO_LITTLE]
    table, statistics = collect(identify_part(TablePart(documents(texts), batch_rows=3), parameters=parameters()))
    assert table.column("language").to_pylist() == [*TEXTS, *["und"] * 4]
    assert table.column_names == ["source", "shard_index", "row", "language", "confidence"]
    assert table.column("row").to_pylist() == list(range(8))
    undetermined = {"documents": 4, "characters": sum(map(len, TOO_LITTLE))}
    assert statistics["rows"] == 8 and statistics["by_source"]["s"]["und"] == undetermined


def test_the_table_has_each_source_and_all_of_them() -> None:
    tables = [documents([TEXTS["de"], TEXTS["de"], TEXTS["en"]], source="a"), documents([TEXTS["de"]], source="b")]
    made: list[LanguageStatistics] = [
        collect(identify_part(TablePart(table), parameters=parameters()))[1]  # type: ignore[misc]
        for table in tables
    ]
    lines = language_table(made)
    counts = [(line["group"], line["source"], line["language"], line["documents"]) for line in lines]
    assert counts == [
        ("source", "a", "de", 2),
        ("source", "a", "en", 1),
        ("source", "b", "de", 1),
        ("all", "", "de", 3),
        ("all", "", "en", 1),
    ]
    de, en = len(TEXTS["de"]), len(TEXTS["en"])
    assert lines[0]["share"] == 2 * de / (2 * de + en) and lines[3]["characters"] == 3 * de
    assert language_table([]) == []


def test_the_library_is_asked_for_by_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LanguageError, match=r"version is 0\.3\.0, installed is py3langid 0\.4\.0"):
        require_identifier("0.3.0")

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(LanguageError, match=r"not installed: pip install py3langid==0\.4\.0"):
        require_identifier("0.4.0")


@versioned("texts_in_languages", 1)
def texts_in_languages(part: Part) -> Rows | Unchanged:
    """Documents in four languages; made in worker processes."""
    texts = [text[(number * 7) % 40 :] for number in range(20) for text in [*TEXTS.values(), *TOO_LITTLE]]
    return Rows(documents(texts).schema, _without_statistics(documents(texts[part.index :])))


def _without_statistics(table: pa.Table) -> Any:
    yield from table.combine_chunks().to_batches(max_chunksize=50)
    return {}


def test_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    given = Shards.from_values(list(range(6)), [f"{i:064x}" for i in range(6)])
    Store(tmp_path / "documents").save(given.map(texts_in_languages), make_engine("inline"))
    planned = Store(tmp_path / "documents").load().map(identify_part, parameters=parameters())
    files = []
    for workers in (0, 1, 2, 5):
        folder = tmp_path / f"by {workers}"
        Store(folder).save(planned, make_engine("processes", workers) if workers else make_engine("inline"))
        files.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert len(files[0]) == 7 and all(other == files[0] for other in files)


def scored_texts(texts: list[str]) -> TablePart:
    table = documents(texts)
    columns = {name: table.column(name) for name in table.column_names}
    columns["safety_score"] = pa.array([number % 6 for number in range(len(texts))], pa.int8())
    columns["safety_probs"] = pa.array([[0.0] * 6] * len(texts), pa.list_(pa.float32()))
    return TablePart(pa.table(columns, schema=SCORED_DOCUMENTS))


def drawn(part: TablePart, strata: dict[str, Any]) -> tuple[set[str], list[str]]:
    """Return the strata, and the texts that are drawn."""
    chosen = subsampling(annotation_threshold=3, strata={"key": "language", **strata})
    languages = TablePart(collect(identify_part(part, parameters=parameters()))[0], batch_rows=11)
    estimate = estimate_part_tokens(part, languages, parameters=chosen.estimate)
    totals = totals_of([estimate], chosen)
    splits = [
        collect(select_split(part, value_part(estimate), languages, split=split, parameters=chosen, totals=totals))[0]
        for split in ("annotated", "unannotated")
    ]
    return set(estimate), [text for split in splits for text in split.column("text").to_pylist()]


def test_a_draw_has_shares_of_languages() -> None:
    part = scored_texts([*TEXTS.values(), *TOO_LITTLE] * 9)
    names, texts = drawn(part, {})
    assert names == {*TEXTS, "und"} and len(texts) == part.rows
    names, texts = drawn(part, {"languages": ["de", "fr"], "shares": {"de": 0.5, "fr": 0.5, "other": 0}})
    assert names == {"de", "fr", "other"}
    assert set(texts) == {TEXTS["de"], TEXTS["fr"]} and len(texts) > 9


def test_languages_of_other_documents_are_refused() -> None:
    part = scored_texts(list(TEXTS.values()))
    chosen = subsampling(strata={"key": "language"})
    of_others = collect(identify_part(TablePart(documents(list(TEXTS.values()), source="b")), parameters=parameters()))
    with pytest.raises(SamplingError, match="part_00000: the languages are those of other documents"):
        estimate_part_tokens(part, TablePart(of_others[0]), parameters=chosen.estimate)
    with pytest.raises(SamplingError, match=r"give ingestion\.languages, and run the pipeline languages first"):
        estimate_tokens(Shards.from_values([], []), chosen)
