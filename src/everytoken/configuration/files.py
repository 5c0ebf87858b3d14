"""The files of an environment, read as Kedro's loader reads them, without importing it: a third of a second.

`read_plainly` knows YAML, ``${globals:name}`` and ``${name.within[the].files}``. Of files with anything else it returns
None, and the caller asks Kedro's loader, which also has the words for what is wrong in a file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CONFIG_LOADER_ARGS: dict[str, Any] = {
    "base_env": "base",
    "default_run_env": "local",
    # Kedro's default replaces whole branches: an environment that changes one number would drop the other seeds.
    "merge_strategy": {"parameters": "soft", "globals": "soft"},
    "config_patterns": {"mlflow": ["mlflow*"]},
}
"""How Kedro's loader is made (``settings.py``)."""

_INNERMOST = re.compile(r"\$\{([^${}]*)\}")
_PATH = re.compile(r"(globals:)?([A-Za-z_]\w*(?:\.\w+|\[[\w.]+\])*)")
_STEP = re.compile(r"\[([\w.]+)\]|(\w+)")
_FLOAT = re.compile(  # of OmegaConf: YAML 1.1 takes 1e-3 for a text
    r"""^(?:[-+]?[0-9]+(?:_[0-9]+)*\.[0-9_]*(?:[eE][-+]?[0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)
    |\.[0-9]+(?:_[0-9]+)*(?:[eE][-+][0-9]+)?
    |[-+]?[0-9]+(?:_[0-9]+)*(?::[0-5]?[0-9])+\.[0-9_]*
    |[-+]?\.(?:inf|Inf|INF)
    |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_UNKNOWN = "???"  # of OmegaConf: a value that was not looked up yet, which replaces none
_SUFFIXES = {".yml", ".yaml", ".json"}


class _Unusual(Exception):
    """What only Kedro's loader reads, or refuses."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads YAML as OmegaConf does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(names)) < len(node.value):
            raise _Unusual("a key is given twice, or is no name")
        found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return found


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in resolvers if tag != _TIMESTAMP]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_plainly(conf: Path, env: str | None, key: str) -> dict[str, Any] | None:
    """Return the configuration of a kind, equal to that of Kedro's loader; None: only that one can read it.

    Args:
        env: the environment; None: ``local``.
        key: ``catalog``, ``globals``, ``mlflow`` or ``parameters``.
    """
    return _unless_unusual(lambda: _read(conf, env or CONFIG_LOADER_ARGS["default_run_env"], key))


def read_credentials(conf: Path, env: str | None) -> Mapping[str, Any]:
    """Return what the files ``credentials*`` of an environment say, as Kedro's loader reads them; {} without any."""
    from kedro.config import MissingConfigException, OmegaConfigLoader

    try:
        found: Mapping[str, Any] = OmegaConfigLoader(str(conf), env=env, **CONFIG_LOADER_ARGS)["credentials"]
        return found
    except MissingConfigException:
        return {}


def read_folder(conf: Path, name: str, env: str | None, key: str) -> dict[str, Any] | None:
    """Return what the files of one folder of ``conf`` say in an environment, before anything is merged; or None."""
    globals_of = read_plainly(conf, env, "globals")
    return None if globals_of is None else _unless_unusual(lambda: _of_folder(conf / name, key, globals_of))


def _unless_unusual(read: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    try:
        return read()
    except (_Unusual, OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return None


def _read(conf: Path, env: str, key: str) -> dict[str, Any]:
    shared = {} if key == "globals" else _read(conf, env, "globals")
    base = _of_folder(conf / CONFIG_LOADER_ARGS["base_env"], key, shared)
    own = base if env == CONFIG_LOADER_ARGS["base_env"] else _of_folder(conf / env, key, shared)
    merged = _merged(base, own) if CONFIG_LOADER_ARGS["merge_strategy"].get(key) == "soft" else {**base, **own}
    if not merged:
        raise _Unusual("no file, or an empty one")
    return merged


def _of_folder(folder: Path, key: str, shared: Mapping[str, Any]) -> dict[str, Any]:
    if not folder.is_dir():
        raise _Unusual("no such environment")
    tree: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        if _is_of_kind(file.relative_to(folder).parts, key) and file.suffix in _SUFFIXES and file.is_file():
            found = _parsed(file.read_text(encoding="utf-8"))
            if found is None:  # an empty file
                continue
            if not isinstance(found, dict) or found.keys() & tree.keys():
                raise _Unusual("no mapping, or a key that another file has")
            tree.update(found)
    resolved = {name: _resolved(value, tree, shared) for name, value in tree.items()}
    return {name: value for name, value in resolved.items() if key == "parameters" or not str(name).startswith("_")}


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """Return the tree of a file, which nobody may change: a run asks for the same files many times."""
    return yaml.load(text, _Loader)


def _is_of_kind(parts: tuple[str, ...], key: str) -> bool:
    if any(part.startswith(".") for part in parts):
        return False
    if key in ("catalog", "parameters"):
        return parts[0].startswith(key) or parts[-1].startswith(key)
    return len(parts) == 1 and (parts[0] == "globals.yml" if key == "globals" else parts[0].startswith(key))


def _resolved(value: Any, tree: Mapping[str, Any], shared: Mapping[str, Any]) -> Any:
    """Return a value with what its references name."""
    match value:
        case dict():
            return {_plain_key(name): _resolved(inner, tree, shared) for name, inner in value.items()}
        case list():
            return [_resolved(inner, tree, shared) for inner in value]
        case str():
            return _with_references(value, lambda name: _looked_up(name, tree, shared))
        case None | bool() | int() | float():
            return value
    raise _Unusual(type(value).__name__)


def _plain_key(name: Any) -> Any:
    if not isinstance(name, str | int) or "${" in str(name):
        raise _Unusual("a key that is no name")
    return name


def _with_references(text: str, look_up: Callable[[str], Any]) -> Any:
    if "\\" in text and "${" in text:
        raise _Unusual(text)
    while (found := _INNERMOST.search(text)) is not None:
        value = look_up(found[1])
        if found[0] == text:
            return value
        if not isinstance(value, str | int) or isinstance(value, bool):
            raise _Unusual(f"{text}: its reference is no part of a text")
        text = text[: found.start()] + str(value) + text[found.end() :]
    if "${" in text:
        raise _Unusual(text)
    return text


def _looked_up(name: str, tree: Mapping[str, Any], shared: Mapping[str, Any]) -> Any:
    if (known := _PATH.fullmatch(name)) is None:
        raise _Unusual(name)
    value: Any = shared if known[1] else tree
    for step in (bracketed or plain for bracketed, plain in _STEP.findall(known[2])):
        if not isinstance(value, Mapping) or step not in value:
            raise _Unusual(name)
        value = value[step]
    if value == _UNKNOWN:
        raise _Unusual(name)
    return value if known[1] else _resolved(value, tree, shared)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **dict(_over(base, own))}


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in own.items():
        if value == _UNKNOWN and name in base:
            continue
        before = base.get(name)
        if isinstance(before, dict | list) and isinstance(value, dict | list) and type(before) is not type(value):
            raise _Unusual("a list over a mapping, or a mapping over a list")
        yield name, _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
