"""Moves every module with versioned functions in a copy of the sources, and renames these functions.

What is stored may notice neither. Used as a program, it does that to the folder ``src`` that it is given.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

_KEEP = "former_paths.py"  # holds the paths of version 0.1.0 as data


def move(source: Path) -> dict[str, str]:
    """Move the modules below ``source``, rename the functions; return the new name of each function."""
    files = [path for path in sorted(source.rglob("*.py")) if path.name != _KEEP]
    homes: dict[str, str] = {}  # the module of each function
    moved: list[Path] = []
    for path in files:
        found = list(_versioned(path))
        if found:
            homes |= dict.fromkeys(found, ".".join(path.relative_to(source).with_suffix("").parts))
            moved.append(path)
    names = {name: f"{name}_of_old" for name in homes}
    others = {
        (module, node.name)
        for path in files
        for module in [".".join(path.relative_to(source).with_suffix("").parts)]
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.FunctionDef) and homes.get(node.name, module) != module
    }
    for path in files:
        _rename(path, names, others)
    for path in moved:
        path.rename(path.with_name(f"{path.stem}_elsewhere.py"))
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, sorted(set(homes.values()))))})\b(?!\.\w+\.)")
    for path in source.rglob("*.py"):
        if path.name != _KEEP:
            text = path.read_text(encoding="utf-8")
            path.write_text(pattern.sub(r"\1_elsewhere", text), encoding="utf-8")
    return names


def _versioned(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.FunctionDef):
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "versioned":
                    yield node.name


def _rename(path: Path, names: dict[str, str], others: set[tuple[str, str]]) -> None:
    """Rename in one file the functions that it defines or imports; ``others`` of the same names stay."""
    text = path.read_text(encoding="utf-8")
    here = {name for name in _versioned(path) if name in names} | {
        alias.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in names and (str(node.module), alias.name) not in others
    }
    if not here:
        return
    kinds = (tokenize.NL, tokenize.COMMENT)
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type not in kinds]
    lines = text.splitlines(keepends=True)
    for i in range(len(tokens) - 1, -1, -1):
        if tokens[i].type == tokenize.NAME and tokens[i].string in here and _is_function(tokens, i):
            row, start = tokens[i].start
            line, end = lines[row - 1], tokens[i].end[1]
            lines[row - 1] = line[:start] + names[tokens[i].string] + line[end:]
    path.write_text("".join(lines), encoding="utf-8")


def _is_function(tokens: list[tokenize.TokenInfo], i: int) -> bool:
    """Return whether a name is no attribute and no keyword of a call."""
    before, after = tokens[i - 1].string, tokens[i + 1].string
    return before != "." and not (after == "=" and before in ("(", ","))


if __name__ == "__main__":
    print(f"{len(move(Path(sys.argv[1])))} functions have other names and other modules")
