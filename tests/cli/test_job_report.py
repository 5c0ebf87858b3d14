"""The report of a run says what its ledgers say, names what is missing, and opens in a browser."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from everytoken.cli.report.blocks import DataTable, Paragraph, Quotation, Section, html_elements, markdown, plain_lines
from everytoken.cli.report.charts import line_chart
from everytoken.cli.report.left import without_paths
from everytoken.configuration import read_costs
from everytoken.corpus import ExpectParameters
from tests.corpus.scoring.browser import browser_page
from tests.test_run import Project

HOSTILE = "</pre><script>document.title='hacked'</script> | a_b _c_ `x` [l](u)\n# head\n```\n\udc80"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("report") / "project")
    made.kedro("run", "--env", "test")
    return made


@pytest.fixture(scope="module")
def printed(project: Project) -> str:
    return project.everytoken("report", "--env", "test")


def reporting(project: Project) -> Path:
    return project.folder / "data/test/08_reporting"


def test_the_card_has_the_numbers_of_the_ledgers(project: Project, printed: str) -> None:
    ledgers, folder = project.ledgers(), reporting(project)
    rows = sum(part["rows"] for part in ledgers["documents"]["parts"])
    assert re.search(rf"documents +{rows:,}: ", printed)
    metrics = json.loads((folder / "training_metrics.json").read_text())
    assert f"{metrics['parameters']:,} parameters" in printed
    evaluation = json.loads((folder / "evaluation_metrics.json").read_text())["total"]
    assert re.search(rf"all sources +{evaluation['documents']:,} .* {evaluation['bits_per_byte']:.3f}\n", printed)
    for name in ("documents", "tokenizer", "compact_stream", "checkpoint"):
        assert re.search(rf"  {name} +{ledgers[name]['root_digest'][:16]}\n", printed)
    assert len(printed.splitlines()) < 50 and max(map(len, printed.splitlines())) <= 120


def test_the_report_has_every_section_and_digest_and_makes_nothing(project: Project, printed: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in project.folder.rglob("ledger.json")}
    project.everytoken("report", "--env", "test")
    assert before == {path: path.stat().st_mtime_ns for path in project.folder.rglob("ledger.json")}
    text = (reporting(project) / "report.md").read_text(encoding="utf-8")
    for title in ("Contract", "Stages", "Mixture", "Scores", "Cuts", "Curves", "Samples", "Costs by stage"):
        assert f"\n## {title}\n" in text
    for name in ("documents", "annotated_stream", "checkpoint", "held_out_evaluation"):
        assert f"| {name} | {project.digests()[name]} |" in text
    assert "issing" not in text
    page = (reporting(project) / "report.html").read_text(encoding="utf-8")
    steps = json.loads((reporting(project) / "training_metrics.json").read_text())["steps"]
    assert "| after so many steps |" in text and f"\n| {steps:,} |" in text, "as the log counts them"
    assert page.count("<svg") == 3 and "<script" not in page and "http" not in page.split("</head>")[1]


def test_no_file_names_a_folder_or_the_machine(project: Project, printed: str) -> None:
    for name in ("report.html", "report.md", "card.md"):
        text = (reporting(project) / name).read_text(encoding="utf-8")
        assert str(project.folder) not in text and str(Path.home()) not in text
        assert not re.search(rf"\b{re.escape(socket.gethostname())}\b", text)
    assert without_paths("the weights in /home/me/models/a.bin of https://x.org/a/b") == (
        "the weights in …/a.bin of https://x.org/a/b"
    )


def test_hugging_face_reads_the_card(project: Project, printed: str) -> None:
    card = ModelCard((reporting(project) / "card.md").read_text(encoding="utf-8"))
    assert card.data.pipeline_tag == "text-generation"
    (result,) = card.data.eval_results
    evaluation = json.loads((reporting(project) / "evaluation_metrics.json").read_text())["total"]
    assert (result.metric_type, result.metric_value) == ("bits_per_byte", round(evaluation["bits_per_byte"], 6))


def test_the_files_are_in_the_run_that_made_the_data(project: Project, printed: str) -> None:
    from mlflow import MlflowClient

    (run,) = project.runs()
    assert f"added to the MLflow run {run.info.run_id}" in printed
    client = MlflowClient(f"sqlite:///{project.folder}/mlflow.db")
    found = [file.path for file in client.list_artifacts(run.info.run_id, "report")]
    assert found == ["report/card.md", "report/report.html", "report/report.md"]


def test_a_missing_stage_is_said_to_be_missing(project: Project, printed: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    data = project.folder / "data/test"
    shutil.copytree(data, kept, symlinks=True)
    try:
        shutil.rmtree(data / "06_models/checkpoint")
        for name in ("training_metrics.json", "training_history.json", "evaluation_metrics.json", "score_report.csv"):
            (reporting(project) / name).unlink()
        said = project.everytoken("report", "--env", "test", "--no-mlflow", "--out", str(tmp_path / "out"))
        assert "Missing: checkpoint (kedro run --env test --pipelines training makes it)." in said
        assert "Missing: evaluation_metrics (kedro run --env test --pipelines evaluation makes it)." in said
        text = (tmp_path / "out/report.md").read_text(encoding="utf-8")
        assert "| checkpoint | missing |" in text
        assert "Missing: score_report (kedro run --env test --pipelines annotation makes it)." in text
    finally:
        shutil.rmtree(data)
        shutil.copytree(kept, data, symlinks=True)


def test_every_stage_has_its_costs_and_a_rerun_keeps_them(project: Project, printed: str) -> None:
    file = reporting(project) / "stage_costs.csv"
    costs, before = {one.stage: one for one in read_costs(file)}, file.read_bytes()
    assert {"ingestion.take_documents", "annotation.score_documents", "training.train_model"} <= costs.keys()
    trained = costs["training.train_model"]
    assert trained.cpu_seconds is not None and trained.peak_bytes is not None
    assert trained.cpu_seconds > 0 and trained.peak_bytes > 10**8 and trained.gpu_seconds == 0
    project.kedro("run", "--env", "test")
    assert file.read_bytes() == before
    project.kedro("run", "--env", "test", "--pipelines", "evaluation", "--params", "evaluation.generation.seed=99")
    after = {one.stage: one for one in read_costs(file)}
    assert {name for name in after if after[name] != costs[name]} == {"evaluation.generate_samples"}
    project.kedro("run", "--env", "test", "--pipelines", "evaluation")


@pytest.mark.slow
def test_workers_count(tmp_path: Path) -> None:
    made = Project(tmp_path / "project")
    made.use_engine("{kind: processes, workers: 2}")
    made.kedro("run", "--env", "test", "--pipelines", "ingestion,annotation")
    scored = {one.stage: one for one in read_costs(reporting(made) / "stage_costs.csv")}["annotation.score_documents"]
    assert scored.cpu_seconds is not None and scored.cpu_seconds > 0.3, "the model is read by the workers alone"


@pytest.mark.sensitive
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_the_page_so_that_it_can_be_read(
    project: Project, printed: str, tmp_path: Path, scheme: str
) -> None:
    with browser_page(tmp_path) as page:
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        page.open(reporting(project) / "report.html")
        assert page.evaluate("document.title") == "Report of a run" and page.complaints() == []
        assert {url.split(":")[0] for url in page.requested()} <= {"file", "about"}
        assert page.evaluate(_CONTRASTS) >= 4.5, "WCAG 2, level AA"
        assert page.evaluate("[...document.querySelectorAll('polyline')].every(l => l.getBBox().width > 300)")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# the least contrast of a text, a label or a curve with the page
_CONTRASTS = """(() => {
  const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(v => {
    v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const page = light(getComputedStyle(document.body).backgroundColor);
  const of = c => { const l = light(c); return (Math.max(l, page) + 0.05) / (Math.min(l, page) + 0.05); };
  const found = [];
  for (const e of document.querySelectorAll('h1, h2, h3, p, th, td, pre, figcaption'))
    found.push(getComputedStyle(e).color);
  for (const e of document.querySelectorAll('.label, .bar')) found.push(getComputedStyle(e).fill);
  for (const e of document.querySelectorAll('.line')) found.push(getComputedStyle(e).stroke);
  return Math.min(...found.map(of));
})()"""


def test_texts_are_data_in_every_form() -> None:
    section = Section(
        HOSTILE, [Paragraph(HOSTILE), DataTable((HOSTILE, "n"), [(HOSTILE, "1")]), Quotation("x", HOSTILE)]
    )
    html = "".join(html_elements([section]))
    assert "<script" not in html and html.count("<pre>") == html.count("</pre>") == 1
    text = markdown([section])
    fence = "````"
    assert text.count(f"\n{fence}") == 2, "a longer fence than the text has"
    outside = text.split(f"{fence}text")[0]
    assert "\n# head" not in outside and "<script" not in outside.replace("\\<", "")
    assert [line for line in plain_lines(section) if len(line) > 120] == []


def test_a_chart_of_one_point_or_none_is_a_chart() -> None:
    for curves in ({}, {"a": []}, {"a": [(3.0, 2.0)]}, {"a": [(float(k), 1.0) for k in range(5_000)]}):
        chart = line_chart(curves, "step", "loss")
        assert chart.startswith("<svg") and "nan" not in chart and len(chart) < 20_000


def test_published_figures_are_next_to_what_was_found() -> None:
    expect = ExpectParameters.model_validate(
        {"fatal": {"annotated_rows": 5, "longest_document": 9}, "compare": {"share_at_cap": 0.25, "shards": 7}}
    )
    found = expect.compared({"annotated_rows": 5, "share_at_cap": 0.3004})
    told = {one.name: (one.expected, one.found, one.verdict.partition(":")[0]) for one in found}
    assert told == {
        "annotated rows": ("5", "5", "equal"),
        "longest document": ("9", "", "not known"),
        "share at cap": ("0.25", "0.3004", "different"),
        "shards": ("7", "", "not known"),
    }
