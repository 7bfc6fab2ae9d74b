"""Data scope: which files, hosts and tables the arguments of a call may name."""

from gated.core.scope.check import Scope, ScopeFinding, compile_scope
from gated.core.scope.declared import undeclared
from gated.core.scope.resources import SelectorError
from gated.core.scope.rules import DataScope, Kind, Resources, ScopeError

__all__ = [
    "DataScope",
    "Kind",
    "Resources",
    "Scope",
    "ScopeError",
    "ScopeFinding",
    "SelectorError",
    "compile_scope",
    "undeclared",
]
