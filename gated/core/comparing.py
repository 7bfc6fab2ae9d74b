"""Comparisons of what an agent wrote with what it cannot be compared with.

In CEL values of two types are unequal, and that is no error: `args.env != "prod"` holds of `["prod"]` and of `5`, and a rule
that forbids values is passed by writing them otherwise. So an expression has a second reading, `strictly`, in which such a
comparison is an error, as every other function of CEL answers another type. It is the first one with `==`, `!=` and `in`
replaced by the two functions below, and the library evaluates both; `&&`, `||`, `all`, `exists` absorb that error as any other.
INVARIANT: where both give a result, they give the same. So an error of the second where the first is true says that it is true
only because types differ; where the first is false, nothing rests on it.

Numbers are one type. `null` as it stands in an expression, or as the gate gives it (`run.task`), compares with everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from cel_expr_python import cel
from msgspec.structs import replace

from gated.core.syntax import (
    CALL_ARGUMENT,
    CALL_FUNCTION,
    FOLD_RANGE,
    FOLD_VARIABLE,
    SELECT_FIELD,
    SELECT_OF,
    Kind,
    Node,
    call,
    constant,
    listed,
    read_constant,
    read_tree,
    write_tree,
)

Names = frozenset[str]

WRITTEN: Final[Names] = frozenset({"args", "result"})  # the roots that hold what an agent or its tools wrote
_GIVEN: Final = "result.status"
_TYPED: Final = frozenset({"size", "type", "string", "int", "uint", "double", "bytes", "timestamp", "duration"})
_LONGEST: Final = 60


def strictly(serialized: bytes, names: tuple[str, ...]) -> cel.Expression | None:
    """The second reading; None where no comparison could differ in it."""
    tree = read_tree(serialized)
    strict = _strict(tree, WRITTEN)
    return None if strict == tree else _environment(names).deserialize(write_tree(strict))


# --- the tree --------------------------------------------------------------------------------------------------------


def _strict(node: Node, written: Names) -> Node:
    inside = within_fold(node, written)

    def field(number: int, value: int | float | bytes | Node) -> tuple[int, int | float | bytes | Node]:
        if not isinstance(value, Node):
            return number, value
        return number, _strict(value, written if (node.kind, number) == (Kind.FOLD, FOLD_RANGE) else inside)

    found = replace(node, fields=tuple(field(*pair) for pair in node.fields))
    return _compared(found, node.parts, written) if is_doubtful(node, written) else found


def is_doubtful(node: Node, written: Names) -> bool:
    """Whether it compares, and what an agent wrote decides whether the types agree."""
    if node.kind is not Kind.CALL or node.text(CALL_FUNCTION) not in ("_==_", "_!=_", "@in"):
        return False
    return not all(is_settled(part, written) for part in node.parts) and not any(map(is_null, node.parts))


def within_fold(node: Node, written: Names) -> Names:
    """The names that hold what an agent wrote inside a macro: its variable, too, where its list does."""
    if node.kind is not Kind.FOLD:
        return written
    variable, of = node.text(FOLD_VARIABLE), node.part(FOLD_RANGE)
    return written - {variable} if is_settled(of, written) else written | {variable}


def is_settled(node: Node, written: Names) -> bool:
    """Whether its type is the author's or the gate's to say."""
    if node.kind is Kind.NAME:
        return node.text(1) not in written
    if path_of(node) == _GIVEN or (node.kind is Kind.CALL and node.text(CALL_FUNCTION) in _TYPED):
        return True
    inside = within_fold(node, written)
    return all(is_settled(part, inside) for part in node.parts)


def path_of(node: Node) -> str:
    """`args.a.b`, or nothing where it is no path."""
    if node.kind is Kind.NAME:
        return node.text(1)
    if node.kind is Kind.CALL and node.text(CALL_FUNCTION) == "_[_]":
        of, key = node.parts
        above = path_of(of) if key.kind is Kind.CONSTANT else ""
        return above and f"{above}[{read_constant(key)!r}]"
    above = path_of(node.part(SELECT_OF)) if node.kind is Kind.SELECT else ""
    return above and f"{above}.{node.text(SELECT_FIELD)}"


def _compared(node: Node, parts: Sequence[Node], written: Names) -> Node:
    left, right = (value for number, value in node.fields if number == CALL_ARGUMENT and isinstance(value, Node))
    names = [constant("" if is_settled(part, written) else path_of(part) or "a value") for part in parts]
    function = node.text(CALL_FUNCTION)
    found = call(_WITHIN if function == "@in" else _SAME, listed(left, right), *names)
    return call("!_", found) if function == "_!=_" else found


def is_null(node: Node) -> bool:
    return node.kind is Kind.CONSTANT and read_constant(node) is None


# --- the two functions -----------------------------------------------------------------------------------------------

_SAME, _WITHIN = "@same", "@within"


@cache
def _environment(names: tuple[str, ...]) -> cel.Env:
    parameters = [cel.Type.List(cel.Type.DYN), cel.Type.STRING, cel.Type.STRING]
    functions = [
        cel.FunctionDecl(name, [cel.Overload(name, return_type=cel.Type.BOOL, parameters=parameters, impl=function)])
        for name, function in ((_SAME, _same), (_WITHIN, _within))
    ]
    return cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN), functions=functions)


def _same(pair: Sequence[Any], left: str, right: str) -> bool:
    """`left` and `right` name the sides that an agent wrote; empty for the others. Raises `ValueError` where types differ."""
    one, other = pair
    if (one is None and not left) or (other is None and not right):
        return one is other
    found = equal(one, other)
    if found is None:
        raise ValueError(differ(left or right, one if left else other, [other if left else one]))
    return found


def _within(pair: Sequence[Any], left: str, right: str) -> bool:
    """An author's list may be mixed: one element of the type is enough. In an agent's list all must be."""
    value, of = pair
    if not isinstance(of, list | dict) or (isinstance(of, dict) and not isinstance(value, _KEYS)):
        raise ValueError(f"{kind_of(of)} does not hold {kind_of(value)}")
    found = [equal(value, element) for element in of]
    if True in found:
        return True
    if None in found if right else found and False not in found:
        raise ValueError(differ(left or right, value if left else of, of if left else [value]))
    return False


_KEYS: Final = str | bool | int | float


def equal(one: Any, other: Any) -> bool | None:
    """None: nothing says whether they are equal, since the types of two values in them differ."""
    kind = kind_of(one)
    if kind != kind_of(other):
        return None
    if kind == "a list":
        return _all(equal(*pair) for pair in zip(one, other, strict=True)) if len(one) == len(other) else False
    if kind == "a map":
        return _all(equal(one[key], other[key]) for key in one) if one.keys() == other.keys() else False
    if one.__class__ is not other.__class__:  # CEL compares an integer with a double as a double
        return float(one) == float(other)
    return bool(one == other)


def _all(found: Iterable[bool | None]) -> bool | None:
    seen = list(found)
    return False if False in seen else None if None in seen else True


def differ(name: str, value: Any, others: Iterable[Any]) -> str:
    kinds = sorted({kind_of(other) for other in others})
    said = kind_of(value) + (" of other things" if kinds == [kind_of(value)] else "")
    return f"`{name[:_LONGEST]}` is {said}, and is compared with {' and '.join(kinds)}"


_KINDS: Final[Mapping[type, str]] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a map",
    type(None): "null",
}


def kind_of(value: Any) -> str:
    kind: type = value.__class__
    return _KINDS.get(kind) or f"a {kind.__name__}"
