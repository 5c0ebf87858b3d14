"""The files of an environment, read without Kedro: equal to what its loader reads, or left to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from kedro.config import OmegaConfigLoader

from everytoken.configuration import CONFIG_LOADER_ARGS, read_plainly

CONF = Path(__file__).resolve().parents[2] / "conf"
KEYS = ("catalog", "globals", "mlflow", "parameters")


def of_kedro(conf: Path, env: str | None, key: str) -> object:
    return OmegaConfigLoader(str(conf), env=env, **CONFIG_LOADER_ARGS)[key]


@pytest.mark.parametrize("env", [None, *sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())])
def test_every_environment_of_the_project_is_read_as_kedro_reads_it(env: str | None) -> None:
    for key in KEYS:
        found = read_plainly(CONF, env, key)
        assert found is not None and found == of_kedro(CONF, env, key), key


def conf_of(folder: Path, **files: str) -> Path:
    for name in ("base", "local"):
        (folder / name).mkdir()
    (folder / "base/globals.yml").write_text("data: data\nsize: {small: 3, large: [1, 2]}\nmodel: small\nnone: null\n")
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_yml", ".yml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "a: {x: 1e-3, y: 1_000, z: 0x10, t: 2024-01-02, o: 010, on: yes, inf: .inf, f: 1., e: '1e3', s: 1:30}",
        "a: &b {c: 1}\nd: {<<: *b, e: 2}\nf: *b",
        "a: ${globals:data}/x\nb: ${globals:size}\nc: ${globals:size.large}\nd: ${globals:size.${globals:model}}",
        "a: {b: [1, {c: '${x}'}]}\nx: '${y.z}'\ny: {z: 7}\nw: ${x}-${globals:data}",
        "a: ${x[b].y}\nx: {1.7b: {y: 3}, k: 1.7b, b: {y: 2}}\nd: ${x[${x.k}]}",
        "a: text with $ and { and }\nb: ''\nc: [null, ~]\n1: 2",
        "a: {b: '???', own: 2}\nx: ???\ny: 1",
        "_hidden: {a: 1}\nb: ${_hidden}",
        "a: {b: 1}\n# nothing more\n",
    ],
)
def test_what_is_read_is_equal(tmp_path: Path, text: str) -> None:
    own = "a: {own: 1, b: '???', new: '???'}\nonly: [1, '???']\nx: ???\n"
    conf = conf_of(tmp_path, base__parameters_x_yml=text, local__parameters_yml=own, local__globals_yml="data: other\n")
    found = read_plainly(conf, None, "parameters")
    assert found is not None and found == of_kedro(conf, None, "parameters")


@pytest.mark.parametrize(
    "text",
    [
        "a: ${globals:nothing}",
        "a: ${globals:data,other}",
        "a: ${oc.decode:'1'}",
        "a: ${.b}",
        "a: {b: 1, c: '${.b}'}",
        "a: ${b}\nb: ${a}",
        "a: x${globals:none}",
        "a: x${globals:size}",
        "a: ???\nb: ${a}",
        "a: \\${b}\nb: 1",
        "a: 1\na: 2",
        "a: [1, 2",
        "a: !!python/object/apply:os.getcwd []",
        "- 1",
        "[]",
        "false",
        "0",
        "x: {2024-01-02: 1}\n? [1, 2]\n: 3",
    ],
)
def test_what_only_kedro_reads_or_refuses_is_left_to_it(tmp_path: Path, text: str) -> None:
    conf = conf_of(tmp_path, base__parameters_x_yml=text)
    assert read_plainly(conf, None, "parameters") is None


@pytest.mark.parametrize(
    ("base", "own"), [("a: {b: 1}", "a: [1]"), ("a: [1]", "a: {b: 1}"), ("a: {b: {}}", "a: {b: []}")]
)
def test_a_list_over_a_mapping_is_left_to_kedro(tmp_path: Path, base: str, own: str) -> None:
    conf = conf_of(tmp_path, base__parameters_yml=base, local__parameters_yml=own)
    assert read_plainly(conf, None, "parameters") is None


def test_files_are_found_where_kedro_finds_them(tmp_path: Path) -> None:
    files = {
        "base__parameters_yml": "a: 1",
        "base__parameters_more__any_yml": "b: 2",
        "base__deep__parameters_x_yml": "c: 3",
        "base__deep__other_yml": "d: 4",
        "base__.hidden__parameters_yml": "e: 5",
        "base__mlflow_x_yml": "f: 6",
        "base__deep__mlflow_yml": "g: 7",
    }
    conf = conf_of(tmp_path, **files)
    assert read_plainly(conf, None, "parameters") == of_kedro(conf, None, "parameters") == {"a": 1, "b": 2, "c": 3}
    assert read_plainly(conf, None, "mlflow") == of_kedro(conf, None, "mlflow") == {"f": 6}
    (conf / "base/parameters_z.yml").write_text("a: 2")
    assert read_plainly(conf, None, "parameters") is None, "a key in two files"
    assert read_plainly(conf, "nowhere", "parameters") is None and read_plainly(conf, None, "catalog") is None


def test_nothing_of_kedro_or_omegaconf_is_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from everytoken.configuration import read_plainly;"
        f"assert read_plainly(Path({str(CONF)!r}), 'test', 'catalog');"
        "print([name for name in ('kedro', 'omegaconf', 'fsspec', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
