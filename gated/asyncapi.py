"""The bus contract as an AsyncAPI 3 document, made from the message structs themselves so that it cannot drift from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from gated import ingress, wire
from gated.events import Body
from gated.units import MAX_USD

RECORD: Final = "Record"
_TO_AGENTS: Final = f"the gate's answers to an agent; `{wire.UNKNOWN}` stands for a thread or a run whose id was refused"

_IN: Final = {
    "agent": "what an agent says for its run",
    "approver": "answers to tickets",
    "operator": "opening, binding and ending runs",
    "runner": "outcomes from whoever runs the tools",
}


def document(prefix: str = wire.PREFIX) -> dict[str, Any]:
    """The whole contract: channels are subjects, with their parameters; every message has its JSON Schema."""
    inbound, outbound = get_args(wire.Inbound), get_args(wire.Outbound)
    kinds: list[type[Struct]] = [*inbound, *outbound, wire.TicketMessage, wire.RecordOmitted]
    _, schemas = msgspec.json.schema_components([*kinds, wire.WantedCall, Body], ref_template="#/components/schemas/{name}")
    for kind in (*outbound, wire.TicketMessage):
        _say_what_is_always_there(kind, schemas)
    _say_what_calls_are(schemas)
    for amount in schemas[wire.Outcome.__name__]["properties"]["cost_usd"]["anyOf"][:2]:
        amount["maximum"] = MAX_USD
    schemas[RECORD] = _record_schema(schemas.pop(Body.__name__))
    channels: dict[str, Any] = {
        f"in_{role}": _channel(f"{prefix}.in.{{thread}}.{{run}}.{role}.{{name}}", wire.SENDERS[role], text)
        for role, text in _IN.items()
    }
    channels["out"] = _channel(f"{prefix}.out.{{thread}}.{{run}}.agent.{{name}}", outbound, _TO_AGENTS)
    for role in ("approver", "operator", "runner"):
        address, told = f"{prefix}.out.{{thread}}.{{run}}.{role}.{{name}}", (wire.Refusal, wire.TicketMessage)
        channels[f"out_{role}"] = _channel(
            address, told, f"why a message of the {role} was not taken, or what it was answered before"
        )
    channels["tickets"] = _channel(f"{prefix}.tickets.{{thread}}.{{run}}", (wire.TicketMessage,), "the life of tickets")
    channels["events"] = _channel(f"{prefix}.events.{{thread}}.{{run}}", (wire.RecordOmitted,), "the records of the log")
    channels["events"]["messages"][RECORD] = {"$ref": f"#/components/messages/{RECORD}"}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "gated", "version": "1", "description": "Tool intents in, verdicts out. Ids are [A-Za-z0-9_-]{1,128}."},
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": {
            name: {"action": "receive" if name.startswith("in_") else "send", "channel": {"$ref": f"#/channels/{name}"}}
            for name in channels
        },
        "components": {
            "messages": {
                **{kind.__name__: _message(kind) for kind in kinds},
                RECORD: {"summary": "One observation and what was decided of it.", "payload": _reference(RECORD)},
            },
            "schemas": schemas,
        },
    }


def _say_what_is_always_there(kind: type[Struct], schemas: dict[str, Any]) -> None:
    """A field whose default is made anew is written out in every message, so a reader may rely on it."""
    known = msgspec.structs.fields(kind)
    written = [field.encode_name for field in known if callable(field.default_factory)]
    schemas[kind.__name__]["required"] += written


def _say_what_calls_are(schemas: dict[str, Any]) -> None:
    """The calls of a message are read one by one, so that a malformed one does not hide the others: their form is `ingress`'s."""
    call = schemas[wire.WantedCall.__name__]
    said = call["properties"]
    said["id"]["pattern"] = ingress.ID_PATTERN
    said["tool"]["pattern"] = ingress.TOOL_PATTERN
    said["parent"]["anyOf"][0]["pattern"] = ingress.ID_PATTERN
    said["cost_usd"]["anyOf"][0] |= {"minimum": 0, "maximum": MAX_USD}
    call["additionalProperties"] = False
    for kind in (wire.Intents, wire.CanI):
        schemas[kind.__name__]["properties"]["calls"]["items"] = _reference(wire.WantedCall.__name__)


def _record_schema(body: Mapping[str, Any]) -> dict[str, Any]:
    """A record of the log is its body, and the hash of that. Policies and logs of later versions have more fields."""
    said = {"type": "string", "description": "SHA-256, in hex, of this object without `hash`: compact JSON, keys sorted"}
    return {**body, "title": RECORD, "properties": {**body["properties"], "hash": said}, "required": [*body["required"], "hash"]}


def _channel(address: str, kinds: tuple[type[Struct], ...], text: str) -> dict[str, Any]:
    names = [part[1:-1] for part in address.split(".") if part.startswith("{")]
    return {
        "address": address,
        "description": text,
        "parameters": {name: {"description": f"the {name}'s id"} for name in names},
        "messages": {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds},
    }


def _message(kind: type[Struct]) -> dict[str, Any]:
    summary = (kind.__doc__ or "").strip().splitlines()
    tag = kind.__struct_config__.tag
    named = {} if tag is None else {"name": str(tag)}
    return {**named, "summary": summary[0] if summary else "", "payload": _reference(kind.__name__)}


def _reference(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}
