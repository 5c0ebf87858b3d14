"""What holds for the whole project: the catalog, the parameters, the layers, and where randomness may come from."""

from __future__ import annotations

import ast
import inspect
import itertools
import shutil
import subprocess
import sys
import typing
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from kedro.framework.context import KedroContext
from kedro.framework.project import pipelines
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline
from kedro.validation import ParameterValidator
from kedro.validation.exceptions import ParameterValidationError
from kedro.validation.type_extractor import TypeExtractor

from everytoken.cli import exclusion_lines
from everytoken.configuration import ConfigurationError, JobConfigLoader
from everytoken.pipeline_registry import JOBS
from everytoken.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "everytoken"
bootstrap_project(ROOT)


@pytest.fixture(scope="module", params=["local", "test"])
def context(request: pytest.FixtureRequest) -> Iterator[KedroContext]:
    with KedroSession.create(project_path=ROOT, env=request.param) as session:
        yield session.load_context()


@pytest.fixture(scope="module")
def catalog(context: KedroContext) -> DataCatalog:
    """Made once: a context makes another one each time that it is asked."""
    return context.catalog


_VIZ_LAYERS = ("raw", "intermediate", "primary", "feature", "model input", "models", "model output", "reporting")


def _entries(context: KedroContext) -> dict[str, dict[str, Any]]:
    """Return the catalog entry of each dataset, also of those that a dataset factory makes."""
    resolver = context.catalog.config_resolver
    names = {name for pipeline in pipelines.values() for name in pipeline.datasets()}
    return {name: resolver.resolve_pattern(name) for name in sorted(names) if not name.startswith("params:")}


def _viz_layers(context: KedroContext) -> dict[str, int]:
    return {
        name: _VIZ_LAYERS.index(entry["metadata"]["kedro-viz"]["layer"])
        for name, entry in _entries(context).items()
        if "metadata" in entry
    }


def test_the_layer_of_a_dataset_is_that_of_its_folder(context: KedroContext) -> None:
    layers = _viz_layers(context)
    for name, entry in _entries(context).items():
        if name in layers:
            path = entry.get("dataset", entry)["filepath"]
            folder = f"/{layers[name] + 1:02}_{_VIZ_LAYERS[layers[name]].replace(' ', '_')}/"
            assert folder in path, name
    assert len(layers) > 70


@pytest.mark.parametrize("job", sorted({*JOBS} - {"pretraining"}))  # which has one layer
def test_the_layers_of_a_job_are_ordered_by_what_is_made_of_what(context: KedroContext, job: str) -> None:
    """Kedro-viz orders layers by the edges between their datasets: each has to be made of one of the layer before."""
    layers = _viz_layers(context)
    for pipeline in pipelines.values():
        _edges_of_layers(pipeline, layers)
    whole = pipelines[job]
    there = sorted({layers[name] for name in whole.datasets() if name in layers})
    assert set(itertools.pairwise(there)) <= _edges_of_layers(whole, layers)
    assert there[0] == 0 and there[-1] == len(_VIZ_LAYERS) - 1


def _edges_of_layers(pipeline: Pipeline, layers: dict[str, int]) -> set[tuple[int, int]]:
    above: dict[str, set[int]] = {}
    edges: set[tuple[int, int]] = set()
    for node in pipeline.nodes:
        made_of = {layer for name in node.inputs for layer in {*above.get(name, ()), layers.get(name, -1)} - {-1}}
        for name in node.outputs:
            above[name] = made_of
            if name in layers:
                assert max(made_of, default=0) <= layers[name], f"{name} is made of what lies in a later layer"
                edges |= {(layer, layers[name]) for layer in made_of}
    return edges


@pytest.mark.parametrize("name", sorted(pipelines))
def test_every_dataset_is_in_the_catalog(catalog: DataCatalog, name: str) -> None:
    missing = {d for d in pipelines[name].datasets() if not d.startswith("params:") and d not in catalog}
    assert not missing, "a dataset that is not in the catalog lives in memory and is lost"


def test_every_parameter_is_read_by_a_node(context: KedroContext) -> None:
    inputs = {n.removeprefix("params:") for p in pipelines.values() for n in p.inputs() if n.startswith("params:")}
    templates = {name for name in context.params if name.startswith("_")}  # which other parameters name
    assert set(context.params) - templates == inputs


def test_kedro_validates_every_parameter_by_the_type_hints_of_nodes(context: KedroContext) -> None:
    types = TypeExtractor(dict(pipelines)).extract_types_from_pipelines()
    assert set(types) == {name for name in context.params if not name.startswith("_")}
    parameters = context.config_loader["parameters"]
    wrong = {**parameters, "ingestion": {**parameters["ingestion"], "min_chars": -1, "min_char": 3}}
    with pytest.raises(ParameterValidationError) as caught:
        ParameterValidator(dict(pipelines)).validate_raw_params(wrong)
    lines = str(caught.value).splitlines()
    assert "2 validation errors for IngestionParameters" in lines[1]
    assert lines[2] == "min_chars" and "greater than or equal to 0" in lines[3] and "input_value=-1" in lines[3]
    assert lines[4] == "min_char" and "Extra inputs are not permitted" in lines[5] and len(lines) == 6


def test_what_nobody_has_looked_up_goes_over_the_value_of_base(tmp_path: Path) -> None:
    """OmegaConf keeps the value of base where ``???`` would replace it: a licence that somebody doubts would stand."""
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    (tmp_path / "conf/local").mkdir(exist_ok=True)
    (tmp_path / "conf/local/parameters_release.yml").write_text("release: {licences: {champ: {spdx: '???'}}}\n")
    given = {"release": {"licences": {"chats": {"name": "???"}}, "pretty_name": "Mine"}}
    loader = JobConfigLoader(str(tmp_path / "conf"), env="local", runtime_params=given, **CONFIG_LOADER_ARGS)
    release = loader["parameters"]["release"]
    assert release["licences"]["chats"]["name"] == release["licences"]["champ"]["spdx"] == "???"
    assert release["licences"]["chats"]["spdx"] == release["licences"]["champ"]["name"] == "MIT"
    assert release["pretty_name"] == "Mine"


def test_a_source_that_there_is_not_cannot_be_taken_away(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "conf", tmp_path / "conf")
    own = tmp_path / "conf/local/parameters_ingestion.yml"
    own.parent.mkdir(exist_ok=True)

    def sources(given: dict[str, Any] | None = None) -> dict[str, Any]:
        loader = JobConfigLoader(str(tmp_path / "conf"), env="local", runtime_params=given, **CONFIG_LOADER_ARGS)
        return dict(loader["parameters"]["ingestion"]["sources"])

    own.write_text("ingestion: {sources: {champ: null}}\n")
    assert sources()["champ"] is None
    with pytest.raises(ConfigurationError, match=r"--params takes the source 'chmp' away .* only \['champ', "):
        sources({"ingestion": {"sources": {"chmp": None}}})
    own.write_text("ingestion: {sources: {chmp: null}}\n")
    with pytest.raises(ConfigurationError, match=r"'local' takes the source 'chmp' away"):
        sources()


def test_a_take_down_names_every_dataset_that_has_whole_texts() -> None:
    """What ``everytoken exclude`` prints to be removed: stores of documents and of what is exported."""
    with_text = {name for name in exclusion_lines._WITH_TEXT}
    exported = set(pipelines["export"].outputs())
    documents = {name for name in pipelines["corpus"].datasets() if name.endswith("_documents")} - {
        "held_out_documents"  # a take-down removes the row itself, and makes them again
    }
    assert with_text == exported | documents | {"documents", "reflections_manifest"}


_NODES = {node.name: node for pipeline in pipelines.values() for node in pipeline.nodes}


def test_a_dataset_has_one_writer_in_a_job() -> None:
    """Kedro refuses two nodes that write one dataset: what replay writes, or splitting, is what subsampling does.

    Published reflections are what a generator writes.
    """
    unscored = {"splitting", "shards", "chat"}
    apart = {"__default__", "replay", "published_reflections", *unscored}
    sum((pipeline for name, pipeline in pipelines.items() if name not in apart), Pipeline([]))
    sum((pipelines[name] for name in unscored - {"chat"}), Pipeline([]))
    sum((pipelines[name] for name in unscored - {"shards"}), Pipeline([]))
    sum((pipelines[name] for name in ("replay", "packing", "canary", "training", "release")), Pipeline([]))


@pytest.mark.parametrize("node", _NODES.values(), ids=_NODES)
def test_node_annotations_resolve(node: typing.Any) -> None:
    """Kedro passes a plain dict, silently, for an annotation that does not resolve at run time."""
    hints = typing.get_type_hints(node.func)
    code = inspect.unwrap(node.func).__code__
    takes_more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    assert len(hints) == code.co_argcount + takes_more + 1, "every argument and the result have a type"


def test_pipelines_have_few_free_outputs() -> None:
    inputs = {name for p in pipelines.values() for node in p.nodes for name in node.inputs}
    for name, pipeline in pipelines.items():
        own = Pipeline([node for node in pipeline.nodes if node.namespace == name])  # a job has those of others too
        assert len(own.outputs() - inputs) <= 3, name


def _sources(*folders: Path) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _shown(package: ModuleType) -> list[str]:
    """Return the names that a package shows: what its ``__init__`` imports lazily, or lists."""
    names: list[str] = package.__dir__() if "__dir__" in vars(package) else getattr(package, "__all__", [])
    return names


def test_packages_are_imported_through_what_they_show() -> None:
    """From a package that a module does not belong to, it imports names that the package shows."""
    modules = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    wrong = []
    for path, tree in _sources(SOURCE):
        own = ".".join(Path(path).relative_to("src").parent.parts)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (module := str(node.module)).startswith("everytoken."):
                package = module if f"{module}.__init__" in modules else module.rpartition(".")[0]
                if f"{own}.".startswith(f"{package}.") or package.startswith("everytoken.pipelines"):
                    continue
                shown = _shown(import_module(package))
                wrong += [
                    f"{path}:{node.lineno} {module}.{alias.name}"
                    for alias in node.names
                    if module != package or alias.name not in shown
                ]
    assert not wrong


def test_no_package_shows_a_name_that_a_module_in_it_has() -> None:
    """Python would give the module in place of the name, once something has imported the module."""
    packages = [path.parent for path in SOURCE.rglob("__init__.py") if path.parent not in (SOURCE, SOURCE / "cli")]
    for folder in packages:
        package = import_module(".".join(folder.relative_to(SOURCE.parent).parts))
        inside = {path.stem for path in folder.iterdir()}
        assert not inside & set(_shown(package)), folder


_REPEATED = {"create_pipeline", "logger"}


def _definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions, classes and constants that a module defines."""
    statements: list[ast.stmt] = [*tree.body]
    for node in statements:
        names: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        elif isinstance(node, ast.If | ast.With | ast.Try):
            statements += [*node.body, *getattr(node, "orelse", [])]
        yield from {name for name in names if not name.startswith("_")}


def test_no_public_name_has_two_meanings() -> None:
    homes: dict[str, list[str]] = {}
    for path, tree in _sources(SOURCE):
        for name in set(_definitions(tree)):
            homes.setdefault(name, []).append(path)
    repeated = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert set(repeated) - _REPEATED == set(), repeated


def test_a_name_of_this_project_is_imported_as_it_is() -> None:
    """An alias would give one thing two names."""
    aliases = [
        f"{path}:{node.lineno} {alias.name} as {alias.asname}"
        for path, tree in _sources(SOURCE)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("everytoken")
        for alias in node.names
        if alias.asname is not None
    ]
    assert not aliases


def test_no_node_calls_a_node_function_of_another_pipeline() -> None:
    """A release plans again with the nodes of others: as nodes of its own run, under ``planned``."""
    for file, tree in _sources(ROOT / "src/everytoken/pipelines"):
        if not file.endswith("/pipeline.py"):
            folder = file.removeprefix("src/").rsplit("/", 1)[0].replace("/", ".")
            assert not [name for name in _imports(tree) if name.endswith(".nodes") and not name.startswith(folder)], (
                file
            )


def test_a_name_of_a_node_function_is_that_of_one_function() -> None:
    functions: dict[str, set[str]] = {}
    for pipeline in pipelines.values():
        for node in pipeline.nodes:
            functions.setdefault(node.func.__name__, set()).add(f"{node.func.__module__}.{node.func.__qualname__}")
    assert {name: found for name, found in functions.items() if len(found) > 1} == {}


def test_no_folder_holds_more_than_16_modules() -> None:
    folders = Counter(path.parent for folder in (SOURCE, ROOT / "tests") for path in folder.rglob("*.py"))
    assert max(folders.values()) <= 16, folders.most_common(3)


_GENERATORS = {
    *("numpy.random", "np.random", "torch.manual_seed", "torch.seed", "torch.Generator", "torch.random"),
    *("torch.cuda.manual_seed", "torch.cuda.manual_seed_all", "random.Random", "random.seed", "random.SystemRandom"),
    *("os.urandom", "uuid.uuid4", "uuid.uuid1"),
}
_TORCH_DRAWS = {
    *("rand", "randn", "randint", "randperm", "normal", "multinomial", "bernoulli", "poisson", "normal_", "uniform_"),
    *("random_", "bernoulli_", "exponential_", "geometric_", "cauchy_", "log_normal_", "trunc_normal_"),
    *("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_"),
}


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _unseeded(tree: ast.Module) -> Iterator[str]:
    """Yield the places of a module that make a generator, or draw from one that nobody named."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in _imports(ast.Module([node], [])):
                if name.split(".")[0] in ("random", "secrets") or name.startswith("numpy.random"):
                    yield f"line {node.lineno}: import of {name}"
        if isinstance(node, ast.Attribute) and _dotted(node) in _GENERATORS and _dotted(node) != "np.random.Generator":
            yield f"line {node.lineno}: {_dotted(node)}"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _TORCH_DRAWS
            and not any(keyword.arg == "generator" for keyword in node.keywords)
            and not _dotted(node.func.value).endswith(("rng", "generator"))
        ):
            yield f"line {node.lineno}: {node.func.attr}() without generator="


@pytest.mark.parametrize(
    ("path", "tree"),
    [source for source in _sources(SOURCE, ROOT / "benchmarks") if source[0] != "src/everytoken/seeds.py"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_draw_comes_from_seeds(path: str, tree: ast.Module) -> None:
    found = [place for place in _unseeded(tree) if not _only_annotates_generator(tree, place)]
    assert not found, f"{path}: make generators in everytoken.seeds, from a seed in the parameters: {found}"


def _only_annotates_generator(tree: ast.Module, place: str) -> bool:
    """Tell whether ``np.random`` at this line is only the type ``np.random.Generator``."""
    if not place.endswith((": np.random", ": torch.Generator")):
        return False
    line = int(place.split()[1].rstrip(":"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line]
    return not any(_dotted(call.func).startswith(("np.random", "torch.Generator")) for call in calls)


@pytest.mark.parametrize(
    "code",
    [
        "import random",
        "from numpy.random import default_rng",
        "import numpy as np\nx = np.random.default_rng(3)",
        "import torch\ntorch.manual_seed(1)",
        "import torch\ng = torch.Generator()",
        "import torch\nx = torch.randn(3)",
        "w.normal_(0, 1)",
    ],
)
def test_the_check_of_draws_finds_them(code: str) -> None:
    tree = ast.parse(code)
    assert [place for place in _unseeded(tree) if not _only_annotates_generator(tree, place)]


def _modules_loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sorted(m for m in sys.modules if '.' not in m)))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(run.stdout.splitlines()[-1].split())


def test_importing_the_package_its_pipelines_and_kedro_help_are_light() -> None:
    assert not {"torch", "mlflow", "kedro"} & _modules_loaded_by("import everytoken")
    help_page = (
        "from click.testing import CliRunner\nfrom pathlib import Path\n"
        "from kedro.framework.cli.cli import KedroCLI\n"
        "assert CliRunner().invoke(KedroCLI(project_path=Path.cwd()), ['--help']).exit_code == 0"
    )
    assert not {"torch", "mlflow"} & _modules_loaded_by(help_page)
    pipelines = (
        "from kedro.framework.project import configure_project, pipelines\n"
        "configure_project('everytoken')\nassert len(pipelines) > 10"
    )
    assert not {"torch", "mlflow", "transformers", "openai", "submitit", "ray"} & _modules_loaded_by(pipelines)


def test_an_engine_imports_nothing_of_the_others() -> None:
    run = "from everytoken.shards import make_engine\nlist(make_engine('{}', 2).run(abs, [1, 2]))"
    for kind in ("inline", "processes"):
        assert not {"submitit", "ray", "fsspec", "s3fs"} & _modules_loaded_by(run.format(kind))


def test_a_local_dataset_imports_nothing_of_storages() -> None:
    run = "from everytoken.datasets import ShardStore, TokenStream\n"
    run += "ShardStore(filepath='data/x', engine={'kind': 'inline'}).exists(), TokenStream(filepath='data/y').exists()"
    assert not {"s3fs", "aiobotocore"} & _modules_loaded_by(run)


def test_telemetry_is_off() -> None:
    assert yaml.safe_load((ROOT / ".telemetry").read_text()) == {"consent": False}
