"""Every small change that could be made to a module, one at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLED = {
    "min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin",
    "argmin": "argmax", "argmax": "argmin", "sum": "mean", "mean": "sum", "maximum": "minimum",
    "minimum": "maximum", "nanmax": "nanmin", "nanmin": "nanmax", "floor": "ceil", "ceil": "floor",
}  # fmt: skip


Place = tuple[ast.expr | ast.stmt, ast.stmt, tuple[ast.stmt, ...]]
"""What may be changed, its statement, and the functions and classes around that."""


@dataclass(frozen=True)
class Mutant:
    """A module with one change."""

    path: Path
    line: int
    change: str
    """Such as ``< becomes <=``, with the statement it stands in."""
    original: ast.Module
    number: int
    """Which of the places that may be changed."""
    variant: int
    """Which of the changes that can be made there."""
    lines: range
    """The lines whose execution reaches the change; empty where importing the module does."""

    @property
    def key(self) -> str:
        """Names the mutant in lists; independent of the line it happens to stand on."""
        return f"{self.path.as_posix()}: {self.change}"

    @cached_property
    def changed(self) -> tuple[ast.Module, ast.stmt, tuple[ast.stmt, ...]]:
        """The module with the change, the changed statement and what is around that."""
        tree = copy.deepcopy(self.original)
        node, statement, scope = list(_inside(tree.body, ()))[self.number]
        _apply(node, self.variant)
        return ast.fix_missing_locations(tree), statement, scope


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of one file, in the order of its lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    seen: dict[str, int] = {}
    for number, (node, statement, scope) in enumerate(_inside(tree.body, ())):
        for variant, name in enumerate(_changes(node)):
            text = f"{name} in `{ast.unparse(statement).splitlines()[0][:90]}`"
            seen[text] = seen.get(text, 0) + 1
            text += f" ({seen[text]})" if seen[text] > 1 else ""
            lines = _lines(statement, scope)
            yield Mutant(path, node.lineno, text, tree, number, variant, lines)


def _lines(statement: ast.stmt, scope: tuple[ast.stmt, ...]) -> range:
    if isinstance(statement, ast.FunctionDef):
        return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    if not any(isinstance(owner, ast.FunctionDef) for owner in scope):
        return range(0)
    body: list[ast.stmt] = getattr(statement, "body", [])
    end = body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def _inside(body: list[ast.stmt], scope: tuple[ast.stmt, ...]) -> Iterator[Place]:
    """Nodes that may be changed; types, docstrings and words are not."""
    for statement in body:
        if _is_words(statement):
            continue
        yield statement, statement, scope
        for child in ast.iter_child_nodes(statement):
            if not _is_body(child) and not _is_hint(statement, child):
                yield from ((node, statement, scope) for node in _expressions(child))
        owns = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        for inner in _bodies(statement):
            yield from _inside(inner, (*scope, statement) if owns else scope)


def _is_body(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case)


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        yield getattr(statement, field, [])
    for field in ("handlers", "cases"):
        yield from (branch.body for branch in getattr(statement, field, []))


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.JoinedStr | ast.arg):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # zip's is an assertion
    if isinstance(node, ast.expr):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _expressions(child)


def _is_words(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Raise):
        return True
    if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
        return True
    if isinstance(statement, ast.FunctionDef) and statement.name in ("__str__", "__repr__"):
        return True
    docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return docstring or (isinstance(statement, ast.Assign) and _names(statement) == ["__all__"])


def _names(statement: ast.Assign) -> list[str]:
    return [target.id for target in statement.targets if isinstance(target, ast.Name)]


def _is_hint(statement: ast.stmt, child: ast.AST) -> bool:
    """Annotations, decorators and base classes."""
    hints = [getattr(statement, "annotation", None), getattr(statement, "returns", None)]
    lists = [*getattr(statement, "decorator_list", []), *getattr(statement, "bases", [])]
    return any(child is hint for hint in (*hints, *lists))


def _changes(node: ast.expr | ast.stmt) -> list[str]:
    """What can be done to a node, in words; :func:`_apply` does the variant of that number."""
    match node:
        case ast.Compare(ops=ops):
            return [f"{_name(o)} becomes {_name(COMPARED[type(o)]())}" for o in ops]
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in COMPUTED:
            return [f"{_name(op)} becomes {_name(COMPUTED[type(op)]())}"]
        case ast.BoolOp(op=op):
            return ["and becomes or" if isinstance(op, ast.And) else "or becomes and"]
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            return [f"{_name(node.op)} is dropped"]
        case ast.Constant(value=bool() | int() | float() as value):
            return [f"{value} becomes {_other(value)}"]
        case ast.Call(func=ast.Attribute(attr=name)) if name in CALLED:
            return [f"{name} becomes {CALLED[name]}"]
        case ast.Call(func=ast.Name(id="min" | "max" | "any" | "all" as name)):
            return [f"{name} becomes {CALLED[name]}"]
        case ast.If() | ast.IfExp() | ast.While():
            return ["condition is negated"]
        case ast.Expr(value=ast.Call()):
            return ["call is left out"]
    return []


def _apply(node: ast.expr | ast.stmt, variant: int) -> None:
    match node:
        case ast.Compare(ops=ops):
            ops[variant] = COMPARED[type(ops[variant])]()
        case ast.BinOp(op=op) | ast.AugAssign(op=op):
            node.op = COMPUTED[type(op)]()
        case ast.BoolOp(op=op):
            node.op = ast.Or() if isinstance(op, ast.And) else ast.And()
        case ast.UnaryOp(op=op):
            node.op = ast.UAdd() if not isinstance(op, ast.Not) else ast.Not()
            if isinstance(op, ast.Not):
                node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.Constant(value=bool() | int() | float() as value):
            node.value = _other(value)
        case ast.Call(func=ast.Attribute() as function):
            function.attr = CALLED[function.attr]
        case ast.Call(func=ast.Name() as function):
            function.id = CALLED[function.id]
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Expr():
            node.value = ast.Constant(None)


def _other(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value * 2 if value else 1.0


def _name(operator: ast.AST) -> str:
    return type(operator).__name__
