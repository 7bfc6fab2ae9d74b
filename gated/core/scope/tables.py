"""The tables an agent may touch: `database.table`, two plain names, compared exactly."""

from __future__ import annotations

import re
from typing import Final

from gated.core.scope.rules import DataScope, ScopeError

_NAME: Final = r"[A-Za-z0-9_$-]+"
_TABLE: Final = re.compile(rf"({_NAME})\.({_NAME})")


class Tables:
    """The tables of a scope. A database with no list, or an empty one, is allowed whole."""

    def __init__(self, rules: DataScope) -> None:
        self._databases = frozenset(rules.allowed_databases)
        self._tables = {database: frozenset(names) for database, names in rules.allowed_tables.items()}
        _plain("allowed_databases", rules.allowed_databases)
        for database, names in rules.allowed_tables.items():
            _plain(f"allowed_tables.{database}", names)
            if database not in self._databases:
                raise ScopeError(f"allowed_tables: `{database}` is not in `allowed_databases`; add it there")

    def hold(self, text: str) -> bool:
        names = _TABLE.fullmatch(text)
        if names is None or names[1] not in self._databases:
            return False
        listed = self._tables.get(names[1])
        return not listed or names[2] in listed


def _plain(key: str, names: list[str]) -> None:
    for name in names:
        if not re.fullmatch(_NAME, name):
            raise ScopeError(f"{key}: `{name}` is no plain name; use letters, digits, `_`, `$` and `-`, without a dot")
