"""What environments hold: their files, the parameters that their jobs read, and which of these come from base."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession

from everytoken.configuration import groups_of, streams_of
from everytoken.settings import CONFIG_LOADER_ARGS, CONFIG_LOADER_CLASS

ROOT = Path(__file__).resolve().parents[2]
NO_RECIPES = {"base", "local", "test", "replay", "cluster"}


def _environments() -> list[str]:
    """Return the environments of the repository; those that somebody adds for own text are not among them."""
    if not (ROOT / ".git").exists():
        return sorted(folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir())
    files = subprocess.run(["git", "ls-files", "conf"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({Path(file).parts[1] for file in files.splitlines() if len(Path(file).parts) > 2})


ENVIRONMENTS = _environments()
RECIPES = [name for name in ENVIRONMENTS if name not in NO_RECIPES]


def groups_of_job(env: str) -> tuple[dict[str, Any], frozenset[str] | None]:
    """Return the parameters that the job of an environment reads, and the streams that its training can take."""
    with KedroSession.create(project_path=ROOT, env=env) as session:
        catalog = session.load_context().catalog
        job = pipelines["__default__"]
        return groups_of(job, catalog), streams_of(job)


def leaves_of_files(env: str) -> dict[str, Any]:
    """Return the parameters that the files of an environment hold, by their paths."""
    loader = CONFIG_LOADER_CLASS(str(ROOT / "conf"), env, **CONFIG_LOADER_ARGS)
    return leaves(loader._parameters_of_folder(env))


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the values of a tree of mappings by their paths; a list is one value, and so is an empty mapping."""
    if not isinstance(tree, dict) or not tree:
        return {path: tree}
    return {
        key: leaf
        for name, value in tree.items()
        for key, leaf in leaves(value, f"{path}.{name}" if path else str(name)).items()
    }


def inherited(env: str) -> set[str]:
    """Return the leaves of an environment's job that base decides."""
    groups, _ = groups_of_job(env)
    effective = leaves({name: group.model_dump(mode="json") for name, group in groups.items()})
    own, base = leaves_of_files(env), leaves_of_files("base")
    names_a_shape = "model_size:" in (ROOT / "conf" / env / "globals.yml").read_text()
    return {
        path
        for path in effective.keys() & base.keys() - own.keys()
        if not (names_a_shape and path.startswith("training.model."))
    }
