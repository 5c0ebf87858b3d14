"""Checkpoints to Hugging Face folders and back; against transformers itself: tests/models/test_hugging_face.py."""

import json

import pytest

from everytoken.generation import ChatFiles, read_chat_files
from everytoken.training import TrainingError
from everytoken.training.checkpoints.exchange import export_checkpoint, import_checkpoint
from everytoken.training.checkpoints.model import (
    CheckpointConfig,
    load_config,
    load_model,
    parameters_sha256,
    save_model,
)
from everytoken.training.errors import CheckpointError
from tests.generation.looping import save_looping_checkpoint
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import EOS, SEQ, byte_encoder, byte_model

CONFIG = CheckpointConfig(format="everytoken-checkpoint/1", model=LLAMA, vocab_size=257, seq_length=SEQ, eos_id=0)


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with the files of a training state beside it, and its tokenizer elsewhere."""
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    save_model(folder, byte_model(), CONFIG)
    (folder / "state.json").write_text("{}")
    byte_encoder(tmp_path)
    return folder


def test_an_exported_and_imported_checkpoint_has_the_same_bytes(checkpoint, tmp_path):
    lines = export_checkpoint(checkpoint, tmp_path / "exported", tokenizer=tmp_path / "tokenizer.json")
    assert "LlamaForCausalLM, 257 tokens, context 12, float32" in lines[0]
    assert f"{EOS} (0)" in lines[1]
    lines = import_checkpoint(tmp_path / "exported", tmp_path / "again", tokenizer=None, eos_token=None)
    again = tmp_path / "again"
    for name in ("config.json", "model.safetensors"):
        assert (again / name).read_bytes() == (checkpoint / name).read_bytes()
    assert (again / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert f"{byte_model().parameter_count():,} parameters" in lines[0]
    assert parameters_sha256(load_model(checkpoint)) in lines[1]


def test_an_imported_checkpoint_carries_its_tokenizer_for_the_next_export(checkpoint, tmp_path):
    export_checkpoint(checkpoint, tmp_path / "exported", tokenizer=tmp_path / "tokenizer.json")
    import_checkpoint(tmp_path / "exported", tmp_path / "again", tokenizer=None, eos_token=None)
    export_checkpoint(tmp_path / "again", tmp_path / "twice", tokenizer=None)
    for file in (tmp_path / "exported").iterdir():
        assert (tmp_path / "twice" / file.name).read_bytes() == file.read_bytes()


def test_the_eos_is_the_one_given_or_the_only_one_that_is_named(checkpoint, tmp_path):
    export_checkpoint(checkpoint, tmp_path / "exported", tokenizer=tmp_path / "tokenizer.json")
    path = tmp_path / "exported" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [0, 5]}))
    with pytest.raises(TrainingError, match="does not name one EOS"):
        import_checkpoint(tmp_path / "exported", tmp_path / "again", tokenizer=None, eos_token=None)
    with pytest.raises(TrainingError, match="has no token '<absent>'"):
        import_checkpoint(tmp_path / "exported", tmp_path / "again", tokenizer=None, eos_token="<absent>")
    assert not (tmp_path / "again").exists()
    import_checkpoint(tmp_path / "exported", tmp_path / "again", tokenizer=None, eos_token="!")
    assert load_config(tmp_path / "again").eos_id != 0


def test_nothing_that_is_there_is_overwritten(checkpoint, tmp_path):
    (tmp_path / "mine").mkdir()
    for call in (
        lambda: export_checkpoint(checkpoint, tmp_path / "mine", tokenizer=tmp_path / "tokenizer.json"),
        lambda: import_checkpoint(checkpoint, tmp_path / "mine", tokenizer=None, eos_token=None),
    ):
        with pytest.raises(TrainingError, match="mine is there already"):
            call()


def test_a_tokenizer_is_needed_and_must_go_with_the_model(checkpoint, tmp_path):
    with pytest.raises(TrainingError, match=r"cannot read the tokenizer .*checkpoint/tokenizer.json"):
        export_checkpoint(checkpoint, tmp_path / "out", tokenizer=None)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(TrainingError, match="no tokenizer that the tokenizers library can read"):
        export_checkpoint(checkpoint, tmp_path / "out", tokenizer=tmp_path / "bad.json")
    for changes, message in (({"eos_id": 300}, "no token with the id 300"), ({"vocab_size": 200}, "ids up to 256")):
        config = CONFIG.model_copy(update=changes)
        (checkpoint / "config.json").write_text(config.model_dump_json())
        with pytest.raises(TrainingError, match=message):
            export_checkpoint(checkpoint, tmp_path / "out", tokenizer=tmp_path / "tokenizer.json")
    assert not (tmp_path / "out").exists()


def test_a_damaged_or_absent_model_file_is_an_error_and_leaves_no_folder(checkpoint, tmp_path):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"cannot export .*model.safetensors"):
            export_checkpoint(checkpoint, tmp_path / "out", tokenizer=tmp_path / "tokenizer.json")
        path.unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        export_checkpoint(tmp_path / "absent", tmp_path / "out", tokenizer=tmp_path / "tokenizer.json")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint", "tokenizer.json"]


def test_a_chat_template_goes_along_both_ways(checkpoint, tmp_path):
    chat = ChatFiles("{{ messages[0].content }}", {"bos_token": EOS, "eos_token": EOS}, (0, 5), ("stop",))
    export_checkpoint(checkpoint, tmp_path / "exported", tokenizer=tmp_path / "tokenizer.json", chat=chat)
    assert read_chat_files(tmp_path / "exported").template == chat.template
    lines = import_checkpoint(tmp_path / "exported", tmp_path / "again", tokenizer=None, eos_token=None)
    assert "it has a chat template: talk with it by `everytoken chat`" in lines
    again = read_chat_files(tmp_path / "again")
    assert (again.template, again.ends, again.stop) == (chat.template, chat.ends, chat.stop)
    export_checkpoint(tmp_path / "again", tmp_path / "twice", tokenizer=None)
    for file in (tmp_path / "exported").iterdir():
        assert (tmp_path / "twice" / file.name).read_bytes() == file.read_bytes()
    transformers = pytest.importorskip("transformers")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "twice")
    assert opened.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"
    generation = transformers.GenerationConfig.from_pretrained(tmp_path / "twice")
    assert (generation.eos_token_id, generation.stop_strings) == ([0, 5], ["stop"])


def test_a_family_that_hugging_face_does_not_have_is_refused_by_name(tmp_path):
    looping = save_looping_checkpoint(tmp_path)
    with pytest.raises(TrainingError, match=r"family open_mythos.* llama can be exported.*everytoken chat"):
        export_checkpoint(looping, tmp_path / "out", tokenizer=None)
    assert not (tmp_path / "out").exists()
