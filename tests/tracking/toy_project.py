"""A tiny Kedro project with the tracking hook, run for real by ``kedro run`` in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.shards.children import PATIENCE, wait_until
from tests.warm_kedro import Started, run_kedro

SOURCE = Path(__file__).resolve().parents[2] / "src"

FILES = {
    "pyproject.toml": """
        [tool.kedro]
        package_name = "toy"
        project_name = "toy"
        kedro_init_version = "1.7.0"
        source_dir = "src"
    """,
    ".telemetry": "consent: false",
    ".gitignore": "data/\nmlflow.db*\nmlartifacts/\n__pycache__/\n",
    "conf/base/mlflow.yml": """
        experiment: toy
        tracking_uri: sqlite:///mlflow.db
        artifacts: mlartifacts
    """,
    "conf/base/parameters.yml": """
        sampling: {rate: 0.5, seed: 7}
        training:
          mode: normal
          optimizer: {lr: 0.01, betas: [0.9, 0.95]}
          seeds: {init: 1, order: 2}
        unrelated: {seed: 3}
    """,
    "conf/base/catalog.yml": """
        documents: {type: json.JSONDataset, filepath: data/documents.json}
        sample: {type: toy.store.LedgerText, filepath: data/sample}
        never_made:
          type: everytoken.datasets.WhenMade
          dataset: {type: everytoken.datasets.ArtifactFolder, filepath: data/never_made}
        sampling_metrics: {type: json.JSONDataset, filepath: data/sampling_metrics.json}
        sampling_report: {type: json.JSONDataset, filepath: data/report.json}
        training_history: {type: json.JSONDataset, filepath: data/history.json}
        training_plot: {type: plotly.JSONDataset, filepath: data/plot.json}
    """,
    "conf/local/.gitkeep": "",
    "src/toy/__init__.py": "",
    "src/toy/settings.py": """
        from everytoken.tracking import TrackingHook

        CONFIG_LOADER_ARGS = {
            "base_env": "base",
            "default_run_env": "local",
            "merge_strategy": {"parameters": "soft"},
            "config_patterns": {"mlflow": ["mlflow*"]},
        }
        HOOKS = (TrackingHook(),)
    """,
    "src/toy/store.py": """
        import hashlib
        from pathlib import Path
        from kedro.io import AbstractDataset


        class LedgerText(AbstractDataset):
            def __init__(self, *, filepath):
                self._folder = Path(filepath)

            def load(self):
                return (self._folder / "part").read_text()

            def save(self, data):
                self._folder.mkdir(parents=True, exist_ok=True)
                (self._folder / "part").write_text(data)

            def _describe(self):
                return {"filepath": str(self._folder)}

            def ledger_summary(self):
                data = self.load().encode()
                return {"root_digest": hashlib.sha256(data).hexdigest(), "rows": data.count(10), "bytes": len(data)}
    """,
    "src/toy/nodes.py": """
        import random
        import time
        from pathlib import Path
        import plotly.graph_objects as go
        from pydantic import BaseModel, ConfigDict
        from everytoken.measurements import announce


        class Strict(BaseModel):
            model_config = ConfigDict(frozen=True, extra="forbid")


        class Sampling(Strict):
            rate: float
            seed: int


        class Optimizer(Strict):
            lr: float
            betas: tuple[float, float]


        class Training(Strict):
            mode: str
            optimizer: Optimizer
            seeds: dict[str, int]


        def draw(documents: list, never_made: None, sampling: Sampling):
            chosen = random.Random(sampling.seed).sample(documents, int(len(documents) * sampling.rate))
            metrics = {"documents": {"in": len(documents), "kept": len(chosen)}}
            return "".join(line + "\\n" for line in chosen), metrics, {"kept": len(chosen)}


        def train(sample: str, training: Training):
            if training.mode == "fail":
                raise RuntimeError("the loss is a banana")
            announce({"step": [0, 1], "loss": [1.0, None if training.mode == "skip" else 0.5]})
            if training.mode == "sleep":
                Path("data/asleep").touch()
                time.sleep(3000)  # until it is killed
            if training.mode == "wait":
                Path("data/asleep").touch()
                while not Path("data/go").exists():
                    time.sleep(0.05)
                for step in range(2, 8):
                    announce({"step": [step], "loss": [1 / (step + 1)]})
            losses = [1 / (step + 1) for step in range(1500)]
            if training.mode == "word":
                losses[3] = "much"
            history = {"step": list(range(1500)), "loss": losses, "rate": [training.optimizer.lr] * 1500}
            return history, go.Figure(go.Scatter(y=losses[:50]))
    """,
    "src/toy/pipeline_registry.py": """
        from kedro.pipeline import Node, Pipeline
        from .nodes import draw, train


        def register_pipelines():
            sampling = Pipeline([
                Node(
                    draw,
                    ["documents", "never_made", "params:sampling"],
                    ["sample", "sampling_metrics", "sampling_report"],
                    name="draw",
                ),
            ])
            training = Pipeline(
                [
                    Node(
                        train,
                        ["sample", "params:training"],
                        ["training_history", "training_plot"],
                        name="t",
                        tags="late",
                    ),
                ],
                namespace="training",
                prefix_datasets_with_namespace=False,
            )
            return {"sampling": sampling, "training": training, "__default__": sampling + training}
    """,
}


class ToyProject:
    """The project folder, and ways to run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip())
        (folder / "data").mkdir()
        (folder / "data" / "documents.json").write_text(str([f"text {i}" for i in range(40)]).replace("'", '"'))

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a child process: our sources, no tracking address from outside."""
        kept = {key: value for key, value in os.environ.items() if "MLFLOW" not in key}
        return {**kept, "PYTHONPATH": str(SOURCE), "DO_NOT_TRACK": "1", "COLUMNS": "200"}

    def kedro(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``kedro run`` to its end; both outputs are in ``stdout``."""
        return run_kedro(["run", *arguments], folder=self.folder, environment=self.environment, timeout=PATIENCE)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the project."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def asleep(self, mode: str = "sleep", **environment: str) -> Started:
        """Start a run and return when its training node sleeps; with mode "wait" until the file data/go is made."""
        marker = self.folder / "data" / "asleep"
        marker.unlink(missing_ok=True)
        (self.folder / "data" / "go").unlink(missing_ok=True)
        command = ["kedro", "run", "--pipelines", "training", "--params", f"training.mode={mode}"]
        process = Started(command, self.folder, {**self.environment, **environment})

        def sleeps() -> bool:
            assert process.poll() is None, process.communicate()
            return marker.exists()

        wait_until(sleeps, "the run did not come to its training")
        return process

    def end(self, process: Started, number: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        process.send_signal(number)
        return process.wait(PATIENCE)
