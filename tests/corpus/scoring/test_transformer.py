from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError

from everytoken.corpus.documents import DOCUMENTS, SCORED_DOCUMENTS
from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring import transformer
from everytoken.corpus.scoring.score import score_part
from everytoken.corpus.scoring.transformer import TransformersScorer, transformers_scorer
from everytoken.parameters import AnnotationParameters
from everytoken.pipelines.annotation.nodes import score_documents
from everytoken.seeds import python_random
from everytoken.shards import (
    Artifact,
    ArtifactStore,
    Inline,
    PartsFailed,
    Rows,
    Shards,
    Store,
    WorkerProcesses,
    versioned,
)
from tests.corpus.part_tables import TablePart, collect, documents
from tests.corpus.scoring.small_models import (
    as_artifact,
    probabilities,
    save_modernbert,
    save_other,
    save_own_model,
    save_tokenizer,
    scorer,
    some_texts,
)

STRANGE = ["", "\n", "é", "😀" * 40, "\x00", "screw " * 200]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_modernbert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return as_artifact(source, tmp_path_factory.mktemp("made") / "model")


def damaged(model: Artifact, place: Path, change: Any) -> Artifact:
    """Return another artifact: of the same model with changed weights."""
    from safetensors.torch import load_file, save_file

    source = copied(model, place / "source")
    weights = load_file(source / "model.safetensors")
    change(weights)
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    return as_artifact(source, place / "model")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_score_does_not_depend_on_what_else_is_scored(model: Artifact, dtype: str) -> None:
    scored_by = transformers_scorer(scorer(dtype=dtype), model)
    texts = some_texts(60) + STRANGE
    together, counted = probabilities(scored_by, texts)
    assert together.dtype == np.float32
    assert len(set(together.argmax(axis=1).tolist())) > 2, "texts of several classes"
    order = list(range(len(texts)))
    python_random(3).shuffle(order)
    for batch in (1, 8, 64, len(texts)):
        for rows in (list(range(len(texts))), order):
            parts = [rows[start : start + batch] for start in range(0, len(rows), batch)]
            if batch == 1:
                parts = parts[::6]
            made = np.concatenate([probabilities(scored_by, texts, part)[0] for part in parts])
            expected = together[[row for part in parts for row in part]]
            assert made.tobytes() == expected.tobytes()
            assert (made.argmax(axis=1) == expected.argmax(axis=1)).all()
    assert counted["padded_tokens"] > counted["tokens"]


def test_no_call_is_without_padding(tmp_path: Path) -> None:
    """Attention without any takes another kernel, which would depend on the lengths of the other texts."""
    looking = as_artifact(save_own_model(tmp_path, trait="looks for padding"), tmp_path / "made", custom_code=True)
    full = ["\x01" * characters for characters in range(28, 34)]  # 30 to 35 tokens with the special ones
    for rows in (1, 2):
        scored_by = transformers_scorer(scorer(tokens_per_call=32 * rows), looking)
        together, _ = probabilities(scored_by, [text for text in full for _ in range(2)])
        for place, text in enumerate(full):
            alone, counted = probabilities(scored_by, [text])
            assert counted["tokens"] == 30 + place
            assert together[2 * place : 2 * place + 2].tobytes() == np.repeat(alone, 2, axis=0).tobytes()


def test_scores_are_those_of_the_model(model: Artifact, source: Path) -> None:
    texts = some_texts(25) + STRANGE
    made, _ = probabilities(transformers_scorer(scorer(), model), texts)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    for text, found in zip(texts, made, strict=True):
        tokens = tokenizer(text, truncation=True, max_length=128, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            expected = torch.softmax(plain(**tokens).logits, dim=-1)[0].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert found.argmax() == expected.argmax()


@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
def test_a_part_is_scored_in_order_whatever_its_batches(model: Artifact, batch_rows: int) -> None:
    texts = some_texts(40) + STRANGE
    ids: list[str | None] = [f"{row % 31}" for row in range(len(texts))]
    alone, _ = probabilities(transformers_scorer(scorer(), model), texts)
    part = TablePart(documents(texts, ids), batch_rows)
    table, statistics = collect(score_part(part, scorer=scorer(), model=model))
    assert table.schema == SCORED_DOCUMENTS
    first = [row % 31 for row in range(len(texts))]
    assert np.array(table.column("safety_probs").to_pylist(), np.float32).tobytes() == alone[first].tobytes()
    assert table.column("safety_score").to_pylist() == alone[first].argmax(axis=1).tolist()
    assert table.column("text").to_pylist() == texts
    assert statistics["scored"] == 31
    ((environment, scored),) = statistics["scored_with"].items()
    assert scored == 31
    for what in (f"transformers {transformers.__version__}", f"torch {torch.__version__}", "tokenizers", "1 threads"):
        assert what in environment


def test_an_empty_part_loads_no_model(tmp_path: Path) -> None:
    nothing = Artifact(folder=tmp_path, ledger={})
    table, statistics = collect(score_part(TablePart(documents([])), scorer=scorer(), model=nothing))
    assert table.num_rows == 0
    assert statistics["scored_with"] == {}


def test_what_lies_beyond_the_bounds_has_no_influence_and_is_counted(model: Artifact) -> None:
    long = "screw " * 400
    texts = [long, long + "tea", "tea", "x" * 90, "x" * 89 + "y" * 1_000_000]
    scored_by = transformers_scorer(scorer(max_chars=90), model)
    made, counted = probabilities(scored_by, texts)
    assert counted["truncated"] == 3
    assert made.tobytes() == probabilities(scored_by, [text[:90] for text in texts])[0].tobytes()
    assert made[3].tobytes() != made[4].tobytes(), "the last character that is read counts"
    by_tokens, counted = probabilities(transformers_scorer(scorer(max_tokens=16), model), texts)
    assert by_tokens[0].tobytes() == by_tokens[1].tobytes()
    assert counted["truncated"] == 4
    assert counted["tokens"] <= 5 * 16


def test_a_model_that_mixes_rows_is_refused(tmp_path: Path) -> None:
    mixing = as_artifact(save_own_model(tmp_path, trait="mixes rows"), tmp_path / "made", custom_code=True)
    expected = (
        r"in float32: in a call of \d+ sequences of \d+ tokens, .* got other scores when other texts stood beside"
    )
    for texts in (["tea"], some_texts(30)):
        with pytest.raises(ScoringError, match=expected) as error:
            probabilities(transformers_scorer(scorer(), mixing), texts)
        assert "scorer.tokens_per_call to 32" in str(error.value)
    alone, _ = probabilities(transformers_scorer(scorer(tokens_per_call=32), mixing), ["tea", "a screw"])
    assert alone.shape == (2, 6), "the remedy works"


def test_a_model_of_its_own_code_is_built_whole(tmp_path: Path) -> None:
    """Tables that its constructor computes are there, as they were when the weights were trained."""
    from safetensors.numpy import load_file

    made = as_artifact(save_own_model(tmp_path), tmp_path / "made", custom_code=True)
    texts = some_texts(20)
    found, _ = probabilities(transformers_scorer(scorer(), made), texts)
    weights = load_file(tmp_path / "model.safetensors")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text, scores in zip(texts, found, strict=True):
        tokens = tokenizer(text, truncation=True, max_length=128)["input_ids"]
        pooled = weights["embeddings.weight"][tokens].T @ (1 / np.arange(1, len(tokens) + 1, dtype=np.float32))
        logits = weights["classifier.weight"] @ pooled + weights["classifier.bias"]
        expected = np.exp(logits - logits.max())
        np.testing.assert_allclose(scores, expected / expected.sum(), atol=1e-5)
    assert not list(made.folder.rglob("__pycache__")), "nothing is written into an artifact"  # type: ignore[union-attr]


def test_code_does_not_run_unless_it_is_allowed(tmp_path: Path) -> None:
    save_own_model(tmp_path)
    (tmp_path / "modeling.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(ScoringError, match=r"of the type 'own', which transformers .* scorer.model.custom_code"):
        probabilities(transformers_scorer(scorer(), as_artifact(tmp_path, tmp_path / "made")), ["tea"])


def test_scores_that_are_no_numbers_are_refused_with_part_and_row(model: Artifact, tmp_path: Path) -> None:
    def break_one_word(weights: dict[str, torch.Tensor]) -> None:
        weights["model.embeddings.tok_embeddings.weight"][token] = float("nan")

    token = transformers.AutoTokenizer.from_pretrained(model.folder)("film")["input_ids"][1]
    broken = damaged(model, tmp_path, break_one_word)
    part = TablePart(documents(["tea", "tea", "film", "tea"]))
    with pytest.raises(ScoringError, match=r"part_00000: 1 texts have no probabilities; the first is row 2: \[nan"):
        collect(score_part(part, scorer=scorer(), model=broken))


def test_a_model_without_a_trained_head_is_refused(model: Artifact, tmp_path: Path) -> None:
    headless = damaged(model, tmp_path, lambda weights: weights.pop("classifier.weight"))
    with pytest.raises(ScoringError, match=r"missing \['classifier.weight'\].*would be random"):
        probabilities(transformers_scorer(scorer(), headless), ["tea"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_tokens": 512}, r"max_tokens is 512, and the model in .* has 512 positions.* to 511 or less"),
        ({"max_tokens": 2}, r"max_tokens is 2, and the 2 special tokens .* to at least 3"),
        ({"device": "cuda:7"}, r"device is cuda:7, and torch .* finds \d+ CUDA devices here. Set scorer.device to cpu"),
    ],
)
def test_parameters_that_do_not_fit_are_named(model: Artifact, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        probabilities(transformers_scorer(scorer(**changes), model), ["tea"])


@pytest.mark.parametrize("nested", [False, True])
def test_what_the_files_tell_is_checked_once_before_any_part(model: Artifact, tmp_path: Path, nested: bool) -> None:
    place = copied(model, tmp_path / "model")
    config = json.loads((place / "config.json").read_text())
    if nested:
        texts = {"max_position_embeddings": config.pop("max_position_embeddings"), "pad_token_id": None}
        config["pad_token_id"] = None
        config = {**config, "text_config": texts}
    (place / "config.json").write_text(json.dumps(config))
    made = as_artifact(place, tmp_path / "made")
    documents = stored_documents(tmp_path / "documents")

    def parameters(**changes: Any) -> AnnotationParameters:
        base = {"scorer": {**scorer(**changes).model_dump(), "kind": "transformers"}, "near": [0.01]}
        base |= {"max_unknown_words": 1.0, "fetched": "", "memory": 100_000_000, "audit": {"seed": 1, "per_class": 1}}
        return AnnotationParameters.model_validate(base)

    assert len(score_documents(documents, made, parameters(max_tokens=511))) == len(documents)
    with pytest.raises(ScoringError, match=r"max_tokens is 512, and the model in .* has 512 positions.* 511 or less"):
        score_documents(documents, made, parameters(max_tokens=512))
    if nested:
        edit_json(place / "tokenizer_config.json", pad_token=None)
        with pytest.raises(ScoringError, match=r"the model in .* has no padding token"):
            score_documents(documents, as_artifact(place, tmp_path / "made"), parameters())


def copied(model: Artifact, place: Path) -> Path:
    place.mkdir()
    for name in model.ledger["files"]:
        (place / name).write_bytes(model.path(name).read_bytes())
    return place


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_more_tokens(place: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    tokenizer.add_tokens([f"word{number}" for number in range(400)])
    tokenizer.save_pretrained(place)


def without_padding(place: Path, token: int | None) -> None:
    edit_json(place / "config.json", pad_token_id=token)
    edit_json(place / "tokenizer_config.json", pad_token=None)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            lambda place: edit_json(place / "config.json", vocab_size=500),
            r"the weights of NAME do not fit .*tok_embeddings.weight is \(400, 64\), expected \(500, 64\)\. Take both",
        ),
        (with_more_tokens, r"tokenizer of NAME has tokens up to \d{3}, .* vocabulary has 400 \(0 to 399\)\. Take the"),
        (lambda place: without_padding(place, None), r"^NAME has no padding token: .*\. Set one"),
        (
            lambda place: without_padding(place, 50_283),
            r"cannot load NAME as .*Padding_idx must be within num_embeddings.*pad_token_id\), set the one",
        ),
        (
            lambda place: edit_json(place / "config.json", hidden_size="64"),
            r"(?s)cannot load NAME as .*'hidden_size' expected int, got str",
        ),
        (
            lambda place: (place / "tokenizer.json").write_text("{}"),
            r"the tokenizer of NAME cannot be loaded \(KeyError: 'added_tokens'\).*Save it again",
        ),
        (
            lambda place: (place / "tokenizer_config.json").write_text("{"),
            r"the tokenizer of NAME cannot be loaded \(JSONDecodeError: .*Save it again",
        ),
    ],
)
def test_a_faulty_model_is_named_with_what_is_wrong(
    model: Artifact, tmp_path: Path, fault: Callable[[Path], object], message: str
) -> None:
    place = copied(model, tmp_path / "model")
    fault(place)
    with pytest.raises(ScoringError, match=message.replace("NAME", f"the model in {tmp_path}/made")):
        probabilities(transformers_scorer(scorer(), as_artifact(place, tmp_path / "made")), ["tea"])


def test_weights_of_five_labels_are_refused(model: Artifact, tmp_path: Path) -> None:
    def cut(weights: dict[str, torch.Tensor]) -> None:
        for name in ("classifier.weight", "classifier.bias"):
            weights[name] = weights[name][:5].clone()

    with pytest.raises(
        ScoringError, match=r"the weights of the model in .*: classifier.bias is \(5,\), expected \(6,\)"
    ):
        probabilities(transformers_scorer(scorer(), damaged(model, tmp_path, cut)), ["tea"])


def test_code_that_cannot_build_its_model_is_named(tmp_path: Path) -> None:
    save_own_model(tmp_path)
    edit_json(tmp_path / "config.json", hidden_size="16")
    made = as_artifact(tmp_path, tmp_path / "made", custom_code=True)
    with pytest.raises(ScoringError, match=r"the code of the model in .* cannot build it .*\(TypeError: .*Pin a code"):
        probabilities(transformers_scorer(scorer(), made), ["tea"])


def test_a_position_that_the_model_does_not_have_is_named(tmp_path: Path) -> None:
    """RoBERTa numbers them from 2, so the last of its 66 are beyond what max_tokens 65 may ask for."""
    made = as_artifact(save_other(tmp_path, "Roberta"), tmp_path / "made")
    long = ["screw " * 100]
    with pytest.raises(
        ScoringError, match=r"the model in .* tokens fails \(.*index .* set scorer.max_tokens to less than 65"
    ):
        probabilities(transformers_scorer(scorer(max_tokens=65), made), long)
    assert probabilities(transformers_scorer(scorer(max_tokens=64), made), long)[0].shape == (1, 6)


@pytest.mark.parametrize("of_model", [None, -1, 0, 1])
@pytest.mark.parametrize("tokens_per_call", [32, 256])
def test_a_decoder_scores_the_last_token_of_a_text_and_not_the_padding(
    tmp_path: Path, of_model: int | None, tokens_per_call: int
) -> None:
    """Its configuration tells it what padding is: nothing, or another token than the tokenizer's, which is 1."""
    made = as_artifact(save_other(tmp_path, "Llama", pad_token_id=of_model), tmp_path / "made")
    texts = ["the film", "tea", "a screw holds what you hate"]
    found, _ = probabilities(transformers_scorer(scorer(max_tokens=64, tokens_per_call=tokens_per_call), made), texts)
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text, scores in zip(texts, found, strict=True):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            expected = torch.softmax(plain(input_ids=ids).logits, dim=-1)[0].numpy()
        np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_parameters_are_checked() -> None:
    for changes in ({"device": "gpu"}, {"dtype": "float16"}, {"max_tokens": 0}, {"batch": 3}):
        with pytest.raises(ValidationError):
            scorer(**changes)


def test_without_transformers_the_message_says_what_to_install(
    model: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformer._loaded.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ScoringError, match=r"pip install 'everytoken\[transformers\]'"):
        probabilities(transformers_scorer(scorer(), model), ["tea"])


def test_scoring_leaves_torch_as_it_was(model: Artifact) -> None:
    before = torch.random.get_rng_state()
    threads = torch.get_num_threads()
    transformer._loaded.cache_clear()
    probabilities(transformers_scorer(scorer(threads=threads + 1), model), ["tea"])
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), before)


def test_where_a_folder_lies_is_in_no_recipe() -> None:
    here, there = (scorer(model={"kind": "folder", "path": path, "custom_code": False}) for path in ("/a", "/b"))
    assert here != there
    assert here.without_path() == there.without_path()


@versioned("write_texts", 1)
def write_texts(part: Any, *, count: int) -> Rows:
    table = documents([f"{part.value} {text}" for text in some_texts(count)])

    def batches() -> Any:
        yield from table.to_batches()
        return {}

    return Rows(DOCUMENTS, batches())


def stored_documents(place: Path) -> Shards:
    store = Store(place)
    store.save(Shards.from_values(["a", "b", "c"], ["a", "b", "c"]).map(write_texts, count=12), Inline())
    return store.load()


def planned(texts: Shards, model: Artifact, by: TransformersScorer | None = None) -> Shards:
    return texts.map(score_part, scorer=by or scorer(), model=model)


@pytest.mark.slow
def test_one_or_two_workers_write_the_same_bytes(model: Artifact, tmp_path: Path) -> None:
    texts = stored_documents(tmp_path / "texts")
    one = Store(tmp_path / "one").save(planned(texts, model), Inline())
    two = Store(tmp_path / "two").save(planned(texts, model), WorkerProcesses(2))
    assert one == two
    assert sum(next(iter(part.statistics["scored_with"].values())) for part in two.parts) == 36


@versioned("score_or_die", 1)
def score_or_die(part: Any, *, scorer: TransformersScorer, model: Artifact, dies: Path) -> Rows:
    rows = score_part(part, scorer=scorer, model=model)

    def batches() -> Any:
        counted = yield from rows.batches
        if part.name == "part_00001" and dies.exists():
            raise RuntimeError("the GPU fell off the bus")
        return counted

    return Rows(rows.schema, batches())


score_or_die.__recipe_unrecorded__ = frozenset(["dies"])  # type: ignore[attr-defined]


def test_an_error_in_the_middle_of_a_part_costs_that_part_only(model: Artifact, tmp_path: Path) -> None:
    texts, store, dies = stored_documents(tmp_path / "texts"), Store(tmp_path / "scored"), tmp_path / "dies"
    dies.touch()
    scored = texts.map(score_or_die, scorer=scorer(), model=model, dies=dies)
    with pytest.raises(PartsFailed, match=r"fell off the bus"):
        store.save(scored, Inline())
    finished = [path for path in sorted(store.root.glob("part_*.parquet"))]
    assert [path.stem for path in finished] == ["part_00000", "part_00002"]
    times = [path.stat().st_mtime_ns for path in finished]
    dies.unlink()
    store.save(scored, Inline())
    assert [path.stat().st_mtime_ns for path in finished] == times
    assert len(store.load()) == 3


def test_a_flipped_byte_of_the_weights_is_found_and_nothing_is_scored(source: Path, tmp_path: Path) -> None:
    made = as_artifact(source, tmp_path / "model")
    texts = stored_documents(tmp_path / "texts")
    path = made.path("model.safetensors")
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(Exception, match=r"model.safetensors is not the file that was written"):
        Store(tmp_path / "scored").save(planned(texts, made), Inline())
    assert as_artifact(source, tmp_path / "model").root_digest == made.root_digest
    Store(tmp_path / "scored").save(planned(texts, ArtifactStore(tmp_path / "model").load()), Inline())


def test_a_tokenizer_without_special_tokens_reads_an_empty_text_as_padding(source: Path, tmp_path: Path) -> None:
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    save_tokenizer(tmp_path)
    bare = transformers.AutoTokenizer.from_pretrained(tmp_path)
    bare.backend_tokenizer.post_processor = None
    bare.save_pretrained(tmp_path)
    made, counted = probabilities(
        transformers_scorer(scorer(), as_artifact(tmp_path, tmp_path / "made")), ["", "tea", ""]
    )
    assert np.isfinite(made).all()
    assert made[0].tobytes() == made[2].tobytes()
    assert counted["tokens"] >= 3
