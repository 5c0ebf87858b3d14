from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from everytoken.corpus.errors import ScoringError
from everytoken.corpus.scoring.model_files import HubModel, Model, ModelFolder, fetch_model, model_identity
from everytoken.corpus.scoring.transformer import transformers_scorer
from everytoken.shards import Artifact, ArtifactStore, plan_artifact
from tests.corpus.scoring.small_models import (
    as_artifact,
    own_model_files,
    probabilities,
    save_modernbert,
    save_own_model,
    scorer,
    some_texts,
)
from tests.corpus.upstreams.hub_server import COMMIT, Fault, Hub, serve_hub

pytestmark = pytest.mark.sensitive


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_modernbert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def own_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], dict[str, bytes]]:
    return own_model_files(tmp_path_factory.mktemp("own"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, own_files: tuple[dict[str, bytes], dict[str, bytes]]) -> Iterator[Hub]:
    monkeypatch.setattr("everytoken.shards.remote.retries.pause", lambda seconds: None)
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        files, code = own_files
        beside = {"README.md": b"# A model", "pytorch_model.bin": b"a pickle", "onnx/model.onnx": b"", "train.py": b""}
        hub.models = {"org/own": {**files, **beside}, "org/code": {**code, "README.md": b"# Code"}}
        yield hub


def hub_model(**changes: Any) -> HubModel:
    code = {"repository": "org/code", "revision": COMMIT}
    base = {"kind": "hub", "repository": "org/own", "revision": COMMIT, "remote_code": code}
    return HubModel.model_validate({**base, **changes})


def fetched(folder: Path, model: HubModel, name: str = "artifact") -> Artifact:
    planned = plan_artifact(fetch_model, identity=model_identity(model), model=model, fetched=folder / "raw")
    return ArtifactStore(folder / name).save(planned)


def test_a_folder_becomes_an_artifact_that_says_what_the_model_is(source: Path, tmp_path: Path) -> None:
    made = as_artifact(source, tmp_path / "made")
    assert sorted(made.ledger["files"]) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    weights = (source / "model.safetensors").read_bytes()
    assert made.statistics["weights_sha256"] == hashlib.sha256(weights).hexdigest()
    assert made.statistics["labels"]["5"] == "LABEL_5"
    assert made.statistics["code"] == []
    from safetensors.torch import load

    assert made.statistics["parameters"] == sum(tensor.numel() for tensor in load(weights).values())


def test_where_the_folder_lies_decides_nothing_and_what_is_in_it_does(source: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in source.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    first, second = as_artifact(source, tmp_path / "a"), as_artifact(moved, tmp_path / "b")
    assert first.ledger["fingerprint"] == second.ledger["fingerprint"]
    assert str(moved) not in json.dumps(second.ledger)
    (moved / "tokenizer_config.json").write_text("{}")
    assert as_artifact(moved, tmp_path / "b").ledger["fingerprint"] != first.ledger["fingerprint"]


def test_weights_in_several_files_are_one_model(source: Path, tmp_path: Path) -> None:
    import transformers

    whole = transformers.AutoModelForSequenceClassification.from_pretrained(source)
    parted = tmp_path / "parted"
    whole.save_pretrained(parted, max_shard_size="150KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (parted / name).write_bytes((source / name).read_bytes())
    made, one = as_artifact(parted, tmp_path / "made"), as_artifact(source, tmp_path / "one")
    assert len([name for name in made.ledger["files"] if name.endswith(".safetensors")]) > 1
    assert made.statistics["parameters"] == one.statistics["parameters"]
    texts = some_texts(5)
    scores = [probabilities(transformers_scorer(scorer(), model), texts)[0].tobytes() for model in (made, one)]
    assert scores[0] == scores[1]
    for path in parted.glob("model-00001*"):
        path.unlink()
    with pytest.raises(ScoringError, match=r"model.safetensors.index.json names \['model-00001"):
        as_artifact(parted, tmp_path / "made")


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        ("config.json", {}, r"has no config.json, only .*save_pretrained"),
        ("tokenizer.json", {}, r"has no tokenizer.json, only .*fast tokenizer"),
        ("model.safetensors", {"pytorch_model.bin": b"x"}, r"only pickles \(\['pytorch_model.bin'\]\), which run code"),
        ("model.safetensors", {}, r"has no model.safetensors, found \['config.json'"),
        (None, {"model.safetensors": b"\x80\x04pickle"}, r"model.safetensors is no safetensors file"),
        (None, {"config.json": b"{"}, r"config.json is not what save_pretrained writes"),
        (None, {"config.json": b'{"model_type": "bert"}'}, r"no classifier with 6 labels .* config.json has 2"),
    ],
)
def test_a_folder_that_is_no_classifier_is_refused(
    source: Path, tmp_path: Path, removed: str | None, added: dict[str, bytes], message: str
) -> None:
    place = tmp_path / "model"
    place.mkdir()
    for path in source.iterdir():
        if path.name != removed:
            (place / path.name).write_bytes(path.read_bytes())
    for name, content in added.items():
        (place / name).write_bytes(content)
    with pytest.raises(ScoringError, match=message):
        as_artifact(place, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_five_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"no classifier with 6 labels 0 to 5: config.json has 5"):
        as_artifact(save_modernbert(tmp_path, labels=5), tmp_path / "made")


def test_two_numbers_of_labels_are_refused(source: Path, tmp_path: Path) -> None:
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_labels": 5}))
    with pytest.raises(ScoringError, match=r"id2label of 6 labels, and num_labels 5. Remove num_labels"):
        as_artifact(tmp_path, tmp_path / "made")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"there is no folder .*/nowhere. Set model.path"):
        as_artifact(tmp_path / "nowhere", tmp_path / "made")


def test_a_folder_that_changes_between_plan_and_run_is_refused(source: Path, tmp_path: Path) -> None:
    model = ModelFolder(kind="folder", path=str(source), custom_code=False)
    identity = model_identity(model)
    identity["files"]["config.json"] = "0" * 64
    planned = plan_artifact(fetch_model, identity=identity, model=model, fetched=tmp_path)
    with pytest.raises(ScoringError, match=r"has changed since the run was planned: \['config.json'\]"):
        ArtifactStore(tmp_path / "made").save(planned)


def test_a_model_of_the_hub_is_fetched_with_the_code_of_another_repository(hub: Hub, tmp_path: Path) -> None:
    made = fetched(tmp_path, hub_model())
    own = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert set(made.ledger["files"]) == own | {"configuration.py", "modeling.py"}
    assert (made.statistics["repository"], made.statistics["revision"]) == ("org/own", COMMIT)
    assert made.ledger["recipe"]["parameters"]["identity"]["remote_code"]["repository"] == "org/code"
    assert made.path("modeling.py").read_bytes() == hub.models["org/code"]["modeling.py"]
    assert not {"train.py", "pytorch_model.bin"} & {Path(request.path).name for request in hub.asked("resolve")}
    (tmp_path / "own").mkdir()
    by_folder = as_artifact(save_own_model(tmp_path / "own"), tmp_path / "folder", custom_code=True)
    texts = some_texts(5)
    scores = [probabilities(transformers_scorer(scorer(), model), texts)[0].tobytes() for model in (made, by_folder)]
    assert scores[0] == scores[1]


def test_what_was_fetched_is_not_fetched_again_and_needs_no_network(hub: Hub, tmp_path: Path) -> None:
    fetched(tmp_path, hub_model())
    asked = len(hub.requests)
    fetched(tmp_path, hub_model(), "another")
    assert len(hub.requests) == asked


def test_a_transfer_that_breaks_off_goes_on_where_it_did(hub: Hub, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(cut_after=700), Fault(status=503)]
    fetched(tmp_path, hub_model())
    assert 700 in [request.start for request in hub.asked("storage")]


def test_damaged_weights_are_made_again_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    made = fetched(tmp_path, hub_model())
    path = made.path("model.safetensors")
    content = bytearray(path.read_bytes())
    content[-7] ^= 1
    path.write_bytes(bytes(content))  # the fetched file may be the same one, by a hard link
    with pytest.raises(Exception, match=r"is not the file that was written"):
        made.verify()
    again = fetched(tmp_path, hub_model())
    assert again.root_digest == made.root_digest
    again.verify()


def test_code_of_a_model_of_the_hub_runs_only_from_a_named_commit(hub: Hub, tmp_path: Path) -> None:
    made = fetched(tmp_path, hub_model(remote_code=None))
    assert made.statistics["code"] == []
    with pytest.raises(ScoringError, match=r"model org/own at 689a.* of the type 'own', .* scorer.model.remote_code"):
        probabilities(transformers_scorer(scorer(), made), ["tea"])
    hub.models["org/code"] = {"README.md": b""}
    with pytest.raises(ScoringError, match=r"model org/code at 689a.* has no \*.py files"):
        fetched(tmp_path / "other", hub_model())


def test_a_model_that_is_not_there_is_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"model org/none at .*the model is private, gated, renamed or not there"):
        fetched(tmp_path, hub_model(repository="org/none"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"revision": "main"}, "revision must be a commit of 40 lower-case hex digits, found 'main'"),
        ({"repository": "a/b/c"}, "repository must be an id"),
        ({"remote_code": {"repository": "org/code", "revision": "main"}}, "run other code"),
        ({"remote_code": {"repository": "org/code"}}, "revision"),
        ({"trust_remote_code": True}, "Extra inputs"),
    ],
)
def test_a_model_is_pinned(changes: dict[str, Any], message: str) -> None:
    value = {**hub_model().model_dump(), **changes}
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(Model).validate_python(value)


def test_an_environment_that_reads_a_folder_still_has_the_keys_of_the_hub() -> None:
    value = {**hub_model().model_dump(), "kind": "folder", "path": "/models/own", "custom_code": False}
    assert TypeAdapter(Model).validate_python(value) == ModelFolder(
        kind="folder", path="/models/own", custom_code=False
    )
