"""A folder of one's own is a source in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from everytoken.shards import Store
from tests.test_run import Project
from tests.warm_kedro import run_everytoken

MINE = "mine: {{upstream: {{kind: path, root: {root}}}}}"


def test_a_folder_of_texts_is_a_whole_source(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    root = tmp_path / "texts"
    (root / "letters").mkdir(parents=True)
    texts = {"a.txt": "The harbour freezes in January,\nand nobody sails.\n", "letters/b.txt": "A parrot " * 9}
    for name, text in texts.items():
        (root / name).write_text(text)
    rows = [{"id": i, "text": f"Row {i} of the table of tides, from the almanac."} for i in range(3)]
    (root / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "without an id " * 4}]))
    environment = project.folder / "conf/mine"
    environment.mkdir()
    (environment / "globals.yml").write_text("data: data/mine\nengine: {kind: inline}\n")
    off = "".join(f"    {name}: null\n" for name in ("wikipedia", "chats", "champ", "flan_cot"))
    (environment / "parameters_ingestion.yml").write_text(
        f"ingestion:\n  sources:\n{off}    {MINE.format(root=root)}\n"
    )
    project.kedro("run", "--env", "mine", "--pipelines", "ingestion")
    documents = Store(project.folder / "data/mine/02_intermediate/documents").load()
    found = [
        row for part in documents for row in part.table(["source", "shard_index", "row", "id", "text"]).to_pylist()
    ]
    by_file = {(row["shard_index"], row["row"]): (row["id"], row["text"]) for row in found}
    assert {row["source"] for row in found} == {"mine"}
    assert by_file == {
        (0, 0): ("a.txt", texts["a.txt"]),
        **{(1, i): (str(i), row["text"]) for i, row in enumerate(rows)},
        (1, 3): (None, "without an id " * 4),
        (2, 0): ("letters/b.txt", texts["letters/b.txt"]),
    }
    (root / "notes.doc").write_bytes(b"of another program")
    output = project.kedro("run", "--env", "mine", "--pipelines", "ingestion", expect=1)
    assert "file notes.doc: the format is not known by its name" in output, "nothing in the folder is passed over"


def test_the_command_writes_an_environment_whose_ingestion_runs(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    root = tmp_path / "texts"
    root.mkdir()
    for number in range(60):
        (root / f"{number:02}.txt").write_text(
            f"Der Hafen {number} ist im Winter nicht frei, und die Schiffe liegen fest. " * 6
        )
    told = project.everytoken("new", "mine", str(root))
    assert "60 documents" in told and "languages, roughly: de 100%" in told and "kedro run --env mine" in told
    project.kedro("run", "--env", "mine", "--pipelines", "ingestion,annotation,subsampling")
    held_out = Store(project.folder / "data/mine/04_feature/held_out_documents").load()
    unannotated = Store(project.folder / "data/mine/04_feature/unannotated_documents").load()
    assert held_out.rows > 0 and held_out.rows + unannotated.rows == 60
    scored = "annotation.scorer.kind=embedded,subsampling.annotation_threshold=3"
    output = " ".join(project.kedro("run", "--env", "mine", "--pipelines", "annotation", "--params", scored).split())
    assert "warning: the scorer embedded knows English, and not " in output and "Set annotation.scorer to" in output
    told = json.loads((project.folder / "data/mine/08_reporting/annotation_metrics.json").read_text())
    assert told["unknown_words_share"] == told["unknown_words"] / told["words"] > 0.35
    for arguments, message in ((["mine", str(root)], "conf/mine exists"), (["other", "nowhere"], "there is no file")):
        done = run_everytoken(
            ["new", *arguments], folder=project.folder, environment=project.environment({}), timeout=60
        )
        assert done.returncode == 1 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (project.folder / "conf/other").exists()


def test_one_run_reads_only_some_of_the_sources(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    off = "".join(f"    {name}: null\n" for name in ("wikipedia", "chats", "champ", "flan_cot"))
    environment = project.folder / "conf/mine"
    environment.mkdir()
    (environment / "globals.yml").write_text("data: data/mine\nengine: {kind: inline}\n")
    for name in "abc":
        (tmp_path / name).mkdir()
        rows = [{"text": f"Row {i} of the source {name}, as long as the others are."} for i in range(60)]
        (tmp_path / name / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = "".join(f"    {name}: {{upstream: {{kind: path, root: {tmp_path / name}}}}}\n" for name in "abc")
    mixture = "{weights: {a: 0.5, b: 0.3, c: 0.2}, target_total_tokens: 500, chars_per_token: 4.0, tolerance: 0.5, "
    (environment / "parameters_ingestion.yml").write_text(
        f"ingestion:\n  plan: {{n_shards: null}}\n  mixture: {mixture}documents_per_part: 50}}\n  sources:\n{off}{own}"
    )
    run = ["run", "--env", "mine", "--pipelines", "ingestion"]
    metrics = project.folder / "data/mine/08_reporting/ingestion_metrics.json"
    output = project.kedro(*run, "--params", "ingestion.only=c+b")
    assert "ingestion.only: reading b, c; mixture.weights over their sum: b 0.6, c 0.4" in output
    characters = {name: counts["characters"] for name, counts in json.loads(metrics.read_text())["by_source"].items()}
    assert {name: round(count / 4, -1) for name, count in characters.items()} == {"b": 310, "c": 210}, "300, 200, ended"
    assert "ingestion.only" not in project.kedro(*run)
    assert set(json.loads(metrics.read_text())["by_source"]) == {"a", "b", "c"}


def test_a_source_of_chats_reports_the_keys_that_are_not_in_its_documents(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    (tmp_path / "talk").mkdir()
    asked, answered = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "thinking": "Add."}
    rows: list[dict[str, object]] = [
        {"messages": [asked, {**answered, "content": "5", "weight": 0}, asked, answered], "note": "x"},
        {"messages": [asked, {**answered, "content": "It is four, as was said."}], "id": "2", "label": True},
        {"messages": [asked, {**answered, "content": "go away"}], "label": False},
        {"messages": [asked, answered], "images": ["1.jpg"]},
    ]
    (tmp_path / "talk/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = project.folder / "conf/mine"
    environment.mkdir()
    (environment / "globals.yml").write_text("data: data/mine\nengine: {kind: inline}\n")
    marks = {role: {"prefix": f"{role}: ", "suffix": ""} for role in ("system", "user", "assistant", "tool")}
    template = {**marks, "after_turn": "\n", "reserved": [], "reasoning": "leave_out"}
    rules = {"empty": "drop", "neighbours": "merge", "opening": "user", "unanswered": "cut"}
    renderer = {"kind": "conversation", "shape": "messages", "rules": rules, "template": template}
    off: dict[str, object] = dict.fromkeys(("wikipedia", "chats", "champ", "flan_cot"))
    talk = {"upstream": {"kind": "path", "root": str(tmp_path / "talk")}, "renderer": renderer}
    parameters = {"ingestion": {"sources": {**off, "talk": talk}}}  # JSON is YAML
    (environment / "parameters_ingestion.yml").write_text(json.dumps(parameters))
    output = project.kedro("run", "--env", "mine", "--pipelines", "ingestion")
    assert "ignored message.thinking 3; passed over id 1; unknown note 1" in " ".join(output.split())
    with (project.folder / "data/mine/08_reporting/ingestion_report.csv").open() as file:
        report = {row["source"]: row for row in csv.DictReader(file)}
    names = ("rows_read", "kept", "chat_not_honoured", "chat_not_wanted")
    assert [report["talk"][name] for name in names] == ["4", "2", "1", "1"]
    keys = ("keys_passed_over", "keys_unknown", "keys_ignored")
    assert [report["all sources"][name] for name in keys] == ["1", "1", "3"]
    (part,) = Store(project.folder / "data/mine/02_intermediate/documents").load()
    found = part.table(["text", "assistant_spans"]).to_pylist()
    said = [[row["text"][span["start"] : span["end"]] for span in row["assistant_spans"]] for row in found]
    assert said == [["4"], ["It is four, as was said."]]
    assert "assistant: 5\n" in found[0]["text"]
