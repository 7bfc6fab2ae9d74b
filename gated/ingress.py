"""The form of what comes in: ids, tool names, costs, a call of an intent, a person's answer. Pure; for the wire and scenarios.

What is wrong with one call is said in its `Wanted` (`refused` and `why`), so that the calls beside it are still decided.
Codes: `ingress.id` `ingress.shape` `ingress.tool_name` `ingress.args` `ingress.cost`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import to_builtins
from msgspec.structs import replace

from gated import canonical
from gated.events import CallId, ResolutionReceived, Wanted
from gated.units import parse_usd

ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
END: Final = r"$(?!\n)"  # the end, for patterns that are searched: a bare `$` also matches before a last line break
ID_PATTERN: Final = f"^{ID.pattern}{END}"
ID_WORDS: Final = "1 to 128 of the characters A-Z a-z 0-9 _ -"
TOOL: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
TOOL_PATTERN: Final = f"^{TOOL.pattern}{END}"

MOST_TOKENS: Final = 2**53  # of one outcome

_FIELDS: Final = frozenset({"id", "tool", "args", "parent", "cost_usd"})


class Unreadable(ValueError):
    """A message that is not of the contract. `code` is an ingress code."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def is_id(value: object) -> bool:
    """Whether a value may be part of a subject, a key and a file name."""
    return isinstance(value, str) and ID.fullmatch(value) is not None


def wanted_from(data: object, position: int = 0) -> Wanted:
    """One call of an intent, from decoded JSON. Never raises: a malformed call comes back as refused."""
    if type(data) is not dict and not isinstance(data, Mapping):
        return _refused(None, "shape", f"calls[{position}] is not an object")
    call = data.get("id")
    if not is_id(call):
        return _refused(None, "id", f"calls[{position}].id must be {ID_WORDS}")
    if not data.keys() <= _FIELDS:
        unknown = sorted(str(key) for key in data.keys() - _FIELDS)
        return _refused(call, "shape", f"calls[{position}] has unknown fields: {', '.join(unknown)[:200]}")
    return _fields(data, CallId(str(call)), position)


def _fields(data: Mapping[str, Any], call: CallId, position: int) -> Wanted:
    tool, args, parent = data.get("tool"), data.get("args"), data.get("parent")
    where = f"calls[{position}]"
    if not isinstance(tool, str) or TOOL.fullmatch(tool) is None:
        return _refused(call, "tool_name", f"{where}.tool must be 1 to 128 of the characters A-Z a-z 0-9 _ . : / -")
    if not isinstance(args, dict):
        return _refused(call, "args", f"{where}.args must be one JSON object")
    if parent is not None and not is_id(parent):
        return _refused(call, "id", f"{where}.parent must be a call id")
    cost = data.get("cost_usd")
    microusd = None
    if cost is not None:
        try:
            microusd = _cost(cost)
        except ValueError as error:
            return _refused(call, "cost", f"{where}.cost_usd: {error}")
    return Wanted(call, tool, args, parent, microusd)


def settled_cost(value: object) -> int | None:
    """What an outcome says that its call cost, in micro-dollars. Raises `Unreadable`."""
    try:
        return None if value is None else _cost(value)
    except ValueError as error:
        raise Unreadable("ingress.cost", f"cost_usd: {error}") from error


def _cost(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("must be a number of US dollars")
    return parse_usd(value)


def answer(said: ResolutionReceived) -> ResolutionReceived:
    """A person's answer with the digest of what it says: a repeat has the same. Raises `Unreadable`."""
    if said.decision == "reject":
        given = {"args": said.args is not None, "result": said.answers, "remember": said.remember is not None}
        for name in (name for name, there in given.items() if there):
            why = f"a rejection takes no `{name}`: leave it out, or `approve` with it, at `{name}`"
            raise Unreadable("ingress.shape", why)
    content = {key: value for key, value in to_builtins(said).items() if key not in ("by", "ticket", "decision_id")}
    return replace(said, content_sha256=hashlib.sha256(canonical.encode(content)).hexdigest())


def _refused(call: object, code: str, why: str) -> Wanted:
    return Wanted(CallId(call) if isinstance(call, str) else None, refused=f"ingress.{code}", why=why)
