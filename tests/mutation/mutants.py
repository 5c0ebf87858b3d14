"""Mutants: one small fault each in a function of a module, as a reviewer could overlook it.

What is changed: comparisons (boundary and sense), ``and`` and ``or``, ``not``, the sense of a condition, arithmetic,
whole numbers (one more, one less), ``True`` and ``False``, ``min`` and ``max``, ``any`` and ``all``, the first two
arguments of a call; and statements are left out: a guard's ``raise``, an early ``return``, ``break``, ``continue``,
a call, an assignment that adds.

What is not: the text of messages (``raise`` and f-strings), annotations, defaults, decorators, statements outside of
functions; ``strict=True`` of ``zip``, which guards against what cannot happen; ``fsync`` and ``flush``, which only a
power cut would show; and the order of two arguments of a symmetric function.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
CALLED = "__called_functions__"
_SYMMETRIC = {
    "min",
    "max",
    "gcd",
    "lcm",
    "minimum",
    "maximum",
    "equal",
    "array_equal",
    "logical_and",
    "logical_or",
    "transpose",
}
_UNSEEN = {"fsync", "flush"}
_SKIPPED = (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        module: file under ``src/everytoken``.
        function: qualified name of the function that has it.
        line: of the statement.
        before: the statement, or the head of a compound one.
        after: what the fault makes of it.
        number: of the fault in the module.
    """

    module: str
    function: str
    line: int
    before: str
    after: str
    number: int

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names the fault wherever its line is: equal faults of a function share it."""
        return self.module, self.function, self.before, self.after


@dataclass(frozen=True)
class _Edit:
    """``parent.field`` (or its item at ``index``) becomes ``new``, in a statement of a function."""

    function: str
    statement: ast.stmt
    parent: ast.AST
    field: str
    index: int | None
    new: Any

    def apply(self) -> None:
        if self.index is None:
            setattr(self.parent, self.field, self.new)
        else:
            getattr(self.parent, self.field)[self.index] = self.new


def mutants_of(module: str, source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its source."""
    found = []
    for number, edit in enumerate(_edits(ast.parse(source))):
        before = _head(edit.statement)
        after = "pass" if isinstance(edit.new, ast.Pass) else _head(_edited(edit))
        if before != after:
            found.append(Mutant(module, edit.function, edit.statement.lineno, before, after, number))
    return found


def compiled(mutant: Mutant, source: str, path: str) -> CodeType:
    """Return the code of the module with the fault."""
    tree = ast.parse(source)
    edit = next(edit for number, edit in enumerate(_edits(tree)) if number == mutant.number)
    edit.apply()
    return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


def noting_calls(source: str, path: str) -> CodeType:
    """Return the code of a module whose functions add their qualified names to the global set `CALLED`."""
    tree = ast.parse(source)
    for function, name in list(_functions(tree, "")):
        function.body[:0] = ast.parse(f"{CALLED}.add({name!r})").body
    return compile(tree, path, "exec", dont_inherit=True)


def _edited(edit: _Edit) -> ast.stmt:
    """Return a copy of the edited statement; the tree stays as it is."""
    memo: dict[int, Any] = {}
    statement = copy.deepcopy(edit.statement, memo)
    parent = memo[id(edit.parent)]
    _Edit(edit.function, statement, parent, edit.field, edit.index, edit.new).apply()
    return statement


def _head(statement: ast.stmt) -> str:
    """Return a statement as one line, without what is inside a compound one."""
    if not hasattr(statement, "body"):
        return " ".join(ast.unparse(statement).split())
    head = copy.copy(statement)
    head.body = []  # type: ignore[attr-defined]
    for name in ("orelse", "finalbody", "handlers"):
        if hasattr(head, name):
            setattr(head, name, [])
    return " ".join(ast.unparse(head).split())


def _edits(tree: ast.Module) -> Iterator[_Edit]:
    for function, name in _functions(tree, ""):
        yield from _of_block(name, function, "body")


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}{child.name}"
            if isinstance(child, ast.FunctionDef):
                yield child, name
            yield from _functions(child, f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>.")
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _functions(child, prefix)


def _of_block(function: str, parent: ast.AST, field: str) -> Iterator[_Edit]:
    block = getattr(parent, field)
    for index, statement in enumerate(block):
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue  # has its own name
        if _can_go(statement, parent):
            yield _Edit(function, statement, parent, field, index, ast.copy_location(ast.Pass(), statement))
        if isinstance(statement, _SKIPPED):
            continue
        for name, value in ast.iter_fields(statement):
            if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                yield from _of_block(function, statement, name)
            elif name == "handlers":
                for handler in value:
                    yield from _of_block(function, handler, "body")
            elif not (isinstance(statement, ast.AnnAssign) and name == "annotation"):
                yield from _of_field(function, statement, statement, name, value)
        if isinstance(statement, ast.If | ast.While):
            yield from _of_condition(function, statement, statement, "test", statement.test)


def _can_go(statement: ast.stmt, parent: ast.AST) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call) and _called(statement.value) not in _UNSEEN
    if isinstance(statement, ast.Return):
        return isinstance(parent, ast.If)
    return isinstance(statement, ast.AugAssign | ast.Break | ast.Continue | ast.Raise) and not isinstance(
        parent, ast.ExceptHandler
    )


def _of_field(function: str, statement: ast.stmt, parent: ast.AST, field: str, value: Any) -> Iterator[_Edit]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, ast.AST):
                yield from _of_node(function, statement, parent, field, index, item)
    elif isinstance(value, ast.AST):
        yield from _of_node(function, statement, parent, field, None, value)


def _of_node(
    function: str, statement: ast.stmt, parent: ast.AST, field: str, index: int | None, node: ast.AST
) -> Iterator[_Edit]:
    if isinstance(node, _SKIPPED) or (isinstance(node, ast.keyword) and node.arg == "strict"):
        return
    if isinstance(node, ast.Lambda):
        yield from _of_field(function, statement, node, "body", node.body)
        return

    def edit(new: Any) -> _Edit:
        return _Edit(function, statement, parent, field, index, new)

    if isinstance(node, ast.cmpop):
        yield from (edit(other()) for other in _COMPARED[type(node)])
    elif isinstance(node, ast.And | ast.Or):
        yield edit(ast.Or() if isinstance(node, ast.And) else ast.And())
    elif isinstance(node, ast.operator):
        if (other := _COMPUTED.get(type(node))) is not None:
            yield edit(other())
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield edit(ast.Constant(not node.value))
        elif isinstance(node.value, int):
            yield edit(ast.Constant(node.value + 1))
            if node.value > 0:
                yield edit(ast.Constant(node.value - 1))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield edit(node.operand)
    elif isinstance(node, ast.Name) and node.id in _NAMES and field == "func":
        yield edit(ast.Name(_NAMES[node.id], ast.Load()))
    elif isinstance(node, ast.Call) and _called(node) not in _SYMMETRIC and _plain_arguments(node) > 1:
        first, second, *rest = node.args
        yield _Edit(function, statement, node, "args", None, [second, first, *rest])
    elif isinstance(node, ast.IfExp):
        yield from _of_condition(function, statement, node, "test", node.test)
    elif isinstance(node, ast.comprehension):
        for place, condition in enumerate(node.ifs):
            yield from _of_condition(function, statement, node, "ifs", condition, place)
    for name, value in ast.iter_fields(node):
        if not isinstance(value, ast.expr_context):
            yield from _of_field(function, statement, node, name, value)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _plain_arguments(call: ast.Call) -> int:
    return 0 if any(isinstance(argument, ast.Starred) for argument in call.args) else len(call.args)


def _of_condition(
    function: str, statement: ast.stmt, parent: ast.AST, field: str, test: ast.expr, index: int | None = None
) -> Iterator[_Edit]:
    """Turn the sense of a condition that has no operator of its own to change."""
    if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
        yield _Edit(function, statement, parent, field, index, ast.UnaryOp(ast.Not(), test))


def functions_in(code: CodeType) -> dict[tuple[str, int], CodeType]:
    """Return the code of every function of a module by qualified name and first line."""
    found: dict[tuple[str, int], CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found[constant.co_qualname, constant.co_firstlineno] = constant
            found.update(functions_in(constant))
    return found
