import math

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everytoken.training import BitsPerByteParameters, TrainingError
from everytoken.training.evaluation.language_modelling import bits_per_byte, count_targets, document_nats, unigram_bits
from tests.training.tiny import EXECUTION, SEQ, VOCAB, byte_encoder, byte_model, random_batches, tiny_model

TEXTS = ["a short one", "être, ou ne pas être: more than one chunk", "x", "another source 123456789012345678"]
SOURCES = ["wiki", "wiki", "chat", "chat"]


class HeldOut:
    """As much of a part as evaluation reads."""

    name = "part_00000"

    def __init__(self, texts, sources=None):
        columns = {"text": pa.array(texts, pa.large_string()), "source": pa.array(sources or ["wiki"] * len(texts))}
        self._batch = pa.record_batch(columns)

    def batches(self, columns=None):
        yield self._batch.select(columns)


def parameters(batch_size=3):
    return BitsPerByteParameters(batch_size=batch_size, execution=EXECUTION)


@pytest.fixture
def encoder(tmp_path):
    return byte_encoder(tmp_path)


def uniform(vocab=257):
    return np.full(vocab, math.log2(vocab))


def slow_bits(model, encoder, text):
    """The definition, one prediction at a time."""
    ids = [encoder.tokenizer.eos_id, *encoder.encode([text]).values.tolist()]
    bits = 0.0
    for target in range(1, len(ids)):
        start = (target - 1) // SEQ * SEQ
        with torch.no_grad():
            logits = model(torch.tensor([ids[start:target]]))[0, -1].double()
        bits -= torch.log_softmax(logits, 0)[ids[target]].item() / math.log(2)
    return bits, len(ids) - 1


def test_bits_per_byte_is_the_definition_by_source_and_in_total(encoder):
    model = byte_model().eval()
    figures = bits_per_byte(model, encoder, [HeldOut(TEXTS, SOURCES)], uniform(), parameters())
    assert list(figures["by_source"]) == ["chat", "wiki"]
    for source, found in [*figures["by_source"].items(), ("total", figures["total"])]:
        texts = [text for text, its in zip(TEXTS, SOURCES, strict=True) if source in (its, "total")]
        slow = [slow_bits(model, encoder, text) for text in texts]
        size = sum(len(text.encode()) for text in texts)
        assert found["documents"] == len(texts) and found["bytes"] == size and found["lossy_documents"] == 0
        assert found["tokens"] == sum(tokens for _, tokens in slow)
        assert found["bits_per_byte"] == pytest.approx(sum(bits for bits, _ in slow) / size, rel=1e-6)
        assert found["unigram_bits_per_byte"] == pytest.approx(found["tokens"] * math.log2(257) / size)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3 * SEQ + 1), min_size=1, max_size=6), st.integers(1, 7))
def test_a_document_does_not_depend_on_its_neighbours(lengths, batch_size):
    model = tiny_model().eval()
    documents = [np.arange(length + 1, dtype=np.int64) * (7 + i) % VOCAB for i, length in enumerate(lengths)]
    with torch.inference_mode():
        together = document_nats(model, documents, parameters(batch_size))
        alone = [document_nats(model, [document], parameters(batch_size))[0] for document in documents]
    assert together == pytest.approx(alone, rel=1e-5)


def test_a_document_of_no_more_than_one_chunk_is_predicted_with_all_its_context():
    model, ids = tiny_model().eval(), np.arange(SEQ + 1, dtype=np.int64)
    with torch.inference_mode():
        logits = model(torch.from_numpy(ids[None, :-1])).double()
        expected = torch.nn.functional.cross_entropy(logits[0], torch.from_numpy(ids[1:]), reduction="sum").item()
        assert document_nats(model, [ids], parameters())[0] == pytest.approx(expected, rel=1e-6)


def test_order_and_cut_into_parts_do_not_change_the_figures(encoder):
    model = byte_model()
    one = bits_per_byte(model, encoder, [HeldOut(TEXTS, SOURCES)], uniform(), parameters())
    parts = [HeldOut([text], [source]) for text, source in zip(TEXTS, SOURCES, strict=True)][::-1]
    other = bits_per_byte(model, encoder, parts, uniform(), parameters())
    assert other["total"] == pytest.approx(one["total"], rel=1e-6)


def test_counts_are_of_the_targets_that_count_in_the_loss():
    counts = count_targets(random_batches(), 5, VOCAB)
    expected = np.zeros(VOCAB, int)
    for step in range(5):
        tokens, mask = random_batches()(step)
        for row in range(len(tokens)):
            for t in range(SEQ):
                expected[tokens[row, t + 1]] += bool(mask[row, t])
    assert counts.tolist() == expected.tolist()


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_unigram_probabilities_are_positive_and_sum_to_one(counts):
    probabilities = np.exp2(-unigram_bits(np.array(counts)))
    assert probabilities.min() > 0
    assert probabilities.sum() == pytest.approx(1)


def test_add_one_smoothing():
    assert np.exp2(-unigram_bits(np.array([3, 0, 1]))).tolist() == pytest.approx([4 / 7, 1 / 7, 2 / 7])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "no held-out documents"),
        ([HeldOut([], [])], "no held-out documents"),
        ([HeldOut([""], ["wiki"])], "source 'wiki' have no text"),
        ([HeldOut(["some text"], pa.array([None], pa.string()))], "has no source"),
    ],
)
def test_held_out_documents_that_give_no_figure_are_an_error(encoder, parts, message):
    with pytest.raises(TrainingError, match=message):
        bits_per_byte(byte_model(), encoder, parts, uniform(), parameters())


def test_a_tokenizer_of_another_model_is_an_error(encoder):
    with pytest.raises(TrainingError, match="61 tokens, the tokenizer 257"):
        bits_per_byte(tiny_model(), encoder, [HeldOut(TEXTS)], uniform(), parameters())
