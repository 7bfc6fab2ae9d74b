"""The runs of a day: eight kinds, what each is told, and what its agent is to hear of it.

Told anything else, a week measures something else: so what was heard is compared with `HEARD`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

POLICY: Final = """
version: 1
agents:
  a:
    allowed_tools: [Read, refund]
    approval_required: [refund]
    data_scope: any
    resource_budget: {max_calls: %d}
approvals: {default: {approvers: [user:bob], timeout: 1h}}
machines:
  - {name: read, scope: run, key: "{file}", initial: n, transitions: [{on: Read, from: "*", to: r}]}
  - {name: seen, key: "{file}", initial: n, transitions: [{on: Read, from: "*", to: s}]}
redact: {detectors: [secrets, email], store: encrypted, subject: "label:customer"}
"""

KINDS: Final = 8
FINISHED, EXPIRES, LAPSES, ABORTED, APPROVED, REJECTED, ERASED, TALK = range(KINDS)
TALKS: Final = 4  # threads of a day on which runs follow one another

Heard = tuple[str, str | None]

# type and decision of what the agent of one run hears before time passes, and then
HEARD: Final[dict[int, Counter[Heard]]] = {
    FINISHED: Counter({("verdict", "allow"): 3, ("reminder", None): 3, ("run.status", None): 1}),
    EXPIRES: Counter({("verdict", "suspend"): 1}),
    LAPSES: Counter({("verdict", "allow"): 1}),
    ABORTED: Counter({("verdict", "allow"): 2, ("refusal", None): 1, ("run.status", None): 1}),
    APPROVED: Counter({("verdict", "suspend"): 1, ("verdict", "allow"): 1, ("reminder", None): 1, ("run.status", None): 1}),
    REJECTED: Counter({("verdict", "suspend"): 1, ("verdict", "deny"): 1}),
    ERASED: Counter({("verdict", "allow"): 1, ("reminder", None): 1, ("run.status", None): 2}),  # it was opened, and ended
    TALK: Counter({("verdict", "allow"): 1, ("reminder", None): 1, ("run.status", None): 1}),
}
LATER: Final = Counter({("verdict", "deny"): 1, ("reminder", None): 2})  # of one that expires, one that lapses, and its call


class Place(NamedTuple):
    thread: str
    run: str


def place(day: int, number: int) -> Place:
    name = f"d{day}r{number}"
    talk = f"d{day}talk{number // KINDS % TALKS}"
    return Place(talk if number % KINDS == TALK else name, name)


def told(day: int, number: int) -> Iterator[dict[str, Any]]:
    """What a run is told at once."""
    kind = number % KINDS
    if kind == FINISHED:
        for name in ("c0", "c1", "c2"):
            yield from _called(name)
        yield {"type": "run.finish"}
    elif kind in (EXPIRES, APPROVED, REJECTED):
        yield _call("asked", "refund")
    elif kind == LAPSES:
        yield _call("forgotten")
    elif kind == ABORTED:
        yield _call("twice")
        yield _call("twice")
        yield _call("twice", "refund")  # refused: the id is another call's
        yield {"type": "run.abort", "reason": "enough"}
    else:
        if kind == ERASED:
            yield {"type": "run.start", "labels": {"customer": customer(day, number)}}
        yield from _called(f"c{number}", note=f"mail ana{number}@ours.example, password=correct{number}horse")
        yield {"type": "run.finish"}


def after_approval() -> Iterator[dict[str, Any]]:
    yield {"type": "outcome", "call": "asked", "status": "success", "content": "ok"}
    yield {"type": "run.finish"}


def customer(day: int, number: int) -> str:
    return f"c{day}x{number}"


def _called(name: str, **more: str) -> Iterator[dict[str, Any]]:
    yield _call(name, **more)
    yield {"type": "outcome", "call": name, "status": "success", "content": "ok"}


def _call(name: str, tool: str = "Read", **more: str) -> dict[str, Any]:
    return {
        "type": "intents",
        "nesting": "explicit",
        "calls": [{"id": name, "tool": tool, "args": {"file": f"{name}.py", **more}}],
    }
