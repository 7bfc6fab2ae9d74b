"""What a policy leaves open of the resources that a tool's arguments name."""

from __future__ import annotations

import re
from typing import Any

from gated.core.scope.rules import Resources


def undeclared(tool: str, resources: Resources, schema: Any) -> str | None:
    """In words; None where every argument that may be any text has a kind, or nobody can tell which there are."""
    if not isinstance(schema, dict):
        open_all = f"`{tool}` declares no `resources`: its arguments are taken for resources by their looks"
        return None if resources.args else open_all
    roots = {re.split(r"[.\[]", selector)[0] for selector in resources.args}
    properties = schema.get("properties") or {}
    left = [name for name, rule in properties.items() if name not in roots and "*" not in roots and _is_open(rule)]
    if not left:
        return None
    named = ", ".join(f"`{name}`" for name in left)
    return f"`{tool}` declares no kind of {named} in its `resources`: they are taken for resources by their looks"


def _is_open(rule: object) -> bool:
    """Whether values of a property may be any text."""
    if not isinstance(rule, dict):
        return True
    return "enum" not in rule and "const" not in rule and rule.get("type", "string") in ("string", "array", "object")
