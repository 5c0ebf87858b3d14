"""What documents say of the project is true: files, folders, modules, imports, the picture, the order of the rooms."""

from __future__ import annotations

import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project

from benchmarks.gpu_memory import tables

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "everytoken"
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("conf/*.md")])
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
bootstrap_project(ROOT)

_PATH = re.compile(r"(?<![\w/.-])(?:\.ci|benchmarks|conf|docs|examples|notebooks|src|tests)/[\w./<>*-]*[\w>*]")
_LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)")
_MODULE = re.compile(r"`(everytoken(?:\.\w+)+)(?:\(\))?`")
_IMPORT = re.compile(
    r"^[ \t]*(from everytoken[\w.]* import (?:\([^)]*\)|[^(\n#]+)|import everytoken[\w.]*)", re.MULTILINE
)
_FILES_OF_THE_READER = ("conf/local", "conf/look", "conf/mine", "conf/replay/parameters_replay.yml")


def _text(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return text


def _names(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_names)
def test_files_and_folders_that_a_page_names_exist(page: Path) -> None:
    text = _text(page)
    named = {name for name in _PATH.findall(text) if not name.startswith(_FILES_OF_THE_READER)}
    wrong = {name for name in named if not any(ROOT.glob(re.sub("<[^>]*>", "*", name)))}
    wrong |= {link for link in _LINK.findall(text) if not (page.parent / link).exists()}
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=_names)
def test_modules_and_functions_that_a_page_names_exist(page: Path) -> None:
    for name in _MODULE.findall(_text(page)):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("page", [*PAGES, *NOTEBOOKS], ids=_names)
def test_imports_in_a_page_work(page: Path) -> None:
    for line in _IMPORT.findall(_text(page)):
        exec(line, {})


def test_the_checks_find_what_is_wrong() -> None:
    text = (
        "`src/everytoken/gone.py`, `everytoken.gone`, [here](gone.md)\n\n    from everytoken.gone import it  # that\n"
    )
    assert _PATH.findall(text) == ["src/everytoken/gone.py"]
    assert _MODULE.findall(text) == ["everytoken.gone"]
    assert _LINK.findall(text) == ["gone.md"]
    assert [line.strip() for line in _IMPORT.findall(text)] == ["from everytoken.gone import it"]


_ROWS = re.findall(r"^\| `([a-z_0-9/]+)` \|", ARCHITECTURE, re.MULTILINE)


def test_every_folder_has_a_row_in_the_page_of_the_architecture() -> None:
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")} - {"."}
    assert folders <= set(_ROWS)
    assert len(_ROWS) == len(set(_ROWS))
    assert not [row for row in _ROWS if not (SOURCE / row).is_dir() and not (SOURCE / f"{row}.py").is_file()]


def _layers() -> Iterator[tuple[str, list[set[str]]]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    for contract in contracts:
        if contract["type"] == "layers":
            (container,) = contract["containers"]
            room = container.removeprefix("everytoken").removeprefix(".")
            yield room, [set(layer.split(" | ")) for layer in contract["layers"]]


@pytest.mark.parametrize(("room", "layers"), list(_layers()))
def test_the_rooms_are_listed_in_the_order_of_their_layers(room: str, layers: list[set[str]]) -> None:
    """Of the project every room is listed, of a room its folders."""
    listed = [row.rpartition("/")[2] for row in _ROWS if row.rpartition("/")[0] == room]
    rank = {name: i for i, layer in enumerate(layers) for name in layer}
    assert [rank[name] for name in listed] == sorted(rank[name] for name in listed)
    assert room or set(listed) == set(rank)


def test_the_picture_shows_the_pipelines_as_they_are() -> None:
    with KedroSession.create(project_path=ROOT, env="local") as session:
        session.load_context()  # whose job is the default
    (picture,) = re.findall(r"```mermaid\n(.*?)```", ARCHITECTURE, re.DOTALL)
    node = r"(\w+)(\(\[.*?\]\))?"
    arrows = re.findall(rf"{node} (?:--|-\.) (\w+) (?:--|\.-)> (\w+)\n", picture)
    assert len(arrows) == picture.count(">")
    outside = {name for name, shape, _, _ in arrows if shape}
    for source, _, pipeline, target in arrows:
        nodes = pipelines[pipeline].nodes
        assert source in outside or any(source in node.inputs for node in nodes), f"{pipeline} reads no {source}"
        assert any(target in node.outputs for node in nodes), f"{pipeline} makes no {target}"
    solid = {pipeline for line in picture.splitlines() for pipeline in re.findall(r" -- (\w+) -->", line)}
    drawn = {node.name for pipeline in solid for node in pipelines[pipeline].nodes}
    assert drawn == {node.name for node in pipelines["__default__"].nodes}


def test_the_page_of_gpus_has_the_tables_that_its_script_prints() -> None:
    page = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
    assert f"\n\n{tables()}\n\n" in page
    assert page.count("calculated, not run") == 1 + 3


def test_pre_commit_and_make_lint_run_the_same_commands() -> None:
    recipe = re.findall(r"^lint:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    of_make = [line.strip().replace("$(BIN)/", ".venv/bin/") for line in recipe[0].splitlines()]
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]] == of_make
