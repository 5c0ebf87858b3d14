import math

import numpy as np
import pytest
import torch

from everytoken.shards import file_sha256
from everytoken.training import BitsPerByteParameters, TrainingError
from everytoken.training.evaluation.held_out import evaluate_held_out, prepare_held_out, read_held_out, write_held_out
from everytoken.training.evaluation.language_modelling import bits_per_byte
from everytoken.training.step.execution_context import execution
from everytoken.training.step.objective import Objective
from tests.training.tiny import (
    EXECUTION,
    HELD_OUT_SOURCES,
    HELD_OUT_TEXTS,
    SEQ,
    DocumentsPart,
    byte_encoder,
    byte_model,
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return byte_encoder(tmp_path_factory.mktemp("tokenizer"))


def prepared(encoder, documents=100, texts=HELD_OUT_TEXTS, sources=HELD_OUT_SOURCES, seed=7):
    return prepare_held_out(encoder, [DocumentsPart(texts, sources)], seq_length=SEQ, documents=documents, seed=seed)


def evaluated(chunks, model=None, batch_size=2, **changes):
    with execution(EXECUTION):
        return evaluate_held_out(
            Objective(model or byte_model()),
            chunks,
            step=3,
            batch_size=batch_size,
            execution_parameters=EXECUTION,
            **changes,
        )


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_held_out_loss_is_the_bits_per_byte_of_the_evaluation_pipeline(encoder, batch_size):
    records = evaluated(prepared(encoder), batch_size=batch_size)
    part = DocumentsPart(HELD_OUT_TEXTS, HELD_OUT_SOURCES)
    figures = bits_per_byte(
        byte_model(), encoder, [part], np.zeros(257), BitsPerByteParameters(batch_size=3, execution=EXECUTION)
    )["by_source"]
    assert [record.source for record in records] == sorted(figures)
    for record in records:
        assert record.step == 3
        assert record.bytes == figures[record.source]["bytes"]
        assert record.bits_per_byte == pytest.approx(figures[record.source]["bits_per_byte"], rel=1e-6)
        assert record.nats == pytest.approx(record.bits_per_byte * record.bytes * math.log(2))


def test_every_content_token_and_eos_is_predicted_once(encoder):
    chunks = prepared(encoder)
    assert chunks.predictions.sum() == sum(len(text.encode()) + 1 for text in HELD_OUT_TEXTS)
    assert (np.diff(chunks.predictions) >= 0).all()


def test_of_each_source_the_documents_with_the_lowest_hash_are_taken_whatever_the_order(encoder):
    few = prepared(encoder, documents=1)
    assert few.names == ("chat", "wiki") and len(few.bytes) == 2

    class Backwards(DocumentsPart):
        def batches(self, columns=None):
            yield self._batch.take(list(range(len(HELD_OUT_TEXTS)))[::-1]).select(columns)

    part = Backwards(HELD_OUT_TEXTS, HELD_OUT_SOURCES)
    again = prepare_held_out(encoder, [part], seq_length=SEQ, documents=1, seed=7)
    assert np.array_equal(few.tokens, again.tokens)
    chosen = {tuple(prepared(encoder, documents=1, seed=seed).bytes) for seed in range(8)}
    assert len(chosen) > 1


def test_the_file_gives_back_the_chunks_and_equal_chunks_give_equal_bytes(encoder, tmp_path):
    chunks = prepared(encoder)
    for name in ("a", "b"):
        write_held_out(tmp_path / name, chunks)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    again = read_held_out(tmp_path / "a", file_sha256(tmp_path / "a"))
    assert again.names == chunks.names
    for name in ("tokens", "predictions", "source", "bytes"):
        assert np.array_equal(getattr(again, name), getattr(chunks, name))


def test_a_missing_or_wrong_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(TrainingError, match=r"nothing\.safetensors"):
        read_held_out(tmp_path / "nothing.safetensors", "0" * 64)
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(TrainingError, match="text does not hold held-out chunks"):
        read_held_out(tmp_path / "text", file_sha256(tmp_path / "text"))


@pytest.mark.parametrize(
    ("texts", "sources", "message"),
    [
        ([], [], "no held-out documents"),
        (["a"], [None], "no source"),
        (["a", ""], ["wiki", "chat"], "'chat' have no text"),
    ],
)
def test_documents_that_give_no_figure_are_an_error(encoder, texts, sources, message):
    with pytest.raises(TrainingError, match=message):
        prepared(encoder, texts=texts, sources=sources)


def test_with_document_mask_the_first_token_does_not_see_the_eos_before_it_and_the_next_do_not_either(encoder):
    # a document of one chunk: EOS is document 0, the content document 1
    chunks = prepared(encoder, texts=["abcdefgh"], sources=["wiki"])
    model = byte_model()
    (record,) = evaluated(chunks, model, eos_id=encoder.tokenizer.eos_id)
    ids = torch.from_numpy(chunks.tokens[0, : chunks.predictions[0] + 1])
    with torch.no_grad():
        logits = torch.cat((model(ids[None, :1])[0], model(ids[None, 1:-1])[0]))
    expected = -torch.log_softmax(logits.double(), -1).gather(1, ids[1:, None]).sum().item()
    assert record.nats == pytest.approx(expected, rel=1e-5)


def test_the_module_is_put_back_into_its_mode(encoder):
    module = Objective(byte_model()).train()
    with execution(EXECUTION):
        evaluate_held_out(module, prepared(encoder), step=0, batch_size=4, execution_parameters=EXECUTION)
    assert module.training


def test_another_file_than_the_one_that_was_prepared_is_refused(encoder, tmp_path):
    path = tmp_path / "held_out.safetensors"
    write_held_out(path, prepared(encoder))
    expected = file_sha256(path)
    write_held_out(path, prepared(encoder, documents=1))
    with pytest.raises(TrainingError, match=f"expected SHA-256 {expected}, found {file_sha256(path)}"):
        read_held_out(path, expected)
