import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from everytoken.datasets import Checkpoint
from everytoken.measurements import listening
from everytoken.pipelines.training.nodes import describe_training, report_training
from everytoken.reports import training_figure
from everytoken.shards import ArtifactStore, Built, Inline, Rows, Shards, Store, file_sha256, plan_artifact, versioned
from everytoken.tokens import EncodingRules, WindowWriter
from everytoken.tokens.order.parameters import DataParameters
from everytoken.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer_file
from everytoken.tokens.tokenizer.probe import library_record, probe_record
from everytoken.tracking.mlflow_keys import flat_metrics
from everytoken.training import (
    BitsPerByteParameters,
    CheckpointParameters,
    DistributionParameters,
    PromptParameters,
    SampleParameters,
    TrainingError,
)
from everytoken.training.checkpoints import CheckpointStore
from everytoken.training.checkpoints.model import load_model, parameters_sha256
from everytoken.training.errors import NonFiniteError
from everytoken.training.parameters import PeriodicHeldOut, PeriodicTasks
from everytoken.training.run import session
from everytoken.training.run.artifacts import evaluate, generate_texts, prepare_job, train
from everytoken.training.step import execution_context, loop
from everytoken.training.step.execution_context import matrix_peak
from everytoken.training.step.history import HISTORY
from tests.benchmark_tasks.local_tasks import write_tasks
from tests.models.tiny_llama import LLAMA
from tests.training.tiny import EOS, EXECUTION, SEQ, byte_encoder, training_parameters

TEXTS = ["to be or not to be that is the question", "a rose is a rose is a rose", "the rest is silence"]


@versioned("tokenizer_artifact", 1)
def tokenizer_artifact(folder):
    encoder = byte_encoder(folder)
    return Built({"probe": probe_record(encoder.tokenizer.tokenizer)}, library_record())


@versioned("compact", 1)
def compact(folder, *, tokenizer):
    opened = byte_encoder(folder.parent)
    ids = np.concatenate([opened.encode([text]).values for text in TEXTS * 5])
    with WindowWriter(folder / "compact", SEQ + 1, np.uint16) as writer:
        writer.write(ids[: len(ids) // (SEQ + 1) * (SEQ + 1)].reshape(-1, SEQ + 1))
    return Built(statistics={})


@versioned("annotated", 1)
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


@versioned("documents", 1)
def documents(part):
    batch = pa.record_batch(
        {
            "text": pa.array(TEXTS, pa.large_string()),
            "source": ["wiki", "chat", "wiki"],
            "shard_index": pa.array([0, 0, 0], pa.int32()),
            "row": pa.array([0, 0, 1], pa.int64()),
        }
    )

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
        "streams": [
            ("compact", made("compact", compact, tokenizer=tokenizer)),
            ("annotated", made("annotated", annotated, tokenizer=tokenizer)),
        ],
        "data": DATA,
        "rules": EncodingRules(tokenizer, EOS, "literal"),
    }


DATA = DataParameters(
    schedule="integer",
    weights=None,
    replay=None,
    later_epochs="as_written",
    seed=1,
    check="sampled",
    document_mask=False,
)


def training_of(tmp_path, inputs, *, runs="runs", processes=1, initial=None, held_out=None, data=DATA, **changes):
    """Return what `train` gets; ``runs`` is the folder of checkpoints."""
    return {
        **inputs,
        "seq_length": None,
        "data": data,
        "model": LLAMA,
        "training": training_parameters(**changes),
        "initial": initial,
        "held_out": held_out,
        "checkpoints": CheckpointParameters(
            folder=str(tmp_path / runs), every_steps=2, milestone_steps=None, mirror=None
        ),
        "distribution": DistributionParameters(processes=processes, nodes=1, strategy="ddp", device="cpu"),
    }


def trained(tmp_path, inputs, name="checkpoint", **options):
    return ArtifactStore(tmp_path / name).save(plan_artifact(train, **training_of(tmp_path, inputs, **options)))


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


def test_each_checkpoint_that_a_run_keeps_is_a_model_with_its_digests_and_held_out_losses(tmp_path, inputs):
    options = training_of(tmp_path, inputs, held_out=held_out(tmp_path))
    looks = PeriodicHeldOut(every_steps=4, documents=2, batch_size=2)
    ArtifactStore(tmp_path / "checkpoint").save(
        plan_artifact(train, **options | {"training": training_parameters(held_out=looks)})
    )
    job = next(path for path in (tmp_path / "runs").iterdir() if path.suffix != ".live")
    folders = sorted(job.iterdir())
    early, last = Checkpoint(filepath=str(tmp_path / "checkpoint")).models()
    assert [(model["name"], model["step"]) for model in (early, last)] == [("checkpoint_step_4", 4), ("checkpoint", 6)]
    assert [folder.name for folder in folders] == ["step_000000004", "step_000000006"]
    for model, folder in ((early, folders[0]), (last, tmp_path / "checkpoint")):
        assert model["tags"]["sha256.model.safetensors"] == file_sha256(folder / "model.safetensors")
        assert not [value for value in model["tags"].values() if not re.fullmatch("[0-9a-f]{64}", value)]
        keys = [key for key, step, _ in model["metrics"] if step == model["step"]]
        names = ["held_out_bits_per_byte.chat", "held_out_bits_per_byte.wiki", "held_out_bits_per_byte"]
        assert set(keys) == {f"checkpoint.{name}" for name in names}
    assert early["tags"]["sha256sums"] == file_sha256(folders[0] / "SHA256SUMS")
    (folders[0] / "model.safetensors").unlink()
    assert [step for step, _ in CheckpointStore(job, mirror=None, milestone_steps=None).kept()] == [6]


def test_two_trainings_with_equal_inputs_have_one_digest(tmp_path, inputs):
    one = trained(tmp_path, inputs, "a", runs="one").root_digest
    assert trained(tmp_path, inputs, "b", runs="two").root_digest == one
    assert trained(tmp_path, inputs, "c", seed=8).root_digest != one


def test_a_training_that_lost_its_last_checkpoint_goes_on_to_the_same_digest(tmp_path, inputs, caplog):
    whole = trained(tmp_path, inputs, "a")
    job = prepare_job(**training_of(tmp_path, inputs))
    shutil.rmtree(job.folder / "step_000000006")
    caplog.set_level("INFO")
    assert trained(tmp_path, inputs, "b").root_digest == whole.root_digest
    assert "4 of 6 steps are done" in caplog.text


def test_a_finished_training_is_collected_without_a_step(tmp_path, inputs):
    whole = trained(tmp_path, inputs, "a")
    again = trained(tmp_path, inputs, "b")
    assert again.root_digest == whole.root_digest
    assert again.measured["seconds"] == 0 and again.measured["tokens_per_second"] is None


def reported(checkpoint):
    """Return what Kedro's nodes make of a checkpoint: report, metrics and history."""
    report = describe_training(checkpoint)
    json.dumps(report, allow_nan=False)
    metrics, history, _ = report_training(checkpoint, report)
    return report, flat_metrics("training", metrics, "training_metrics"), history


def test_a_clock_that_does_not_move_ends_no_training(tmp_path, inputs, monkeypatch):
    whole = trained(tmp_path, inputs, "a")
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: 5.0))
    announced = []
    with listening(announced.append):
        still = trained(tmp_path, inputs, "b", runs="still")
    assert {value for rows in announced for value in rows["tokens_per_second"]} == {None}
    assert still.root_digest == whole.root_digest
    assert still.measured["tokens_per_second"] is None and still.measured["mfu"] is None
    assert still.measured["tokens_per_second_by_step"] == [[step, None] for step in range(6)]
    report, metrics, history = reported(still)
    assert report["measured"]["tokens_per_second"] is None
    assert {name for name in metrics if "measured" in name} == {"training.measured_seconds"}
    assert history["tokens_per_second"] == [None] * 6


@pytest.mark.parametrize("peak", [1.0, None])
def test_a_peak_that_is_too_low_or_unknown_ends_no_training_and_gives_no_mfu(
    tmp_path, inputs, monkeypatch, caplog, peak
):
    whole = trained(tmp_path, inputs, "a")
    caplog.clear()  # its MFU may be 1 %
    for module in (execution_context, session):
        monkeypatch.setattr(module, "matrix_peak", lambda *arguments: peak)
    caplog.set_level("INFO")
    slow = trained(tmp_path, inputs, "b", runs="slow")
    assert slow.root_digest == whole.root_digest
    assert slow.measured["mfu"] is None and slow.measured["tokens_per_second"] > 0
    assert "MFU is not known: the steps reached " in caplog.text or peak is None
    assert "MFU 1" not in caplog.text and "tokens/s" in caplog.text
    _, metrics, _ = reported(slow)
    assert {name for name in metrics if "measured" in name} == {
        "training.measured_seconds",
        "training.measured_tokens_per_second",
    }


def test_the_peak_is_of_one_product_at_least_however_slow_it_is():
    assert matrix_peak.__wrapped__(EXECUTION, seconds=0.0) > 0


def test_the_peak_is_not_known_where_the_clock_stands_still(monkeypatch):
    monkeypatch.setattr(execution_context, "time", SimpleNamespace(perf_counter=lambda: 5.0))
    monkeypatch.setattr(torch, "mm", lambda a, b: torch.ones(1, 1))
    assert matrix_peak.__wrapped__(EXECUTION) is None


def test_a_device_without_memory_for_the_products_has_no_peak(monkeypatch, caplog):
    def full(*matrices):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(torch, "mm", full)
    assert matrix_peak.__wrapped__(EXECUTION) is None
    assert "so MFU is not known: out of memory" in caplog.text


def test_a_training_says_which_windows_it_read(tmp_path, inputs):
    statistics = trained(tmp_path, inputs, data=DATA.model_copy(update={"replay": (3, 40)})).statistics
    assert statistics["samples"] == [0, 24]
    assert sum(read["windows"] for read in statistics["streams"].values()) == 24


def test_another_place_for_checkpoints_or_another_number_of_processes_makes_nothing_again(tmp_path, inputs):
    one = plan_artifact(train, **training_of(tmp_path, inputs)).recipe.digest
    assert plan_artifact(train, **training_of(tmp_path, inputs, runs="b", processes=2)).recipe.digest == one
    swapped = {**inputs, "streams": inputs["streams"][::-1]}
    assert plan_artifact(train, **training_of(tmp_path, swapped)).recipe.digest != one
    full = DATA.model_copy(update={"check": "full"})
    same = training_of(tmp_path, inputs, data=full, activation_checkpointing=True, max_skipped_in_a_row=1)
    assert plan_artifact(train, **same).recipe.digest == one
    permuted = DATA.model_copy(update={"later_epochs": "permuted"})
    assert plan_artifact(train, **training_of(tmp_path, inputs, data=permuted)).recipe.digest != one


def test_a_run_that_starts_from_a_checkpoint_starts_from_its_tensors(tmp_path, inputs):
    first = trained(tmp_path, inputs, "a")
    second = trained(tmp_path, inputs, "b", initial=first, steps=3, learning_rate=1e-9)
    assert second.statistics["first_loss"] < first.statistics["first_loss"] - 0.05
    before, after = (load_model(made.folder).state_dict() for made in (first, second))
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)


def test_held_out_loss_is_known_while_it_trains(tmp_path, inputs):
    looked = PeriodicHeldOut(every_steps=2, documents=5, batch_size=2)
    with pytest.raises(TrainingError, match=r"there are none: set it null"):
        prepare_job(**{**training_of(tmp_path, inputs), "training": training_parameters(held_out=looked)})
    options = training_of(tmp_path, inputs, held_out=held_out(tmp_path))
    options["training"] = training_parameters(held_out=looked)
    announced = []
    with listening(announced.append):
        made = ArtifactStore(tmp_path / "b").save(plan_artifact(train, **options))
    rows = pq.read_table(made.path("held_out.parquet")).to_pylist()
    assert [(row["step"], row["source"]) for row in rows] == [
        (step, source) for step in (1, 3, 5) for source in ("chat", "wiki")
    ]
    assert {"step": [5], "held_out_bits_per_byte.wiki": [rows[-1]["bits_per_byte"]]} in announced
    steps = [step for told in announced if "loss" in told for step in told["step"]]
    assert steps == list(range(6))


def test_the_curve_is_drawn_by_source_and_in_total_and_changes_no_digest(tmp_path, inputs):
    def saved(name, curve):
        looked = PeriodicHeldOut(every_steps=3, documents=5, batch_size=2, curve_every_steps=curve)
        options = training_of(tmp_path, inputs, runs=name, held_out=held_out(tmp_path))
        options["training"] = training_parameters(held_out=looked)
        planned = plan_artifact(train, **options)
        return planned.recipe.digest, ArtifactStore(tmp_path / f"made_{name}").save(planned)

    announced = []
    recipe, few = saved("few", None)
    with listening(announced.append):
        same_recipe, many = saved("many", 1)
    assert same_recipe == recipe
    assert many.root_digest == few.root_digest
    _, _, two_points = reported(few)
    report, _, series = reported(many)
    names = ("held_out_bits_per_byte.chat", "held_out_bits_per_byte.wiki", "held_out_bits_per_byte")
    assert [key for key in series if key.startswith("held_out")] == list(names)
    for name in names:
        assert None not in series[name] and len(series[name]) == 6
        assert two_points[name] == [value if step in (2, 5) else None for step, value in enumerate(series[name])]
        live = {told["step"][0]: told[name][0] for told in announced if name in told}
        assert live == dict(enumerate(series[name]))
    rows = pq.read_table(many.path("held_out.parquet")).to_pylist()
    bits, size = (sum(row[key] for row in rows if row["step"] == 5) for key in ("nats", "bytes"))
    assert series["held_out_bits_per_byte"][-1] == pytest.approx(bits / np.log(2) / size)
    assert "held_out_curve" not in report["measured"]
    figure = report_training(many, report)[2]
    drawn = {trace.name: list(trace.y) for trace in figure.data}
    assert drawn["all sources"] == series["held_out_bits_per_byte"]
    assert drawn["wiki"] == series["held_out_bits_per_byte.wiki"]


def test_further_terms_of_the_loss_are_drawn_where_they_are_known():
    figure = training_figure({"step": [0, 1, 2], "loss": [3.0, None, 2.0], "ponder": [0.5, None, 0.25]}, ["ponder"])
    drawn = {trace.name: (list(trace.x), list(trace.y)) for trace in figure.data}
    assert drawn["ponder"] == ([1, 3], [0.5, 0.25])
    assert drawn["loss"] == ([1, 3], [3.0, 2.0])
    assert "Further terms of the loss" in [title.text for title in figure.layout.annotations]


def test_tasks_are_in_the_report_with_version_and_hash_and_change_no_digest(tmp_path, inputs):
    pytest.importorskip("lm_eval")
    folder = write_tasks(tmp_path / "tasks")
    asked = {"names": ("choices",), "task_folder": str(folder), "limit": 3, "max_new_tokens": 8}

    def saved(name, tasks):
        options = training_of(tmp_path, inputs, runs=name)
        options["training"] = training_parameters(tasks=tasks)
        planned = plan_artifact(train, **options)
        return planned.recipe.digest, ArtifactStore(tmp_path / f"made_{name}").save(planned)

    announced = []
    recipe, without = saved("without", None)
    with listening(announced.append):
        same_recipe, made = saved("with", PeriodicTasks(every_steps=2, **asked))
    assert same_recipe == recipe
    assert made.root_digest == without.root_digest
    report, _, series = reported(made)
    assert [row["step"] for row in report["tasks"]] == [1, 3, 5]
    assert {(row["task"], row["version"], row["examples"], len(row["sha256"])) for row in report["tasks"]} == {
        ("choices", 3, 3, 64)
    }
    assert "task_curve" not in report["measured"]
    accuracies = [row["metrics"]["acc"] for row in report["tasks"]]
    assert series["tasks.choices.acc"] == [None, accuracies[0], None, accuracies[1], None, accuracies[2]]
    live = [told["tasks.choices.acc"] for told in announced if "tasks.choices.acc" in told]
    assert live == [[accuracy] for accuracy in accuracies]
    assert not [name for name in reported(without)[2] if name.startswith("tasks")]


def held_out(tmp_path):
    store = Store(tmp_path / "held_out")
    store.save(Shards.from_values([0], ["0"]).map(documents), Inline())
    return store.load()


def test_evaluation_reports_every_source_beside_a_unigram_model(tmp_path, inputs):
    checkpoint = trained(tmp_path, inputs, steps=60)
    evaluation = BitsPerByteParameters(batch_size=2, execution=EXECUTION)
    planned = plan_artifact(
        evaluate,
        checkpoint=checkpoint,
        held_out=held_out(tmp_path),
        evaluation=evaluation,
        **inputs,
    )
    made = ArtifactStore(tmp_path / "evaluation").save(planned)
    figures = json.loads(made.path("bits_per_byte.json").read_text())
    assert figures == made.statistics
    assert made.measured["device"] == "cpu"
    assert list(figures["by_source"]) == ["chat", "wiki"]
    assert figures["total"]["bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert figures["total"]["bits_per_byte"] < figures["total"]["unigram_bits_per_byte"]


@versioned("flat", 1)
def flat(folder, *, tokenizer):
    opened = byte_encoder(folder.parent)
    ids = np.concatenate([opened.encode([text]).values for text in TEXTS * 5])
    torch.save(torch.from_numpy(ids.astype(np.int64)), folder / "shard_00000.bin")
    return Built(statistics={})


def test_a_model_of_flat_tokens_is_evaluated_with_the_windows_of_its_training(tmp_path, inputs):
    shards = ArtifactStore(tmp_path / "flat").save(plan_artifact(flat, tokenizer=inputs["rules"].tokenizer))
    given = {**training_of(tmp_path, {**inputs, "streams": [("raw_shards", shards)]}), "seq_length": SEQ}
    checkpoint = ArtifactStore(tmp_path / "checkpoint").save(plan_artifact(train, **given))
    planned = plan_artifact(
        evaluate,
        checkpoint=checkpoint,
        held_out=held_out(tmp_path),
        evaluation=BitsPerByteParameters(batch_size=2, execution=EXECUTION),
        **{name: given[name] for name in ("streams", "data", "rules")},
    )
    figures = ArtifactStore(tmp_path / "evaluation").save(planned).statistics
    assert figures["total"]["unigram_bits_per_byte"] > 0


def test_evaluation_refuses_other_streams_than_those_of_the_training(tmp_path, inputs):
    checkpoint = trained(tmp_path, inputs)
    planned = plan_artifact(
        evaluate,
        checkpoint=checkpoint,
        held_out=held_out(tmp_path),
        evaluation=BitsPerByteParameters(batch_size=2, execution=EXECUTION),
        **{**inputs, "streams": inputs["streams"][:1]},
    )
    with pytest.raises(TrainingError, match="streams and weights of the training"):
        ArtifactStore(tmp_path / "evaluation").save(planned)


def test_a_model_that_diverged_at_its_last_step_is_named_with_its_loss_and_rate(tmp_path, inputs):
    checkpoint = trained(tmp_path, inputs, steps=1, learning_rate=3e38, min_lr_ratio=1.0, warmup_steps=0)
    generation = PromptParameters(
        seed=1, prompts=("to be",), max_new_tokens=5, temperature=0.0, top_k=None, execution=EXECUTION
    )
    texts = plan_artifact(
        generate_texts, checkpoint=checkpoint, tokenizer=inputs["rules"].tokenizer, eos_token=EOS, generation=generation
    )
    figures = plan_artifact(
        evaluate,
        checkpoint=checkpoint,
        held_out=held_out(tmp_path),
        evaluation=BitsPerByteParameters(batch_size=2, execution=EXECUTION),
        **inputs,
    )
    for planned in (texts, figures):
        with pytest.raises(NonFiniteError, match=r"After 1 step it had loss 5\.\d+ and learning rate 3e\+38; lower"):
            ArtifactStore(tmp_path / "made").save(planned)


def test_generated_texts_are_kept_with_their_prompts(tmp_path, inputs):
    generation = PromptParameters(
        seed=1, prompts=("to be", ""), max_new_tokens=5, temperature=1.0, top_k=10, execution=EXECUTION
    )
    planned = plan_artifact(
        generate_texts,
        checkpoint=trained(tmp_path, inputs),
        tokenizer=inputs["rules"].tokenizer,
        eos_token=EOS,
        generation=generation,
    )
    made = ArtifactStore(tmp_path / "texts").save(planned)
    texts = json.loads(made.path("generations.json").read_text())
    assert [text["prompt"] for text in texts] == ["to be", ""]
    assert made.statistics == {"prompts": 2, "tokens": sum(len(text["tokens"]) for text in texts)}


def test_without_prompts_held_out_documents_begin_the_texts(tmp_path, inputs):
    generation = SampleParameters(seed=1, max_new_tokens=5, temperature=1.0, top_k=10, execution=EXECUTION)
    planned = plan_artifact(
        generate_texts,
        checkpoint=trained(tmp_path, inputs),
        tokenizer=inputs["rules"].tokenizer,
        eos_token=EOS,
        generation=generation,
        held_out=held_out(tmp_path),
    )
    made = ArtifactStore(tmp_path / "texts").save(planned)
    prompts = [text["prompt"] for text in json.loads(made.path("generations.json").read_text())]
    assert len(prompts) == len(TEXTS)
    assert all(any(0 < len(prompt) < len(text) and text.startswith(prompt) for text in TEXTS) for prompt in prompts)


def test_planning_loads_no_torch():
    program = "import sys, everytoken.training.run.artifacts, everytoken.models; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == "False"


@versioned("more_tokens", 1)
def more_tokens(folder, *, tokenizer):
    path = tokenizer.path(TOKENIZER_FILE)
    return load_tokenizer_file(
        folder, path=str(path), sha256=file_sha256(path), eos_token=EOS, add_tokens=["<a>", "<b>"]
    )


def test_a_run_gives_new_tokens_the_mean_of_the_old_rows(tmp_path, inputs):
    first = trained(tmp_path, inputs, "a")
    tokenizer = inputs["rules"].place
    more = ArtifactStore(tmp_path / "more").save(plan_artifact(more_tokens, tokenizer=tokenizer))
    wider = {**inputs, "rules": EncodingRules(more, EOS, "literal")}
    second = trained(tmp_path, wider, "b", initial=first, steps=3, learning_rate=1e-12, weight_decay=0.0)
    before, after = (load_model(made.folder).state_dict() for made in (first, second))
    rows = before["embedding"].shape[0]
    assert after["embedding"].shape[0] == rows + 2
    torch.testing.assert_close(after["embedding"][:rows], before["embedding"], rtol=0, atol=1e-6)
    mean = before["embedding"].mean(0)
    torch.testing.assert_close(after["embedding"][rows:], mean.expand(2, -1), rtol=0, atol=1e-6)
    with pytest.raises(TrainingError, match="give the same model, and its tokenizer, which may have more added tokens"):
        trained(tmp_path, inputs, "c", initial=second)
