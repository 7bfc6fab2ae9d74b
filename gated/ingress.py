"""The form of what comes in: ids, tool names, costs, a call of an intent, a person's answer. Pure; for the wire and scenarios.

What is wrong with one call is said in its `Wanted` (`refused` and `why`), so that the calls beside it are still decided.
Codes: `ingress.id` `ingress.shape` `ingress.tool_name` `ingress.args` `ingress.cost`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from msgspec import Meta, ValidationError, convert, to_builtins
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

_DIGEST: Final = f"^[0-9a-f]{{64}}{END}"
_TICKET: Final = f"^[A-Za-z0-9_.-]{{1,160}}{END}"
_WORDS: Final = {  # what a text that misses a pattern is told, in the place of the pattern
    ID_PATTERN: ("ingress.id", f"an id is {ID_WORDS}"),
    _DIGEST: ("ingress.shape", "a digest is 64 of the characters 0-9 a-f"),
    _TICKET: ("ingress.shape", "a ticket is 1 to 160 of the characters A-Z a-z 0-9 _ . -"),
}

# The fields of messages, as they are read from the bus and from scenarios.
MessageId = Annotated[str, Meta(pattern=ID_PATTERN)]
Digest = Annotated[str, Meta(pattern=_DIGEST)]
TicketName = Annotated[str, Meta(pattern=_TICKET)]
Task = Annotated[str, Meta(max_length=65_536)]
Reason = Annotated[str, Meta(max_length=1000)]
Note = Annotated[str, Meta(max_length=4000)]
Tokens = Annotated[int, Meta(ge=0, le=2**53)]  # of one outcome
Calls = Annotated[list[Any], Meta(min_length=1, max_length=1000)]  # of one message

_FIELDS: Final = frozenset({"id", "tool", "args", "parent", "cost_usd"})


class Unreadable(ValueError):
    """A message that is not of the contract. `code` is an ingress code."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


def unfit(said: str) -> Unreadable:
    """msgspec's words of a message that is JSON but none of the contract's, with the place as we write it."""
    what, _, place = said.partition(" - at ")
    pattern = next((pattern for pattern in _WORDS if what.endswith(f"matching regex {pattern!r}")), None)
    code, what = ("ingress.shape", what) if pattern is None else _WORDS[pattern]
    where = place.strip("`").removeprefix("$").removeprefix(".")
    if where == "cost_usd":
        code = "ingress.cost"
    return Unreadable(code, what[:1].lower() + what[1:] + (f", at `{where}`" if where else ""))


def refuse_unfit(kind: Any, value: object, field: str) -> None:
    """Raises `Unreadable` where a field of a message does not hold what it must, in the words of a whole message."""
    try:
        convert(value, kind)
    except ValidationError as error:
        raise unfit(f"{error} - at `$.{field}`") from error


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
