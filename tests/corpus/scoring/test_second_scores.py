"""Second scores: a column for each further scorer, the first scores as they were, and bounds that the draw keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from everytoken.corpus.documents import SCORED_DOCUMENTS
from everytoken.corpus.errors import SamplingError, ScoringError
from everytoken.corpus.sampling.splits import estimate_part_tokens
from everytoken.corpus.scoring.score import score_part
from everytoken.corpus.scoring.second_scores import score_part_with_second, scorer_in
from everytoken.corpus.scoring.transformer import TransformersScorer
from everytoken.corpus.scoring.word_counts import WordsScorer, word_scores
from everytoken.parameters import AnnotationParameters
from everytoken.pipelines.annotation.nodes import prepare_scorer, score_documents
from everytoken.shards import ArtifactStore, Inline, Store, WorkerProcesses
from tests.corpus.part_tables import TablePart, collect, documents
from tests.corpus.sampling.test_sampling import subsampling
from tests.corpus.sampling.test_splits import split_all
from tests.corpus.scoring.small_models import save_modernbert, some_texts
from tests.corpus.scoring.small_models import scorer as transformer
from tests.corpus.scoring.tables import Document, stored
from tests.corpus.scoring.test_embedded import scorer
from tests.test_run import Project

WORDS = {"kind": "words", "words": {"theorem": 2.0, "tea": 1.0, "damn": -4.0}, "max_chars": 500}
QUALITY = WordsScorer.model_validate(WORDS)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["theorem", "Tea", "damn", "x", "ein", "é", "tea-time", "\n"]), max_size=40))
def test_a_list_of_words_counts_each_occurrence(words: list[str]) -> None:
    text = " ".join(words)
    found = re.findall(r"\b\w\w+\b", text.lower())
    expected = 1000 * sum(QUALITY.words.get(word, 0.0) for word in found) / max(1, len(found))
    made = word_scores([text, "", text], QUALITY)
    assert made.dtype == np.float32 and made[1] == 0
    assert made[0] == made[2] == np.float32(expected)


@pytest.mark.parametrize("word", ["a", "Theorem", "two words", ""])
def test_what_is_no_word_is_refused(word: str) -> None:
    with pytest.raises(ValidationError, match="is no word as they are counted"):
        WordsScorer.model_validate({**WORDS, "words": {word: 1.0}})


@pytest.mark.parametrize("batch_rows", [1, 5, 1000])
def test_second_scores_are_columns_and_leave_the_first_as_they_are(batch_rows: int) -> None:
    texts = [f"{text} theorem" if row % 3 else text for row, text in enumerate(some_texts(40))]
    ids: list[str | None] = [None if row % 5 == 0 else f"{row % 17}" for row in range(len(texts))]
    part = TablePart(documents(texts, ids), batch_rows)
    second = {"quality": QUALITY, "tone": scorer(slope=1.0)}
    first, plain = collect(score_part(part, scorer=scorer(), model=None))
    table, statistics = collect(score_part_with_second(part, scorer=scorer(), model=None, second=second, models={}))
    assert table.select(SCORED_DOCUMENTS.names) == first and table.schema.names[-2:] == ["quality", "tone"]
    assert {name: value for name, value in statistics.items() if name != "second_scores"} == plain
    seen: dict[str, int] = {}
    first_text = [texts[row if one is None else seen.setdefault(one, row)] for row, one in enumerate(ids)]
    assert table.column("quality").to_pylist() == word_scores(first_text, QUALITY).tolist()
    tones, _ = collect(score_part(part, scorer=second["tone"], model=None))  # type: ignore[arg-type]
    probs = np.array(tones.column("safety_probs").to_pylist())
    np.testing.assert_allclose(table.column("tone").to_numpy(), probs @ np.arange(6), rtol=1e-6)
    (counted,) = statistics["second_scores"]["quality"].values()
    assert counted["rows"] == len(texts) == sum(counted["by_value"].values())


def annotation(**changes: Any) -> AnnotationParameters:
    base = {"scorer": scorer().model_dump(), "fetched": "", "near": [0.1], "memory": 1 << 26, "max_unknown_words": 1.0}
    return AnnotationParameters.model_validate({**base, "audit": {"seed": 1, "per_class": 1}, **changes})


def test_a_classifier_is_brought_as_part_of_the_scorer(tmp_path: Path) -> None:
    source = save_modernbert(tmp_path / "model")
    given = transformer().model_dump(mode="json") | {"model": {"kind": "folder", "path": str(source)}}
    parameters = annotation(fetched=str(tmp_path / "raw"), second_scores={"quality": given, "words": WORDS})
    texts = some_texts(30)
    kept = stored(tmp_path / "documents", [[Document(str(row), text=text) for row, text in enumerate(texts)]])
    store = ArtifactStore(tmp_path / "scorer")
    store.save(prepare_scorer(kept, {}, parameters))
    gathered = store.load()
    planned = score_documents(kept, gathered, parameters)
    made = [Store(tmp_path / name) for name in ("inline", "workers")]
    for one, engine in zip(made, (Inline(), WorkerProcesses(2)), strict=True):
        one.save(planned, engine)
    assert made[0].ledger() == made[1].ledger()
    (scored_part,) = made[0].load().parts
    classifier = parameters.second_scores["quality"]
    assert isinstance(classifier, TransformersScorer)
    alone, _ = collect(score_part(kept.parts[0], scorer=classifier, model=scorer_in(gathered, "quality")))
    probs = np.array(alone.column("safety_probs").to_pylist())
    found = scored_part.table(["quality"]).column(0).to_numpy()
    np.testing.assert_allclose(found, probs @ np.arange(6), rtol=1e-6)
    assert len(set(found.tolist())) > 5
    (source / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:-4] + b"\0\0\1\0")
    again = prepare_scorer(kept, {}, parameters)
    assert again.recipe is not None and again.recipe.fingerprint([]) != gathered.ledger["fingerprint"]


def classified(folder: Path, labels: int, label: str | None, **changes: Any) -> tuple[list[str], Any]:
    """Score texts by a classifier with so many labels as the pipeline does; return them and the second scores."""
    source = save_modernbert(folder / "model", labels=labels, **changes)
    model = {"model": {"kind": "folder", "path": str(source)}, "label": label}
    alone = {"tokens_per_call": 32}  # products with two or three columns round by the place of a row on some CPUs
    given = transformer().model_dump(mode="json") | model | alone
    parameters = annotation(fetched=str(folder / "raw"), second_scores={"quality": given})
    texts = [text for text in some_texts(30) if text]
    kept = stored(folder / "documents", [[Document(str(row), text=text) for row, text in enumerate(texts)]])
    store = ArtifactStore(folder / "scorer")
    store.save(prepare_scorer(kept, {}, parameters))
    scored = Store(folder / "scored")
    scored.save(score_documents(kept, store.load(), parameters), Inline())
    return texts, scored.load().parts[0].table(["quality"]).column(0).to_numpy()


MULTI = {"problem_type": "multi_label_classification"}


@pytest.mark.parametrize(
    ("labels", "label", "changes"),
    [
        (1, None, {"problem_type": "regression"}),
        (2, None, {}),
        (2, "LABEL_0", {}),
        (4, None, {}),
        (9, "LABEL_7", {}),
        (3, "LABEL_2", MULTI),
    ],
)
def test_a_classifier_of_any_labels_is_a_second_score(
    tmp_path: Path, labels: int, label: str | None, changes: dict[str, Any]
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

    texts, scores = classified(tmp_path, labels, label, **changes)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    with torch.inference_mode():
        logits = torch.cat(
            [model(**tokenizer(text, return_tensors="pt", max_length=128, truncation=True)).logits for text in texts]
        ).float()
    if labels == 1:
        expected = logits[:, 0]
    elif changes is MULTI:
        expected = torch.sigmoid(logits)[:, 2]
    else:
        probabilities = torch.softmax(logits, dim=-1)
        number = None if label is None else int(label.removeprefix("LABEL_"))
        expected = probabilities @ torch.arange(labels).float() if number is None else probabilities[:, number]
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-3, atol=1e-4)
    assert len(set(scores.tolist())) > 5


def test_a_label_that_is_none_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"has 0 labels 'good' among .*LABEL_1.*Set label to the name"):
        classified(tmp_path / "none", 2, "good")
    with pytest.raises(ScoringError, match=r"no expected one. Set label to one of \['LABEL_0', 'LABEL_1', 'LABEL_2'\]"):
        classified(tmp_path / "multi", 3, None, **MULTI)
    texts, scores = classified(tmp_path / "named", 3, "LABEL_0", **MULTI)
    assert len(scores) == len(texts)


@pytest.mark.parametrize("name", ["text", "safety_score", "first", "Quality", "a-b"])
def test_a_name_that_documents_have_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="second_scores"):
        annotation(second_scores={name: WORDS})


def test_the_draw_takes_documents_within_the_bounds_and_counts_the_others() -> None:
    texts = ["theorem " * (row % 4) + "word " * (40 - row % 4) for row in range(200)]
    tables = [documents([f"{text}{row}" for row, text in enumerate(texts)][half::2]) for half in (0, 1)]
    second = {"quality": QUALITY}
    parts = [
        TablePart(
            collect(score_part_with_second(TablePart(table), scorer=scorer(), model=None, second=second, models={}))[0],
            index=index,
        )
        for index, table in enumerate(tables)
    ]
    bounds = {"quality": {"at_least": 40.0, "at_most": 110.0}}
    parameters = subsampling(annotation_threshold=1, held_out_share=0.1, score_bounds=bounds)
    made = split_all(parts, parameters)
    within = 0
    for number, part in enumerate(parts):
        for split in ("annotated", "unannotated"):
            scores = made[split][number][0].column("quality").to_numpy()
            assert ((scores >= 40) & (scores <= 110)).all()
            within += len(scores)
        counted, held_out = made["annotated"][number][1], made["held_out"][number][0]
        scores = np.concatenate([part.table(["quality"]).column(0).to_numpy()])
        outside = (scores < 40) | (scores > 110)
        held = np.isin(part.table(["row"]).column(0).to_numpy(), held_out.column("row").to_numpy())
        assert counted["outside_score_bounds"] == np.count_nonzero(outside & ~held) > 0
        assert counted["not_drawn"] >= counted["outside_score_bounds"]
        assert counted["rows_in"] == sum(counted[s] for s in ("annotated", "unannotated", "held_out", "not_drawn"))
    assert within > 20
    with pytest.raises(SamplingError, match=r"no score 'tone', which subsampling.score_bounds names"):
        estimate_part_tokens(parts[0], parameters=subsampling(score_bounds={"tone": {"at_least": 1}}))


@pytest.mark.slow
def test_a_run_with_second_scores_reports_and_traces_them(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    folder = project.folder / "conf/second"
    folder.mkdir()
    for path in (project.folder / "conf/test").iterdir():
        (folder / path.name).write_text(path.read_text().replace("data/test", "data/second"))
    (folder / "parameters_annotation.yml").write_text(
        "annotation:\n  second_scores:\n    articles: {kind: words, words: {the: 1.0, of: 1.0}, max_chars: 1000}\n"
    )
    sampling = folder / "parameters_subsampling.yml"
    tree = yaml.safe_load(sampling.read_text())
    tree["subsampling"]["score_bounds"] = {"articles": {"at_least": 50.0}}
    sampling.write_text(yaml.safe_dump(tree))
    project.kedro(
        "run", "--env", "second", "--pipelines", "ingestion,annotation,subsampling,tokenization,provenance,training"
    )
    data = project.folder / "data/second"
    metrics = json.loads((data / "08_reporting/annotation_metrics.json").read_text())
    assert 0 < metrics["second_scores"]["articles"]["mean"] < 200
    assert "articles_mean" in (data / "08_reporting/score_report.csv").read_text().splitlines()[0]
    drawn = json.loads((data / "08_reporting/subsampling_metrics.json").read_text())
    assert 0 < drawn["outside_score_bounds"] <= drawn["not_drawn"]
    for split in ("annotated", "unannotated"):
        for part in Store(data / f"04_feature/{split}_documents").load():
            assert (part.table(["articles"]).column(0).to_numpy() >= 50).all()
    traced = project.everytoken("trace", "--env", "second", "--step", "0")
    assert re.search(r"safety score \d, articles \d+", traced)
