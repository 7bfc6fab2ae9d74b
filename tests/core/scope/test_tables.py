from __future__ import annotations

import pytest

from gated.core.scope.rules import DataScope
from gated.core.scope.tables import Tables

TABLES = Tables(DataScope(allowed_databases=["a", "b", "c-$_9"], allowed_tables={"a": ["x", "y"], "b": []}))


@pytest.mark.parametrize("text", ["a.x", "a.y", "b.anything", "c-$_9.z"])
def test_held(text: str) -> None:
    assert TABLES.hold(text)


@pytest.mark.parametrize(
    "text", ["a.z", "A.x", "a.X", "d.x", "a", "a.", ".x", "a.x.y", "a.x\n", " a.x", "a.x;", "b.\u00e9", "a\uff0ex"]
)
def test_not_held(text: str) -> None:
    assert not TABLES.hold(text)
