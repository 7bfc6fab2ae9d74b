"""The shape of what comes in: what is refused before any stage, and the schema. decisions.md §2, §4; bus.md."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jsonschema_rs

from oracle.findings import Finding, Question
from oracle.values import Json

ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
TOOL = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
PAYLOAD, DEPTH, VALUES, KEY = 1 << 20, 64, 10_000, 1 << 10


def refusal_of(call: dict[str, Any]) -> str | None:
    if not all(ID.fullmatch(str(name)) for name in (call.get("id", ""), call.get("parent")) if name is not None):
        return "ingress.id"
    if not isinstance(call.get("tool"), str) or not TOOL.fullmatch(call["tool"]):
        return "ingress.tool_name"
    try:
        args = arguments(call)
    except ValueError:
        return "ingress.args"
    if not isinstance(args, dict) or not _is_json(args):
        return "ingress.args"
    if not _is_cost(call.get("cost_usd")):
        return "ingress.cost"
    return "ingress.too_large" if _too_large(args) else None


def arguments(call: dict[str, Any]) -> Json:
    """The arguments as a value; `raw` gives them as they come over the wire. Raises ValueError."""
    return strict_json(call["raw"]) if "raw" in call else call.get("args", {})


def strict_json(text: str) -> Json:
    """No NaN, no infinity, no key twice."""

    def constant(name: str) -> Json:
        raise ValueError(f"`{name}` is no JSON")

    def pairs(found: list[tuple[str, Json]]) -> dict[str, Json]:
        if len({key for key, _ in found}) != len(found):
            raise ValueError("a key stands twice")
        return dict(found)

    return json.loads(text, parse_constant=constant, object_pairs_hook=pairs)


def _is_cost(cost: Json) -> bool:
    """decisions.md §1: NaN, infinity and negative costs are refused."""
    if cost is None:
        return True
    return isinstance(cost, int | float) and not isinstance(cost, bool) and math.isfinite(cost) and cost >= 0


def outcome_refusal(status: str, cost_usd: Json) -> str | None:
    if status not in ("success", "error", "not_run"):
        return "ingress.shape"
    return None if _is_cost(cost_usd) else "ingress.cost"


def _is_json(value: Json) -> bool:
    if isinstance(value, dict):
        return all(_is_json(k) and _is_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(_is_json(v) for v in value)
    if isinstance(value, str):
        return not any("\ud800" <= c <= "\udfff" for c in value)
    return value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))


def _too_large(args: Json) -> bool:
    def depth(value: Json) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    def values(value: Json) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(values, inner))

    def keys(value: Json) -> list[str]:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        return (list(value) if isinstance(value, dict) else []) + [key for item in inner for key in keys(item)]

    return (
        depth(args) > DEPTH
        or values(args) > VALUES
        or any(len(key.encode()) > KEY for key in keys(args))
        or len(json.dumps(args, separators=(",", ":"), ensure_ascii=False).encode()) > PAYLOAD
    )


def schema(question: Question) -> list[Finding]:
    """decisions.md §4: an unknown tool, or arguments that do not fit its schema. Cannot be observed away."""
    run, call = question.run, question.call
    known = run.policy.doc.get("tools", {})
    if run.policy.doc.get("unknown_tools") == "deny" and call.tool not in known:
        return [_misfit(f"unknown tool `{call.tool}`")]
    if run.tools is not None and call.tool not in run.tools:
        return [_misfit(f"unknown tool `{call.tool}`")]
    wanted = run.policy.tool(call.tool).get("schema")
    if wanted is None:
        return []
    validator = jsonschema_rs.Draft202012Validator(wanted)
    errors = sorted(validator.iter_errors(call.args), key=lambda error: ([str(p) for p in error.instance_path], error.message))
    if not errors:
        return []
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in errors[0].instance_path)
    return [_misfit(f"arguments{steps}: {errors[0].message}")]


def _misfit(reason: str) -> Finding:
    return Finding("ingress", "deny", "ingress.schema", reason)
