"""Packages that show many names and load only those that are used.

A worker that encodes text needs a few modules of `everytoken.tokens`, and a package that imports all of them costs it a
quarter of a second. So a package's ``__init__`` imports its names under ``TYPE_CHECKING``, for readers and type
checkers, and gives itself a ``__getattr__`` (PEP 562) that looks up in these imports where a name lives::

    if TYPE_CHECKING:
        from everytoken.shards.store import Store
    __getattr__, __dir__ = exports(__name__, __file__)
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for the module ``package`` that imports a name when it is asked for.

    Args:
        package: ``__name__`` of the module.
        file: its ``__file__``, whose imports under ``TYPE_CHECKING`` say which names there are, and where.
    """

    @cache
    def homes() -> dict[str, str]:
        blocks = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes()[name]), name)

    return get, lambda: sorted(homes())
