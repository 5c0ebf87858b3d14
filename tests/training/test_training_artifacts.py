import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from everytoken.shards import ArtifactStore, Built, Inline, Rows, Shards, Store, plan_artifact, versioned
from everytoken.tokens import WindowWriter
from everytoken.tokens.probe import library_record, probe_record
from everytoken.training import EvaluationParameters, GenerationParameters, TrainingError
from everytoken.training.artifacts import HISTORY, evaluate, generate_texts, train
from everytoken.training.checkpoint import load_model, parameters_sha256
from tests.training.tiny import EOS, EXECUTION, LLAMA, SEQ, byte_encoder, training_parameters

TEXTS = ["to be or not to be that is the question", "a rose is a rose is a rose", "the rest is silence"]


@versioned(1)
def tokenizer_artifact(folder):
    encoder = byte_encoder(folder)
    return Built({"probe": probe_record(encoder.tokenizer.tokenizer)}, library_record())


@versioned(1)
def compact(folder, *, tokenizer):
    opened = byte_encoder(folder.parent)
    ids = np.concatenate([opened.encode([text]).values for text in TEXTS * 5])
    with WindowWriter(folder / "compact", SEQ + 1, np.uint16) as writer:
        writer.write(ids[: len(ids) // (SEQ + 1) * (SEQ + 1)].reshape(-1, SEQ + 1))
    return Built(statistics={})


@versioned(1)
def annotated(folder, *, tokenizer):
    opened = byte_encoder(folder.parent)
    windows, lengths = [], []
    for text in TEXTS:
        encoded = opened.encode([text], SEQ)
        windows.append(
            np.pad(encoded.values, (0, SEQ + 1 - len(encoded.values)), constant_values=opened.tokenizer.eos_id)
        )
        lengths.append(int(encoded.lengths[0]))
    with WindowWriter(folder / "annotated", SEQ + 1, np.uint16) as writer:
        writer.write(np.array(windows, np.uint16))
    np.save(folder / "token_lengths.npy", np.array(lengths, np.int32))
    return Built(statistics={})


@versioned(1)
def documents(part):
    batch = pa.record_batch({"text": pa.array(TEXTS, pa.large_string()), "source": ["wiki", "chat", "wiki"]})

    def batches():
        yield batch
        return {}

    return Rows(batch.schema, batches())


@pytest.fixture
def inputs(tmp_path):
    def made(name, function, **parameters):
        return ArtifactStore(tmp_path / name).save(plan_artifact(function, **parameters))

    tokenizer = made("tokenizer", tokenizer_artifact)
    return {
        "streams": [made("compact", compact, tokenizer=tokenizer), made("annotated", annotated, tokenizer=tokenizer)],
        "weights": None,
        "tokenizer": tokenizer,
        "eos_token": EOS,
    }


def trained(tmp_path, inputs, name="checkpoint", **changes):
    planned = plan_artifact(train, **inputs, model=LLAMA, training=training_parameters(**changes))
    return ArtifactStore(tmp_path / name).save(planned)


def test_a_checkpoint_says_what_was_trained_and_how_fast(tmp_path, inputs):
    checkpoint = trained(tmp_path, inputs)
    model = load_model(checkpoint.folder)
    statistics, measured = checkpoint.statistics, checkpoint.measured
    assert statistics["parameters"] == model.parameter_count()
    assert statistics["parameters_sha256"] == parameters_sha256(model)
    assert statistics["steps"] == 6 and statistics["tokens"] == 6 * 4 * SEQ
    assert 0 < statistics["loss_tokens"] < statistics["tokens"]
    assert measured["tokens_per_second"] > 0 and [step for step, _ in measured["tokens_per_second_by_step"]] == [
        *range(6)
    ]
    assert (
        measured["torch"] == torch.__version__ and measured["threads"] == 1 and measured["float32_matmul_error"] < 1e-3
    )
    history = pq.read_table(checkpoint.path("history.parquet"))
    assert history.schema.equals(HISTORY)
    assert history["loss"][-1].as_py() == statistics["final_loss"]
    assert sum(history["loss_tokens"].to_pylist()) == statistics["loss_tokens"]


def test_two_trainings_with_equal_inputs_have_one_digest(tmp_path, inputs):
    assert trained(tmp_path, inputs, "a").root_digest == trained(tmp_path, inputs, "b").root_digest
    assert trained(tmp_path, inputs, "c", seed=8).root_digest != trained(tmp_path, inputs, "a").root_digest


def held_out(tmp_path):
    store = Store(tmp_path / "held_out")
    store.save(Shards.from_values([0], ["0"]).map(documents), Inline())
    return store.load()


def test_evaluation_reports_every_source_beside_a_unigram_model(tmp_path, inputs):
    checkpoint = trained(tmp_path, inputs, steps=60)
    evaluation = EvaluationParameters(batch_size=2, execution=EXECUTION)
    planned = plan_artifact(
        evaluate,
        checkpoint=checkpoint,
        held_out=held_out(tmp_path),
        special_tokens_in_text="literal",
        evaluation=evaluation,
        **inputs,
    )
    made = ArtifactStore(tmp_path / "evaluation").save(planned)
    figures = json.loads(made.path("bits_per_byte.json").read_text())
    assert figures == made.statistics
    assert list(figures["by_source"]) == ["chat", "wiki"]
    assert figures["total"]["bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert figures["total"]["bits_per_byte"] < figures["total"]["unigram_bits_per_byte"]


def test_evaluation_refuses_other_streams_than_those_of_the_training(tmp_path, inputs):
    checkpoint = trained(tmp_path, inputs)
    planned = plan_artifact(
        evaluate,
        checkpoint=checkpoint,
        held_out=held_out(tmp_path),
        special_tokens_in_text="literal",
        evaluation=EvaluationParameters(batch_size=2, execution=EXECUTION),
        **{**inputs, "streams": inputs["streams"][:1]},
    )
    with pytest.raises(TrainingError, match="streams and weights of the training"):
        ArtifactStore(tmp_path / "evaluation").save(planned)


def test_generated_texts_are_kept_with_their_prompts(tmp_path, inputs):
    generation = GenerationParameters(
        seed=1, prompts=("to be", ""), max_new_tokens=5, temperature=1.0, top_k=10, execution=EXECUTION
    )
    planned = plan_artifact(
        generate_texts,
        checkpoint=trained(tmp_path, inputs),
        tokenizer=inputs["tokenizer"],
        eos_token=EOS,
        generation=generation,
    )
    made = ArtifactStore(tmp_path / "texts").save(planned)
    texts = json.loads(made.path("generations.json").read_text())
    assert [text["prompt"] for text in texts] == ["to be", ""]
    assert made.statistics == {"prompts": 2, "tokens": sum(len(text["tokens"]) for text in texts)}


def test_planning_loads_no_torch():
    program = "import sys, everytoken.training.artifacts, everytoken.models; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False"
