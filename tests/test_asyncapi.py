"""The published bus contract is the one that the structs make, and messages of the wire fit it."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import jsonschema_rs
import pytest

from gated import wire
from gated.asyncapi import document
from gated.events import CallDecided, CallId, CanIAsked, IntentsReceived, MessageRefused, RunId, Sender, ThreadId

PUBLISHED = Path(__file__).parents[1] / "docs" / "asyncapi.json"


def test_the_published_document_is_made_from_the_structs() -> None:
    assert json.loads(PUBLISHED.read_text()) == json.loads(json.dumps(document())), "run `gated asyncapi > docs/asyncapi.json`"


def validator(name: str) -> jsonschema_rs.Draft202012Validator:
    made = document()
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": made["components"]})


def test_a_verdict_fits_its_schema() -> None:
    decided = CallDecided(CallId("c1"), "Read", "0" * 64, "allow")
    said = json.loads(wire.encode(wire.verdict(decided, "p" * 64, 3, 1_700_000_000_000_000)))
    assert said["type"] == "verdict"
    assert validator("Verdict").is_valid(said)
    assert not validator("Verdict").is_valid({**said, "decision": "maybe"})


def test_every_reference_leads_somewhere() -> None:
    made = document()
    for channel in made["channels"].values():
        for message in channel["messages"].values():
            name = message["$ref"].rsplit("/", 1)[1]
            assert name in made["components"]["messages"]
            assert name in made["components"]["schemas"]


# --- what the document says is what the gate takes -------------------------------------------------------------------

CALL = {"id": "a", "tool": "T", "args": {"x": 1}, "parent": "b", "cost_usd": 0.5}


class Said(NamedTuple):
    role: Any
    message: dict[str, Any]


SAID = {
    "RunStart": Said("agent", {"task": "x", "labels": {"a": "b"}, "tools": ["T"], "parent_run": "r0"}),
    "Intents": Said("agent", {"calls": [CALL], "mode": "each", "nesting": "explicit"}),
    "Outcome": Said(
        "agent",
        {"call": "a", "status": "success", "content": {"x": 1}, "facts": {"a": 1}, "cost_usd": 0.1, "tokens": 5},
    ),
    "Recall": Said("agent", {"call": "a"}),
    "CanI": Said("agent", {"calls": [CALL], "nesting": "inferred"}),
    "RunFinish": Said("agent", {}),
    "RunAbort": Said("agent", {"reason": "x"}),
    "RunKill": Said("operator", {"reason": "x"}),
    "PolicyBind": Said("operator", {"policy": "0" * 64}),
    "Erase": Said("operator", {"subject": "x", "reason": "y"}),
    "Resolution": Said(
        "approver",
        {
            "ticket": "t.2",
            "decision": "approve",
            "decision_id": "d",
            "args_sha256": "0" * 64,
            "note": "n",
            "args": {"a": 1},
            "result": 5,
            "remember": {"pattern": "T", "for": "run"},
            "by": "bob",
            "tool": "T",
        },
    ),
    "Forget": Said("approver", {"remembered": "x"}),
}
# No `5.0`: for JSON Schema that is a whole number, and for the gate it is none.
OTHERS: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    1.5,
    1e30,
    "",
    "a",
    "a b",
    "a\n",
    "\u00e9",
    "x" * 200,
    "call",
    "atomic",
    2**53 + 1,
    2**64,
]
OTHERS += [[], {}, [1], {"a": 1}, {"a": "b"}, ["a", None]]


def changed(value: Any, whole: Any) -> Iterator[Any]:
    """The whole with each of its parts left out or replaced, and each of its objects with a field that is unknown."""
    if isinstance(value, dict):
        value["unknown"] = 1
        yield whole
        del value["unknown"]
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()):
        if key == "type":
            continue
        yield from changed(item, whole)
        for other in OTHERS:
            value[key] = other
            yield whole
        value[key] = item
        if isinstance(value, dict):
            del value[key]
            yield whole
            value[key] = item


def refused(role: Any, message: dict[str, Any]) -> bool:
    read = wire.read(wire.Origin(ThreadId("t"), RunId("r"), Sender(role, "bob")), json.dumps(message).encode())
    if isinstance(read, IntentsReceived | CanIAsked):
        return any(call.refused is not None for call in read.calls)
    return isinstance(read, MessageRefused)


def test_every_message_that_comes_in_is_asked_about() -> None:
    assert {kind.__name__ for kind in get_args(wire.Inbound)} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_the_gate_takes_what_the_document_allows_and_refuses_what_it_forbids(name: str) -> None:
    role, tag, fits = SAID[name].role, document()["components"]["messages"][name]["name"], validator(name)
    message = {"type": tag, **copy.deepcopy(SAID[name].message)}
    assert fits.is_valid(message)
    assert not refused(role, message)
    wrong = [copy.deepcopy(m) for m in changed(message, message) if fits.is_valid(m) is refused(role, m)]
    assert wrong == []
