"""Sample values fit the schemas that they are made for."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from gated.core.explain.samples import matching, samples

RULES: list[tuple[Any, Any]] = [
    ({"type": "string"}, None),
    ({"type": "string", "pattern": "^(feature|fix)/[a-z0-9-]{1,60}$"}, "main"),
    ({"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}[A-Z0-9]{10,30}$"}, None),
    ({"type": "string", "pattern": r"^v\d{1,4}[.]\d+$"}, None),
    ({"type": "string", "pattern": "^[^:]*$", "maxLength": 3}, "abcdef"),
    ({"type": "string", "minLength": 20}, None),
    ({"type": "integer", "minimum": 5}, "7"),
    ({"type": "integer"}, "7"),
    ({"type": ["string", "number"]}, None),
    ({"type": "array", "minItems": 1, "items": {"type": "string", "pattern": "^[a-z]+@[a-z]+$"}}, None),
    ({"type": "array", "items": {"type": "integer"}}, 3),
    ({"enum": ["a", "b"]}, "c"),
    ({"const": 4}, None),
    ({"type": "boolean"}, "x"),
    ({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}, None),
]


@pytest.mark.parametrize(("rule", "present"), RULES, ids=str)
def test_some_sample_fits(rule: Any, present: Any) -> None:
    validator = jsonschema_rs.Draft202012Validator(rule)
    assert any(validator.is_valid(value) for value in samples(rule, present))


def test_the_nearest_comes_first() -> None:
    assert next(samples({"type": "integer"}, "7")) == 7
    assert next(samples({"type": "array"}, "x")) == ["x"]
    assert next(samples({"type": "string", "maxLength": 2}, "abc")) == "ab"


@pytest.mark.parametrize("pattern", ["(", r"(?P<a>x)\1", "^(?=a)b$"])
def test_what_is_beyond_it_is_none(pattern: str) -> None:
    assert matching(pattern) is None
